"""Writes a topology in the one form that NCCL's reader takes: a tag on each line, one space before
each attribute.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ops.deploy.topology.grammar import LONGEST, Element, TopologyError

FORBIDDEN = frozenset('"<&')


def write_topology(system: Element) -> str:
    """The text of a file. TopologyError for a value that the reader would take in another way."""
    return "\n".join(_lines(system, "")) + "\n"


def _lines(element: Element, indent: str) -> Iterator[str]:
    head = "".join(f' {name}="{_value(name, text)}"' for name, text in element.attributes.items())
    if not element.children:
        yield f"{indent}<{element.name}{head}/>"
        return
    yield f"{indent}<{element.name}{head}>"
    for child in element.children:
        yield from _lines(child, indent + "  ")
    yield f"{indent}</{element.name}>"


def _value(name: str, text: str) -> str:
    if len(text) > LONGEST or not text.isprintable() or FORBIDDEN & set(text):
        raise TopologyError(1, 1, f"{name}={text!r} cannot be written: use plain characters")
    return text
