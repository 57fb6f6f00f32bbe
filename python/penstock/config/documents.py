"""Reads YAML and JSON files within limits of size and depth, with the line of every value for error
messages.

A few hundred bytes of aliases can expand to gigabytes, and deep nesting can crash a reader. Size,
depth and number of values are therefore checked, with aliases expanded, before any object is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from penstock.core import PenstockError, shortened

LARGEST = 8 << 20
"""Maximum size of a file in bytes."""
DEEPEST = 100
"""Maximum nesting of mappings and lists."""
MOST = 250_000
"""Maximum number of values in a document; each use of an alias counts all values of its target."""
Steps = tuple[str | int, ...]
"""Path to a value: keys of mappings and indices of lists."""
_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _ValueConstructor(yaml.SafeLoader):
    """Builds values from nodes, and converts PyYAML's various exceptions to one type."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            said = repr(node.value) if isinstance(node, yaml.ScalarNode) else "a collection"
            why = f": {error}" if type(error) is ValueError else ""
            raise yaml.constructor.ConstructorError(
                None, None, f"{shortened(said)} is not a valid {tag}{why}", node.start_mark
            ) from error


@dataclass(frozen=True, slots=True)
class Tree:
    """One document of a file."""

    file: Path
    content: object
    lines: Mapping[Steps, int]
    """Line of each value, from 1. A member of a mapping has the line of its key."""

    def place(self, *steps: str | int) -> str:
        """`FILE:LINE` of a value, or of the container that would hold a missing value."""
        while steps not in self.lines:
            steps = steps[:-1]
        return f"{self.file}:{self.lines[steps]}"


def read_text(path: Path, flag: str = "", largest: int = LARGEST) -> str:
    """The text of a file. Raises PenstockError if it cannot be read, exceeds `largest` bytes, or is
    not UTF-8. `flag` is the flag that named the file, for the error.
    """
    place = f"{flag} {path}".lstrip()
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
        if len(data) > largest:
            raise PenstockError(f"{place}: over {largest >> 20} MiB, the largest that is read")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise PenstockError(f"{place}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PenstockError(f"{place}: not UTF-8 at byte {error.start}") from error


def compose(text: str, path: Path, loader: Any = _FASTEST) -> list[yaml.Node | None]:
    """The YAML documents of a text as nodes, after checks of the limits. Raises PenstockError with
    file and line.
    """
    try:
        _scan(text, path, loader)
        nodes: list[yaml.Node | None] = list(yaml.compose_all(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        said, line = _said(error)
    except yaml.reader.ReaderError as error:
        # libyaml reports a byte offset, Python's reader a character offset.
        own = issubclass(loader, yaml.reader.Reader)
        at = error.position if own else len(text.encode()[: error.position].decode(errors="ignore"))
        said, line = error.reason, text.count("\n", 0, at) + 1
    else:
        for node in nodes:
            if node is not None:
                _expanded(node, path, {}, set())
        return nodes
    raise PenstockError(f"{path}:{line}: not YAML: {said}")


def read_trees(path: Path) -> list[Tree]:
    """All YAML documents of a file. Raises PenstockError with file and line."""
    found = []
    for node in compose(read_text(path), path):
        lines: dict[Steps, int] = {(): 1}
        if node is None:
            found.append(Tree(path, None, lines))
            continue
        _note(node, (), lines)
        try:
            content = _ValueConstructor("").construct_document(node)
        except yaml.MarkedYAMLError as error:
            said, line = _said(error)
            raise PenstockError(f"{path}:{line}: not YAML: {said}") from error
        found.append(Tree(path, content, lines))
    return found


def read_tree(path: Path) -> Tree:
    """The only document of a file: a mapping whose values JSON can represent. Raises PenstockError
    with file and line.
    """
    trees = read_trees(path)
    if len(trees) != 1 or not isinstance(trees[0].content, dict):
        raise PenstockError(f"{path}:1: a mapping of settings is expected")
    _as_json(trees[0], trees[0].content, ())
    return trees[0]


def read_document(path: Path) -> dict[str, object]:
    """The mapping in a file, which has one document. Raises PenstockError with file and line."""
    content = read_tree(path).content
    assert isinstance(content, dict)
    return content


def _as_json(tree: Tree, value: object, steps: Steps) -> None:
    """Raise PenstockError for a value that JSON cannot represent, such as a date."""
    wrong = ""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                place, within = (
                    tree.place(*steps, str(key)),
                    ".".join(map(str, steps)) or "the file",
                )
                raise PenstockError(f"{place}: a name in {within} is {key}, no text: quote it")
            _as_json(tree, item, (*steps, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _as_json(tree, item, (*steps, at))
    elif isinstance(value, int):
        wrong = "a whole number of more than 64 bits" if value.bit_length() > 64 else ""
    elif isinstance(value, float):
        wrong = "" if math.isfinite(value) else f"the number {value}"
    elif not isinstance(value, (str, type(None))):
        wrong = f"a value of the type {type(value).__name__}"
    if wrong:
        remedy = "put it in quotes, if a text is meant"
        named = ".".join(map(str, steps))
        raise PenstockError(f"{tree.place(*steps)}: {named} is {wrong}, not of JSON: {remedy}")


def _scan(text: str, path: Path, loader: Any) -> None:
    """Check depth and number of values, without expanding aliases, before a tree is built."""
    depth = count = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1
        count += isinstance(event, yaml.NodeEvent)
        _within(depth, count, path, event.start_mark.line + 1 if event.start_mark else 1)


def _expanded(
    node: yaml.Node, path: Path, known: dict[int, tuple[int, int]], inside: set[int]
) -> tuple[int, int]:
    """Depth and number of values of a node after alias expansion. `known` has the results of nodes
    visited before, `inside` the nodes that contain this one.
    """
    key = id(node)
    if key in known:
        return known[key]
    if key in inside:
        raise PenstockError(f"{path}:{_line(node)}: an alias stands for what it is in")
    inside.add(key)
    depth, count = 0, 1
    for child in _children(node):
        below, values = _expanded(child, path, known, inside)
        depth, count = max(depth, below + 1), count + values
        _within(depth, count, path, _line(child))
    inside.remove(key)
    known[key] = depth, count
    return depth, count


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _within(depth: int, count: int, path: Path, line: int) -> None:
    if depth > DEEPEST:
        raise PenstockError(f"{path}:{line}: nested more than {DEEPEST} deep")
    if count > MOST:
        raise PenstockError(
            f"{path}:{line}: more than {MOST:,} values, with what aliases stand for"
        )


def _note(node: yaml.Node, path: Steps, lines: dict[Steps, int]) -> None:
    lines.setdefault(path, _line(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            steps = (*path, str(key.value) if isinstance(key, yaml.ScalarNode) else "")
            lines[steps] = _line(key)
            _note(value, steps, lines)
    elif isinstance(node, yaml.SequenceNode):
        for at, value in enumerate(node.value):
            _note(value, (*path, at), lines)


def _said(error: yaml.MarkedYAMLError) -> tuple[str, int]:
    """The message of a YAML parser's error, and its line."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    began = error.context_mark
    since = f" from line {began.line + 1}" if began and began.line + 1 != line else ""
    context = f"{error.context}{since}: " if error.context else ""
    return f"{context}{error.problem or ''}", line


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
