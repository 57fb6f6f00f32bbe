"""Members of JSON documents that tools write."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from penstock_ops.verify.error import ParseError


def document(text: str) -> Mapping[str, Any]:
    """A JSON object without repeated members. ParseError for anything else."""
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        line = error.lineno
        raise ParseError(line, text.split("\n")[line - 1].strip(), "JSON") from error
    except (ValueError, RecursionError) as error:
        raise ParseError(1, str(error), "JSON") from error
    if not isinstance(found, dict):
        raise ParseError(1, text.strip(), "a JSON object")
    return found


def member(value: object, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise ParseError(1, name, "a member of that name")
    return value[name]


def number_of(value: object, name: str) -> float:
    """A finite number that is not negative. Tools write "nan" for what they could not compute."""
    found = member(value, name)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < 1e18:
        raise ParseError(1, f"{name} {found!r}", "a number")
    if not math.isfinite(found):
        raise ParseError(1, f"{name} {found!r}", "a number")
    return float(found)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a member twice, of {[name for name, _ in pairs]}")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
