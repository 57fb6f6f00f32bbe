"""Reads a file that NCCL refuses, as a person would: names each place that breaks the grammar, and
goes on with the tree that was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.core import did_you_mean, shortened
from penstock_ops.deploy.topology.grammar import ATTRIBUTES, CHILDREN, Element, Notice, shown

TOKEN = re.compile(r"<[^<>]*>|[^<>]+>|[^<>]+|[<>]")
ATTRIBUTE = re.compile(r"""([^\s=<>"'/]+)\s*=\s*("[^"]*"|'[^']*')""")
NAME = re.compile(r"</?\s*([^\s=<>/]*)")
INSIDE = {"net": "nic", "nvlink": "gpu", "c2c": "gpu"}
"""Elements that are read below a `pci` as if their parent had not been lost."""
DEEPEST = 100


@dataclass(slots=True)
class _Recovery:
    notices: list[Notice] = field(default_factory=list)
    root: Element = field(default_factory=lambda: Element(""))
    open: list[Element] = field(default_factory=list)

    @property
    def top(self) -> Element:
        return self.open[-1] if self.open else self.root

    def note(self, line: int, text: str) -> None:
        self.notices.append(Notice(line, text))

    def start(self, element: Element, *, single: bool) -> None:
        parent = INSIDE.get(element.name, "")
        if parent in CHILDREN.get(self.top.name, ()):
            self.note(element.line, f"<{element.name}> without <{parent}> around it: NCCL skips it")
            element = Element(parent, {}, [element], element.line)
            single = True
        while self.open and element.name not in CHILDREN.get(self.top.name, ()):
            if not any(element.name in CHILDREN.get(each.name, ()) for each in self.open):
                break
            self.unclosed(element.line)
        self.top.children.append(element)
        if not single and len(self.open) < DEEPEST:
            self.open.append(element)

    def unclosed(self, line: int) -> None:
        lost = self.open.pop()
        self.note(line, f"<{lost.name}> of line {lost.line} has no end: write </{lost.name}>")

    def end(self, name: str, line: int) -> None:
        if any(element.name == name for element in self.open):
            while self.open[-1].name != name:
                self.unclosed(line)
            self.open.pop()
        elif self.open and name not in ATTRIBUTES and did_you_mean(name, [self.top.name]):
            self.note(line, f"</{shown(name)}>: write </{self.open.pop().name}>")
        else:
            self.note(line, f"</{shown(name)}> closes nothing: its <{shown(name)}> is missing")


def recover(text: str) -> tuple[Element | None, Sequence[Notice]]:
    """The system that was meant, None without one, and the places that break the grammar."""
    recovery = _Recovery()
    for line, token in _tokens(_without_comments(text)):
        if not token.strip():
            if "\t" in token:
                recovery.note(line, "a tab between tags: write spaces")
        elif not token.endswith(">"):
            recovery.note(line, f"{shown(token.strip())!r} between tags: NCCL takes no text")
        elif not token.startswith("<"):
            _headless(recovery, line, token)
        else:
            _tag(recovery, line, token)
    while recovery.open:
        recovery.unclosed(text.count("\n") + 1)
    system = next((each for each in recovery.root.every("system")), None)
    return system, sorted(recovery.notices, key=lambda notice: notice.line)


def _without_comments(text: str) -> str:
    """The text with the line ends of comments alone. One without an end stays."""
    parts, at = [], 0
    while (begin := text.find("<!--", at)) >= 0 and (end := text.find("-->", begin + 4)) >= 0:
        parts += [text[at:begin], "\n" * text.count("\n", begin, end)]
        at = end + 3
    return "".join([*parts, text[at:]])


def _tokens(text: str) -> Iterator[tuple[int, str]]:
    """Tokens with the line where their first visible character is."""
    line = 1
    for match in TOKEN.finditer(text):
        token = match[0]
        blank = len(token) - len(token.lstrip())
        yield line + token.count("\n", 0, blank), token
        line += token.count("\n")


def _tag(recovery: _Recovery, line: int, token: str) -> None:
    found = NAME.match(token)
    name = found[1] if found else ""
    if "\n" in token.rstrip(">").rstrip():
        recovery.note(line, f"<{shown(name)}> is broken over lines: write each tag in one line")
    elif "\t" in token:
        recovery.note(line, f"<{shown(name)}> has a tab: write one space before each attribute")
    if token.startswith("</"):
        recovery.end(name, line)
        return
    recovery.start(_element(name, token, line), single=token.endswith("/>"))


def _headless(recovery: _Recovery, line: int, token: str) -> None:
    """An opening tag whose beginning is lost."""
    element = _element("", token, line)
    word = token.split(maxsplit=1)[0]
    names = [word] if word in ATTRIBUTES else _owners(element)
    if len(names) != 1:
        recovery.note(line, f"{shown(token.strip())!r} between tags: NCCL takes no text")
        return
    element.name = names[0]
    what = f"{shortened(' '.join(token.split()), 30)!r} has no <{element.name}: its tag begins late"
    recovery.note(line, what)
    recovery.start(element, single=token.endswith("/>"))


def _owners(element: Element) -> list[str]:
    """Elements that have all these attributes."""
    given = set(element.attributes)
    return [name for name, known in ATTRIBUTES.items() if given and given <= set(known)]


def _element(name: str, token: str, line: int) -> Element:
    found: dict[str, str] = {}
    for key, value in ATTRIBUTE.findall(token):
        found.setdefault(key, value[1:-1])
    return Element(name, found, [], line)
