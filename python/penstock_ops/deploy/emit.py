"""Writes data as YAML. Equal data gives equal bytes.

Every text is quoted, because YAML 1.1 parsers read `n`, `on` or `1e3` as other types. Keys keep
their insertion order. `Place` and `Part` (see `parts`) become template expressions of a Helm chart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from penstock_ops.deploy.parts import Chosen, Condition, Part, Place

PLAIN_KEY = re.compile(r"[A-Za-z][\w./-]*")
UNPRINTED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""Characters that must be escaped: JSON leaves them as they are, but YAML forbids them or reads
them as line breaks.
"""
NOT_PLAIN = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def dump(value: Mapping[str, object]) -> str:
    """The text of one YAML document."""
    return "\n".join(_lines(value, "")) + "\n"


def _lines(value: object, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        entries = [(f"{indent}{_key(str(key))}:", item) for key, item in value.items()]
        yield from _parts(entries, lambda head, item: _entry(head, item, indent + "  "), indent)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        items = [(indent, item) for item in value]
        yield from _parts(items, lambda head, item: _item(item, head), indent)
    else:
        yield indent + _scalar(value)


def _parts(
    parts: Iterable[tuple[str, object]],
    written: Callable[[str, object], Iterator[str]],
    indent: str,
) -> Iterator[str]:
    """Lines of all entries of a mapping or list. Adjacent entries with the same condition share one
    template block.
    """
    for condition, group in groupby(parts, _condition):
        held = ((head, each.value if isinstance(each, Part) else each) for head, each in group)
        lines = (line for head, item in held for line in written(head, item))
        yield from lines if condition is None else under(condition, lines, indent)


def _condition(part: tuple[str, object]) -> Condition | None:
    return part[1].condition if isinstance(part[1], Part) else None


def under(condition: Condition, lines: Iterable[str], indent: str = "") -> Iterator[str]:
    """Template lines that are rendered only if the condition holds."""
    yield f"{indent}{{{{- if {condition.expression} }}}}"
    yield from lines
    yield f"{indent}{{{{- end }}}}"


def _entry(head: str, item: object, indent: str) -> Iterator[str]:
    """Lines of a mapping entry: the key with a scalar value, or the key and then the nested
    value.
    """
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
    """A scalar as JSON, which is valid YAML, or the template expression of a reference."""
    if isinstance(value, Place):
        return f"{{{{ toJson {value.expression} }}}}"
    if isinstance(value, Chosen):
        return f"{{{{ {value.expression} | toJson }}}}"
    return UNPRINTED.sub(_escaped, json.dumps(value, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
