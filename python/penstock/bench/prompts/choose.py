"""Choice of the source of words for a server, and the tokens that the server adds to a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from penstock.bench.prompts.local import from_file, is_here
from penstock.bench.prompts.maker import IdMaker, Lexicon, PromptMaker, WordMaker
from penstock.bench.prompts.served import from_server
from penstock.bench.prompts.server import Served, as_messages
from penstock.bench.prompts.usage import LONG, SHORT, Measured, from_usage, measure
from penstock.core import InvalidValueError, PenstockError


def make(
    server: Served,
    tokenizer: str | None = None,
    as_ids: bool = False,
    vocab_size: int | None = None,
) -> PromptMaker:
    """A maker of prompts with the number of tokens that `server` counts.

    The words come from `tokenizer` (alias, path, hub name); else from the model's own files if they
    are local, else from the server's /tokenize, else from usage. The server counts two short
    prompts, so that a wrong tokenizer is found before the run. `vocab_size` is for ids without any
    tokenizer.
    """
    if as_ids and server.chat:
        raise InvalidValueError(
            "--prompt-ids", True, "a completions endpoint (--endpoint /v1/completions)"
        )
    if as_ids and vocab_size is not None:
        return _from_range(server, vocab_size)
    if tokenizer is not None:
        return _checked(server, from_file(tokenizer), as_ids)
    for source in _sources(server, as_ids):
        maker = _tried(server, source, as_ids)
        if maker is not None:
            return maker
    raise PenstockError(_no_words(server, as_ids))


def _sources(server: Served, as_ids: bool) -> Iterator[Callable[[], Lexicon | None]]:
    for name in dict.fromkeys([server.model, server.root or server.model]):
        yield partial(_guess, name)
    yield partial(from_server, server)
    if not as_ids:
        yield partial(from_usage, server)


def _guess(name: str) -> Lexicon | None:
    """The model's own files, if they hold a tokenizer. Silent otherwise: no flag asked for them."""
    try:
        return from_file(name) if is_here(name) else None
    except PenstockError:
        return None


def _tried(
    server: Served, source: Callable[[], Lexicon | None], as_ids: bool
) -> PromptMaker | None:
    lexicon = source()
    if lexicon is None:
        return None
    maker, measured = _measured(server, lexicon, as_ids)
    return maker if measured is None or measured.constant else None


def _checked(server: Served, lexicon: Lexicon, as_ids: bool) -> PromptMaker:
    maker, measured = _measured(server, lexicon, as_ids)
    if measured is not None and not measured.constant:
        raise PenstockError(
            f"{lexicon.name}: the server counts {measured.short} and {measured.long} tokens in "
            "prompts of "
            f"{SHORT} and {LONG}: it has another tokenizer, name that one with --tokenizer"
        )
    return maker


def _measured(server: Served, lexicon: Lexicon, as_ids: bool) -> tuple[WordMaker, Measured | None]:
    maker = WordMaker(lexicon, 0, 0, as_ids)
    measured = measure(server, maker)
    overhead = measured.overhead if measured else _assumed(server, lexicon, as_ids)
    if server.chat:
        return replace(maker, template=overhead), measured
    return replace(maker, special=overhead), measured


def _assumed(server: Served, lexicon: Lexicon, as_ids: bool) -> int:
    """Overhead by the tokenizer's own rules."""
    if as_ids:
        return 0
    if not server.chat or lexicon.count_chat is None or lexicon.count_text is None:
        return lexicon.special
    text = " ".join(list(lexicon.words.values())[:SHORT])
    rendered = lexicon.count_chat(as_messages(text))
    return lexicon.special if rendered is None else rendered - SHORT


def _from_range(server: Served, vocab_size: int) -> PromptMaker:
    """The middle half: special tokens are at the ends of a vocabulary."""
    if vocab_size < 64:
        raise InvalidValueError(
            "--vocab-size", vocab_size, "the size of the model's vocabulary, at least 64"
        )
    maker = IdMaker(range(vocab_size // 4, vocab_size - vocab_size // 4))
    measured = measure(server, maker)
    if measured is None:
        return maker
    if not measured.constant:
        raise PenstockError(
            f"the server counts {measured.short} and {measured.long} tokens in prompts of {SHORT} "
            f"and {LONG} ids: it does not take ids as they are, leave out --prompt-ids"
        )
    return replace(maker, special=measured.overhead)


def _no_words(server: Served, as_ids: bool) -> str:
    if as_ids:
        return (
            f"no token ids for {server.model!r}: there is no tokenizer of that name here, and the "
            "server has no /tokenize; name one with --tokenizer, or give the vocabulary's size "
            "with --vocab-size"
        )
    return (
        f"no prompts of an exact length for {server.model!r}: there is no tokenizer of that name "
        "here, the server has no /tokenize and reports no usage; name its tokenizer with "
        "--tokenizer, or send token ids with --prompt-ids --vocab-size N"
    )
