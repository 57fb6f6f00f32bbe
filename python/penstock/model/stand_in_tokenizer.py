"""Generated tokenizers, for models that have none or whose own is not used.

For a dummy model, ids below 256 are the bytes of UTF-8. Every other id is a separate word (a space
and three or four letters, " aaa" first). Each generated token is therefore visible text, and a
prompt of such words has one token per word. Any other text is encoded byte by byte.

With --skip-tokenizer-init, there is no text: outputs decode to an empty text, a prompt of text is
an error, there is no chat template, and the name of token 17 is `token_id:17`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import ascii_lowercase

from penstock.core import PenstockError
from penstock.model.errors import ModelError

FILES = ("tokenizer.json", "tiktoken.model")
BYTES = 256
SHORT = len(ascii_lowercase) ** 3
LONG = len(ascii_lowercase) ** 4
"""Number of words of three and of four letters."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
SENTENCEPIECE = "tokenizer.model"


@contextmanager
def tokenizer_of(
    model: Path, vocab: int, *, dummy: bool = False, skipped: bool = False
) -> Iterator[Path]:
    """Path of a model's tokenizer: the GGUF file or directory itself, or, inside the block, a
    temporary directory with a generated one. `skipped`: whether to have no text at all. Raises
    ModelError for a directory without a tokenizer, unless the model is a dummy.
    """
    own = model.is_file() or any((model / file).is_file() for file in FILES)
    if own and not skipped:
        yield model
        return
    if not skipped and not dummy:
        raise _no_tokenizer(model)
    with tempfile.TemporaryDirectory(prefix="penstock-tokenizer-") as directory:
        write = write_textless if skipped else write_stand_in
        write(Path(directory), vocab)
        yield Path(directory)


def _no_tokenizer(model: Path) -> ModelError:
    found = (
        f" ({SENTENCEPIECE} is not read: convert it with AutoTokenizer of transformers)"
        if (model / SENTENCEPIECE).is_file()
        else ""
    )
    return ModelError(
        model,
        f"the directory has no tokenizer: neither {' nor '.join(FILES)}{found}. Name another "
        "model's with --tokenizer, or take token ids in place of text with --skip-tokenizer-init "
        "(of LLM: tokenizer=NAME, skip_tokenizer_init=True)",
    )


def write_textless(directory: Path, vocab: int) -> None:
    """Write a tokenizer of `vocab` tokens that encodes no text, because the inserted space makes
    every text an unknown word, and decodes all tokens to an empty text.
    """
    model = {"type": "WordLevel", "vocab": {f"token_id:{i}": i for i in range(vocab)}}
    content = {"version": "1.0", "added_tokens": [], "model": model | {"unk_token": ""}}
    content["normalizer"] = {"type": "Prepend", "prepend": " "}
    content["decoder"] = {"type": "Replace", "pattern": {"Regex": "(?s).+"}, "content": ""}
    (directory / FILES[0]).write_text(json.dumps(content))


def write_stand_in(directory: Path, vocab: int) -> None:
    """Write the tokenizer's files for a vocabulary of `vocab` entries. Raises PenstockError if
    there are fewer entries than bytes, or more than words.
    """
    most = BYTES + SHORT + LONG
    if not BYTES <= vocab <= most:
        raise PenstockError(
            f"a model with {vocab} tokens and no tokenizer.json: a stand-in has {BYTES} to {most} "
            "tokens; name another model's with --tokenizer"
        )
    words = {symbol: i for i, symbol in enumerate(_byte_symbols())}
    words |= {"Ġ" + _word(i): BYTES + i for i in range(vocab - BYTES)}
    model = {"type": "BPE", "vocab": words, "merges": [], "ignore_merges": True}
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    content = {"version": "1.0", "added_tokens": [], "model": model}
    content |= {"pre_tokenizer": level | {"use_regex": True}, "decoder": level}
    (directory / FILES[0]).write_text(json.dumps(content))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))


def _byte_symbols() -> list[str]:
    """The character that represents each byte in byte-level BPE: the byte itself if it is
    printable, else a character from U+0100 on (GPT-2's table).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, BYTES)}
    others = [byte for byte in range(BYTES) if byte not in printable]
    moved = {byte: BYTES + at for at, byte in enumerate(others)}
    return [chr(moved.get(byte, byte)) for byte in range(BYTES)]


def _word(number: int) -> str:
    if number < SHORT:
        return _letters(number, 3)
    return _letters(number - SHORT, 4)


def _letters(number: int, count: int) -> str:
    base = len(ascii_lowercase)
    return "".join(ascii_lowercase[number // base**at % base] for at in reversed(range(count)))
