"""Writes data as YAML. Equal data gives equal bytes.

Texts are plain if every parser reads them as texts, and quoted otherwise: YAML 1.1 parsers read
`n`, `on` or `1e3` as other types. Texts of several lines are blocks. Keys keep their insertion
order. `ValueReference` and `Part` (see `parts`) become template expressions of a Helm chart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from penstock_ops.deploy.parts import Chosen, Condition, Noted, Part, Quoted, ValueReference

PLAIN = re.compile(r"(?:-{0,2}[A-Za-z]|/)[\w./@%+=~-]*(?:[:,][\w./@%+=~-]+)*", re.ASCII)
"""Texts that are plain unless they are words of NOT_PLAIN."""
BLOCK = re.compile(r"[^\s][^\x00-\x08\x0b-\x1f]*[^\s]\n?")
"""Texts of several lines that a block holds as they are."""
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
    if isinstance(item, Noted):
        yield f"{indent[:-2]}# {item.note}"
    if _is_nested(item):
        yield head
        yield from _lines(item, indent)
    elif _is_block(item):
        yield from _block(f"{head} ", str(item), indent)
    else:
        yield f"{head} {_scalar(item)}"


def _item(item: object, indent: str) -> Iterator[str]:
    if _is_block(item):
        yield from _block(f"{indent}- ", str(item), indent + "  ")
        return
    if not _is_nested(item):
        yield f"{indent}- {_scalar(item)}"
        return
    lines = list(_lines(item, indent + "  "))
    yield f"{indent}- {lines[0].lstrip()}"
    yield from lines[1:]


def _is_nested(item: object) -> bool:
    return isinstance(item, Mapping | list | tuple) and bool(item)


def _is_block(item: object) -> bool:
    if not isinstance(item, str) or "\n" not in item:
        return False
    return BLOCK.fullmatch(item) is not None and not UNPRINTED.search(item)


def _block(head: str, text: str, indent: str) -> Iterator[str]:
    """Lines of a literal block."""
    yield f"{head}|" if text.endswith("\n") else f"{head}|-"
    yield from (f"{indent}{line}" if line else "" for line in text.removesuffix("\n").split("\n"))


def _key(key: str) -> str:
    plain = PLAIN_KEY.fullmatch(key) and key.lower() not in NOT_PLAIN
    return key if plain else _scalar(key)


def _scalar(value: object) -> str:
    """A plain text, any other scalar as JSON, which is valid YAML, or the template expression of a
    reference.
    """
    if isinstance(value, ValueReference):
        return f"{{{{ toJson {value.expression} }}}}"
    if isinstance(value, Chosen):
        return f"{{{{ {value.expression} | toJson }}}}"
    if isinstance(value, str) and _is_plain(value):
        return value
    return UNPRINTED.sub(_escaped, json.dumps(value, ensure_ascii=False))


def _is_plain(text: str) -> bool:
    is_clear = PLAIN.fullmatch(text) is not None and text.lower() not in NOT_PLAIN
    return is_clear and not isinstance(text, Quoted)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
