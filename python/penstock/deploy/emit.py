"""Data as YAML: equal data gives equal bytes.

Every text is quoted: YAML 1.1 readers take `n`, `on` or `1e3` for something else. Keys keep the
order in which they were made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

PLAIN_KEY = re.compile(r"[A-Za-z][\w./-]*")
NOT_PLAIN = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def dump(value: Mapping[str, object]) -> str:
    """One document."""
    return "\n".join(_lines(value, "")) + "\n"


def _lines(value: object, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entry(f"{indent}{_key(str(key))}:", item, indent + "  ")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _item(item, indent)
    else:
        yield indent + _scalar(value)


def _entry(head: str, item: object, indent: str) -> Iterator[str]:
    """A key and its value, which begins behind the key or on the next line."""
    if _is_nested(item):
        yield head
        yield from _lines(item, indent)
    else:
        yield f"{head} {_scalar(item)}"


def _item(item: object, indent: str) -> Iterator[str]:
    if not _is_nested(item):
        yield f"{indent}- {_scalar(item)}"
        return
    lines = list(_lines(item, indent + "  "))
    yield f"{indent}- {lines[0].lstrip()}"
    yield from lines[1:]


def _is_nested(item: object) -> bool:
    return isinstance(item, Mapping | list | tuple) and bool(item)


def _key(key: str) -> str:
    plain = PLAIN_KEY.fullmatch(key) and key.lower() not in NOT_PLAIN
    return key if plain else _scalar(key)


def _scalar(value: object) -> str:
    """JSON, which YAML has as a part."""
    return json.dumps(value, ensure_ascii=False)
