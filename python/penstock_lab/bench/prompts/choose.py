"""Selects the source of single-token words for a server, and measures how many tokens the server
adds to a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from penstock.core import InvalidValueError, PenstockError
from penstock.hub import is_here
from penstock_lab.bench.prompts.local import from_file
from penstock_lab.bench.prompts.maker import PromptMaker
from penstock_lab.bench.prompts.served import from_server
from penstock_lab.bench.prompts.server import Served, as_messages
from penstock_lab.bench.prompts.usage import LONG, SHORT, Measured, from_usage, measure


def make(
    server: Served,
    tokenizer: str | None = None,
    as_ids: bool = False,
    vocab_size: int | None = None,
) -> PromptMaker:
    """A maker of prompts whose number of tokens `server` confirms.

    The words come from `tokenizer` (alias, path, hub name). Without it, they come from the model's
    own files if they are local, else from the server's /tokenize, else from the token counts in its
    usage data. The server counts two short prompts, so that a wrong tokenizer is detected before
    the run. With `as_ids` and `vocab_size`, no tokenizer is needed.
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


def _sources(server: Served, as_ids: bool) -> Iterator[Callable[[], PromptMaker | None]]:
    for name in dict.fromkeys([server.model, server.root or server.model]):
        yield partial(_guess, name)
    yield partial(from_server, server)
    if not as_ids:
        yield partial(from_usage, server)


def _guess(name: str) -> PromptMaker | None:
    """Maker from the model's own files. None on any error, because no flag names these files."""
    try:
        return from_file(name) if is_here(name) else None
    except PenstockError:
        return None


def _tried(
    server: Served, source: Callable[[], PromptMaker | None], as_ids: bool
) -> PromptMaker | None:
    found = source()
    if found is None:
        return None
    maker, measured = _measured(server, found, as_ids)
    return maker if measured is None or measured.constant else None


def _checked(server: Served, found: PromptMaker, as_ids: bool) -> PromptMaker:
    maker, measured = _measured(server, found, as_ids)
    if measured is not None and not measured.constant:
        raise PenstockError(
            f"{found.name}: the server counts {measured.short} and {measured.long} tokens in "
            "prompts of "
            f"{SHORT} and {LONG}: it has another tokenizer, name that one with --tokenizer"
        )
    return maker


def _measured(
    server: Served, found: PromptMaker, as_ids: bool
) -> tuple[PromptMaker, Measured | None]:
    """The maker with its overhead in tokens, and the server's counts that give it. Without counts,
    the overhead follows from the tokenizer's rules.
    """
    words: Mapping[int, str] = {} if as_ids else found.words
    name = f"{found.name}, {'token ids' if as_ids else 'text'}"
    maker = replace(found, name=name, words=words)
    measured = measure(server, maker)
    overhead = measured.overhead if measured else _assumed(server, found, as_ids)
    own, template = (0, overhead) if server.chat else (overhead, 0)
    return replace(maker, special=own, template=template), measured


def _assumed(server: Served, found: PromptMaker, as_ids: bool) -> int:
    if as_ids:
        return 0
    if not server.chat or found.count_chat is None or found.count_text is None:
        return found.special
    rendered = found.count_chat(as_messages(str(found.prompt(found.vocabulary[:SHORT]))))
    return found.special if rendered is None else rendered - SHORT


def _from_range(server: Served, vocab_size: int) -> PromptMaker:
    """Maker of ids in the middle half of the vocabulary, because special tokens are at its ends."""
    if vocab_size < 64:
        raise InvalidValueError(
            "--vocab-size", vocab_size, "the size of the model's vocabulary, at least 64"
        )
    ids = range(vocab_size // 4, vocab_size - vocab_size // 4)
    maker = PromptMaker(f"token ids {ids.start} to {ids.stop - 1}", ids)
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
