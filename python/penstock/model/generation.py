"""Sampling defaults and special tokens of a checkpoint."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from penstock.model.errors import ModelError
from penstock.model.fields import Fields
from penstock.model.files import read_object, read_optional_object
from penstock.model.gguf import GgufHeader

GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER = "tokenizer.json"

# Settings of generation_config.json that the samplers do not support, with their neutral values.
_NOT_APPLIED: dict[str, tuple[object, ...]] = {
    "typical_p": (None, 1, 1.0),
    "no_repeat_ngram_size": (None, 0),
}

LEAST = 1e-6
"""Minimum accepted for settings that must be above 0."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling defaults in a checkpoint; a field is None if the checkpoint does not set it."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    not_applied: tuple[tuple[str, object], ...] = ()
    """Unsupported sampling settings as (key, value), reported by a warning at the start."""


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """Special tokens by id."""

    bos: int | None
    eos: int | None
    """The tokenizer's end token."""
    stop: tuple[int, ...]
    """All tokens that end an answer, ascending, including `eos`."""
    add_bos: bool | None
    """Whether plain text starts with `bos`. None: decided by the post-processor in
    tokenizer.json.
    """


def hf_defaults(directory: Path) -> GenerationDefaults:
    """Defaults from generation_config.json. As in vLLM, they apply whether or not `do_sample` is
    set.
    """
    file = directory / GENERATION_CONFIG
    return _defaults(Fields(file, read_optional_object(file)))


def sampling_defaults(
    own: GenerationDefaults, source: str = "auto", override: str | None = None
) -> GenerationDefaults:
    """Effective sampling defaults, by source: the checkpoint's `own` ("auto"), none ("vllm"), or
    another generation_config.json, given by file or directory. Members of the JSON object
    `override` take precedence.

    Raises ModelError, which names the file (or --override-generation-config) and the value at
    fault.
    """
    base = own
    if source != "auto":
        base = GenerationDefaults() if source == "vllm" else _defaults_of(Path(source))
    if override is None:
        return base
    flag = Path("--override-generation-config")
    try:
        members = json.loads(override)
    except ValueError as error:
        raise ModelError(flag, f"not valid JSON: {error}") from error
    if not isinstance(members, dict):
        raise ModelError(flag, "must be a JSON object")
    given = _defaults(Fields(flag, members))
    changed = {key: value for key, value in _members(given).items() if value not in (None, ())}
    return replace(base, **changed)


def _members(defaults: GenerationDefaults) -> dict[str, Any]:
    return {each.name: getattr(defaults, each.name) for each in dataclass_fields(defaults)}


def _defaults_of(path: Path) -> GenerationDefaults:
    file = path / GENERATION_CONFIG if path.is_dir() else path
    return _defaults(Fields(file, read_object(file)))


def _defaults(fields: Fields) -> GenerationDefaults:
    def number(key: str, low: float, high: float) -> float | None:
        return None if fields.get(key) is None else fields.number(key, low, high)

    return GenerationDefaults(
        temperature=number("temperature", 0.0, 100.0),
        top_k=None if fields.get("top_k") is None else fields.integer("top_k", -1, 1 << 30),
        top_p=number("top_p", LEAST, 1.0),
        min_p=number("min_p", 0.0, 1.0),
        repetition_penalty=number("repetition_penalty", LEAST, 100.0),
        not_applied=tuple(
            (key, fields.get(key))
            for key, neutral in _NOT_APPLIED.items()
            if fields.get(key) not in neutral
        ),
    )


def hf_tokens(directory: Path, config: Fields, vocab: int) -> TokenFacts:
    """Stop tokens of generation_config.json and config.json, and the tokenizer's end token.

    Each file may be incomplete: in Kimi's checkpoint, config.json has only the end-of-text token,
    and generation_config.json only the end-of-turn token. The config.json of a model with images
    may have them under `text_config`.
    """
    generation = Fields(
        directory / GENERATION_CONFIG, read_optional_object(directory / GENERATION_CONFIG)
    )
    tokenizer = Fields(
        directory / TOKENIZER_CONFIG, read_optional_object(directory / TOKENIZER_CONFIG)
    )
    listed = [
        token
        for fields in (generation, config, config.within("text_config"))
        if fields is not None
        for token in _token_list(fields, "eos_token_id", vocab)
    ]
    eos = _named_token(directory, tokenizer, "eos_token", vocab)
    if eos is None and listed:
        eos = listed[0]
    bos = _named_token(directory, tokenizer, "bos_token", vocab)
    if bos is None:
        bos = config.token("bos_token_id", vocab)
    return TokenFacts(
        bos=bos,
        eos=eos,
        stop=_ascending([eos, *listed]),
        add_bos=_optional_flag(tokenizer, "add_bos_token"),
    )


def gguf_tokens(header: GgufHeader, vocab: int) -> TokenFacts:
    """Special tokens from the `tokenizer.*` keys. End-of-turn and end-of-message tokens end an
    answer too. Many files have no keys for them, so tokens with the usual names for them count as
    well.
    """
    fields = header.fields("tokenizer.ggml.")
    eos = fields.token("eos_token_id", vocab)
    return TokenFacts(
        bos=fields.token("bos_token_id", vocab),
        eos=eos,
        stop=_ascending(
            [
                eos,
                fields.token("eot_token_id", vocab),
                fields.token("eom_token_id", vocab),
                *(token for token in header.ends if token < vocab),
            ]
        ),
        add_bos=_optional_flag(fields, "add_bos_token"),
    )


def _optional_flag(fields: Fields, key: str) -> bool | None:
    return None if fields.get(key) is None else fields.flag(key, default=False)


def _ascending(tokens: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(sorted({token for token in tokens if token is not None}))


def _token_list(fields: Fields, key: str, vocab: int) -> list[int]:
    """Token ids at `key`, which may hold one id or a list."""
    value = fields.get(key)
    if not isinstance(value, list):
        token = fields.token(key, vocab)
        return [] if token is None else [token]
    if not all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < vocab for item in value
    ):
        raise fields.refuse(key, f"token ids from 0 to {vocab - 1}")
    return value


def _named_token(directory: Path, tokenizer: Fields, key: str, vocab: int) -> int | None:
    """Id of the token whose text tokenizer_config.json gives as `key`."""
    text = _token_text(tokenizer.get(key))
    if text is None:
        return None
    for id_, token in _added_tokens(directory, tokenizer):
        if _token_text(token) == text and isinstance(id_, int) and 0 <= id_ < vocab:
            return id_
    return None


def _added_tokens(directory: Path, tokenizer: Fields) -> Iterator[tuple[object, object]]:
    """Special tokens as (id, token), from tokenizer_config.json, else from tokenizer.json."""
    decoder = tokenizer.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        for id_, token in decoder.items():
            yield (int(id_) if id_.isascii() and id_.isdigit() and len(id_) < 10 else None), token
        return
    file = directory / TOKENIZER
    added = read_object(file).get("added_tokens") if file.exists() else None
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict):
            yield token.get("id"), token


def _token_text(token: object) -> str | None:
    """Text of a special token, given as text or as an object with the text as `content`."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None
