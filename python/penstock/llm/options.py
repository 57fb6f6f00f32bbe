"""Turns the keywords of `LLM` into settings: they are the same as on the command line, named like
the flags.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from penstock.config import FLAGS, Raw, ignored_value
from penstock.core import PenstockError

Option = Any
"""Value of a keyword: a text, number or bool; a list for a flag that can be repeated."""
log = logging.getLogger("penstock.llm")


def raw_settings(options: Mapping[str, Option]) -> dict[str, Raw]:
    """Settings by key. A vLLM option without a counterpart is ignored with a warning, like its
    flag. The value None means not set. Raises PenstockError for an unknown option.
    """
    known = {flag.key for flag in FLAGS if flag.offline}
    found = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in known:
            found[name] = Raw(name, _texts(value))
        elif warning := ignored_value(name, value):
            log.warning("%s", warning)
        elif warning is None:
            close = get_close_matches(name, sorted(known), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise PenstockError(
                f"LLM has no option {name}{hint}; there is {', '.join(sorted(known))}"
            )
    return found


def _texts(value: Option) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        return (json.dumps(value),)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(str, value))
    return (str(value),)
