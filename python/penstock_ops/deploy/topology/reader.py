"""Reads a topology file as NCCL reads it, which is not as XML.

The reader follows src/graph/xml.cc of NVIDIA/nccl 2.30.7 character by character: what ends NCCL's
reading is a `TopologyError`; what NCCL takes in another way than the file shows is a `Notice`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field

from penstock_ops.deploy.topology.grammar import (
    CHILDREN,
    LONGEST,
    MOST_ATTRIBUTES,
    MOST_CHILDREN,
    MOST_ELEMENTS,
    VERSION,
    Element,
    Notice,
    TopologyError,
    c_number,
    shown,
)

BETWEEN = re.compile("[ \n\r]*")
"""Characters that may be between tags."""
CONTROL = re.compile(r"[^\t\n\r -\U0010ffff]")
ENDS = re.compile("[ >/=\n\r]")
"""Characters that end a name; `=` that of an attribute."""
LARGEST = 1 << 20
"""Bytes of a file: a ConfigMap holds no more."""
DEEPEST = 100
"""Nesting. NCCL recurses without a limit; a topology needs less than ten."""


@dataclass(slots=True)
class Tag:
    kind: str
    """`open`, `close` or `single`; empty at the end of the file."""
    name: str = ""
    attributes: list[tuple[str, str]] = field(default_factory=list)
    line: int = 0


@dataclass(slots=True)
class Topology:
    """A file as NCCL has it after reading."""

    system: Element
    notices: list[Notice]


def read_topology(data: bytes) -> Topology:
    """The topology in a file. TopologyError names the line and column where NCCL ends, or where the
    file has what a ConfigMap cannot hold.
    """
    reader = _Reader(_text(data))
    reader.fill(Element(""), 0)
    systems = reader.systems
    if not systems:
        raise TopologyError(1, 1, 'there is no element <system version="1">')
    for extra in systems[1:]:
        reader.note(extra.line, "NCCL uses the first <system>; remove this one")
    return Topology(systems[0], sorted(reader.notices, key=lambda notice: notice.line))


def _text(data: bytes) -> str:
    if len(data) > LARGEST:
        raise TopologyError(1, 1, f"{len(data)} bytes; a ConfigMap holds {LARGEST}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TopologyError(line, 1, "not UTF-8, which a ConfigMap needs") from None
    if wrong := CONTROL.search(text):
        place = wrong.start()
        line = text.count("\n", 0, place) + 1
        column = place - text.rfind("\n", 0, place)
        raise TopologyError(line, column, f"a control character, U+{ord(wrong[0]):04X}")
    return text


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.count = text, 0, 0
        self.breaks = [each.start() for each in re.finditer("\n", text)]
        self.systems: list[Element] = []
        self.notices: list[Notice] = []

    def note(self, line: int, text: str) -> None:
        self.notices.append(Notice(line, text))

    def error(self, text: str) -> TopologyError:
        line = self.line
        start = self.breaks[line - 2] + 1 if line > 1 else 0
        return TopologyError(line, max(self.at - start, 1), text)

    def fill(self, parent: Element, depth: int) -> None:
        """Read all children of `parent`, and its closing tag unless it is the root."""
        if depth > DEEPEST:
            raise self.error(f"more than {DEEPEST} elements inside each other")
        while True:
            if self.count == MOST_ELEMENTS + 1:
                raise self.error(f"NCCL reads at most {MOST_ELEMENTS} elements")
            tag = self.tag()
            if not tag.kind:
                if parent.name:
                    raise self.error(f"<{parent.name}> of line {parent.line} has no end")
                return
            if tag.kind == "close" and parent.name:
                if tag.name != parent.name:
                    raise self.error(
                        f"</{shown(tag.name)}> in <{parent.name}> of line {parent.line}: "
                        f"write </{parent.name}>"
                    )
                return
            self.child(parent, tag, depth)

    def child(self, parent: Element, tag: Tag, depth: int) -> None:
        if tag.kind == "close":
            raise self.error(f"</{shown(tag.name)}> closes nothing")
        if tag.name not in CHILDREN.get(parent.name, ()):
            where = f"in <{parent.name}>" if parent.name else "outside <system>"
            self.note(tag.line, f"NCCL skips <{shown(tag.name)}> {where}, with all in it")
            if tag.kind == "open":
                self.skip(tag)
            return
        if len(parent.children) == MOST_CHILDREN:
            raise self.error(f"NCCL reads at most {MOST_CHILDREN} children of an element")
        element = Element(tag.name, self.attributes_of(tag), [], tag.line)
        parent.children.append(element)
        self.count += 1
        if tag.name == "system":
            self.check_version(element)
            self.systems.append(element)
        if tag.kind == "open":
            self.fill(element, depth + 1)

    def skip(self, unknown: Tag) -> None:
        """Skip to the end of an element. As in NCCL, only the number of tags counts, not their
        names.
        """
        depth = 1
        while depth:
            tag = self.tag()
            if not tag.kind:
                raise self.error(f"<{shown(unknown.name)}> of line {unknown.line} has no end")
            depth += {"open": 1, "close": -1, "single": 0}[tag.kind]

    def attributes_of(self, tag: Tag) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in tag.attributes[:MOST_ATTRIBUTES]:
            if not name:
                self.note(tag.line, "NCCL reads an attribute without a name: one space before each")
            elif name in found:
                self.note(tag.line, f"{name} is given twice; NCCL uses the first")
            if set(value) & set("<&"):
                self.note(tag.line, f"{shown(name)}: NCCL reads < and & as they are")
            found.setdefault(name, value)
        if extra := [name for name, _ in tag.attributes[MOST_ATTRIBUTES:]]:
            names = ", ".join(map(shown, extra))
            self.note(tag.line, f"NCCL reads {MOST_ATTRIBUTES} attributes and drops {names}")
        return {name: value for name, value in found.items() if name}

    def check_version(self, system: Element) -> None:
        if "version" not in system.attributes:
            raise self.error('<system> has no version: write <system version="1">')
        if c_number(system.get("version")) != VERSION:
            raise self.error(f"version is {shown(system.get('version'))!r}, NCCL reads version 1")

    def tag(self) -> Tag:
        """The next tag. Comments are skipped."""
        while True:
            between = BETWEEN.match(self.text, self.at)
            self.at = between.end() if between else self.at
            if self.at == len(self.text):
                return Tag("", line=self.line)
            if (character := self.next()) != "<":
                what = "a tab" if character == "\t" else repr(character)
                raise self.error(f"{what} between tags, where NCCL takes spaces and line ends only")
            line = self.line
            name, end = self.name()
            if not name.startswith("!--"):
                break
            self.comment(name[3:] + end)
        if not name and end == "/":
            name, end = self.name()
            if end != ">":
                raise self.error(f"</{shown(name)} has more than a name before its >")
            return Tag("close", name, line=line)
        return self.opened(Tag("open", name, line=line), end)

    def opened(self, tag: Tag, end: str) -> Tag:
        if tag.name.startswith("?"):
            raise self.error("NCCL takes no XML declaration: remove it")
        while end == " ":
            name, end = self.name(tag)
            if end == "=":
                value, end = self.value(name)
                tag.attributes.append((name, value))
            elif name or end == " ":
                tag.attributes.append((name, ""))
                if name:
                    self.note(tag.line, f"{shown(name)} has no value")
        if end == "/":
            tag.kind = "single"
            rest, end = self.name()
            if rest:
                self.note(tag.line, f"NCCL reads over {shown(rest)!r} after /")
        if end != ">":
            where = {"\n": "a line break", "\r": "a line break"}.get(end, repr(end))
            raise self.error(
                f"{where} in <{shown(tag.name)}>: a tag is one line, with one space before each "
                "attribute"
            )
        return tag

    def name(self, tag: Tag | None = None) -> tuple[str, str]:
        """A name, and the character that ends it, an `=` only for an attribute of `tag`."""
        begin = self.at
        end = ENDS.search(self.text, begin)
        self.at = end.start() if end else len(self.text)
        if self.at - begin > LONGEST:
            raise self.error(f"a name of more than {LONGEST} characters")
        character = self.next()
        if character == "=" and tag is None:
            raise self.error("= after a name that has no value")
        return self.text[begin : self.at - 1], character

    def value(self, name: str) -> tuple[str, str]:
        """A quoted value, and the character after it."""
        quote = self.next()
        if quote not in "'\"":
            raise self.error(f"the value of {shown(name)} has no quotes")
        begin = self.at
        end = self.text.find(quote, begin)
        self.at = len(self.text) if end < 0 else end
        if self.at - begin > LONGEST:
            raise self.error(f"the value of {shown(name)} has over {LONGEST} characters")
        self.next()
        value = self.text[begin : self.at - 1]
        if "\n" in value:
            self.note(self.line, f"{shown(name)} has a line break in its value")
        return value, self.next()

    def comment(self, begun: str) -> None:
        if begun.endswith("-->"):
            return
        end = self.text.find("-->", self.at)
        if end < 0:
            raise self.error("a comment has no end")
        self.at = end + 3

    def next(self) -> str:
        if self.at == len(self.text):
            raise self.error("the file ends in a tag")
        self.at += 1
        return self.text[self.at - 1]

    @property
    def line(self) -> int:
        """Line of the character that was read last."""
        return bisect_left(self.breaks, max(self.at - 1, 0)) + 1
