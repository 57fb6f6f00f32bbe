"""Turns the keywords of `LLM` into settings: they are the same as on the command line, named like
the flags.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from penstock.config import FLAGS, Flag, Raw, foreign_keys, ignored_value
from penstock.core import InvalidValueError
from penstock.core.errors import did_you_mean
from penstock.llm.arguments import ArgumentError

Option = Any
"""Value of a keyword: a text, number or bool; a list for a flag that can be repeated."""
OWN = ("model", "tokenizer", "revision", "chat_template")
"""Arguments of `LLM` that are no settings of the engine."""
log = logging.getLogger("penstock.llm")


def raw_settings(options: Mapping[str, Option]) -> dict[str, Raw]:
    """Settings by key. A vLLM option without a counterpart is ignored with a warning, like its
    flag. The value None means not set. Raises ArgumentError for an unknown option, and
    InvalidValueError for a list where one value is expected.
    """
    known = {flag.key: flag for flag in FLAGS if flag.offline}
    found = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in known:
            found[name] = Raw(name, _texts(known[name], value))
        elif warning := ignored_value(name, value):
            log.warning("%s", warning)
        elif warning is None:
            raise ArgumentError(f"LLM has no argument {name}{_hint(name, known)}")
    return found


def _hint(name: str, known: Iterable[str]) -> str:
    if any(name == flag.key for flag in FLAGS):
        return ": it is a setting of the server, penstock serve"
    close = did_you_mean(name, [*known, *OWN, *foreign_keys()])
    return close or f"; there is {', '.join(sorted([*known, *OWN]))}"


def _texts(flag: Flag, value: Option) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        try:
            return (json.dumps(value),)
        except (TypeError, ValueError) as error:
            raise InvalidValueError(flag.key, value, f"JSON: {error}") from error
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        if not flag.repeatable:
            raise InvalidValueError(flag.key, value, flag.kind.expected())
        return tuple(map(str, value))
    return (str(value),)
