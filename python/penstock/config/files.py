"""Configuration files: YAML in which every scalar stays text as written.

Scalars are not typed by YAML: `dtype: off` is the word off and `port: 0123` is 0123, as on the
command line and in the environment. The kind of the flag parses the text.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from penstock.config.kinds import Section
from penstock.core import PenstockError

_TAG = "tag:yaml.org,2002:"
_DEEPEST, _MOST = 8, 1000
"""Levels and values of mappings that become JSON: aliases can make a few lines endless."""
_WORDS = {"": "null", "~": "null", "true": "true", "false": "false", "null": "null"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a file with its value."""

    name: str
    """As written."""
    place: str
    """File and line."""
    items: tuple[str | Section, ...]
    listed: bool
    """Whether the items are in a list; otherwise there is one."""
    source: str
    """The value, for errors."""

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


def read_settings(path: Path, as_json: Container[str] = ()) -> list[Setting]:
    """Entries of a file in order; mappings of the keys `as_json` become JSON. PenstockError names
    the file, the line and the expected text.
    """
    return list(_File(path, as_json).settings())


class _File:
    def __init__(self, path: Path, as_json: Container[str]) -> None:
        self._path = path
        self._as_json = as_json
        self._left = _MOST
        try:
            self._text = path.read_text("utf-8-sig")
        except OSError as error:
            raise PenstockError(f"--config {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise PenstockError(f"--config {path}: not UTF-8 at byte {error.start}") from error

    def settings(self) -> Iterator[Setting]:
        root = self._document()
        if root is None or root.value == "":
            return
        if not isinstance(root, yaml.MappingNode):
            raise self._fault(
                root, "settings are written as `name: value`, each on a line of its own"
            )
        for name, line, node in self._entries(root):
            listed = isinstance(node, yaml.SequenceNode)
            yield Setting(
                name,
                f"{self._path}:{line}",
                tuple(self._item(name, item) for item in (node.value if listed else [node])),
                listed,
                self._text[node.start_mark.index : node.end_mark.index].strip(),
            )

    def _document(self) -> yaml.Node | None:
        try:
            # Not libyaml's: its nesting is bounded by the C stack, and the file is short.
            return yaml.compose(self._text, yaml.BaseLoader)
        except yaml.MarkedYAMLError as error:
            said, line = _said(error)
        except yaml.reader.ReaderError as error:
            said, line = error.reason, self._text.count("\n", 0, error.position) + 1
        except RecursionError:
            said, line = "nested too deeply", 1
        raise PenstockError(f"{self._path}:{line}: not YAML: {said}")

    def _item(self, setting: str, node: yaml.Node) -> str | Section:
        if not isinstance(node, yaml.MappingNode):
            return self._scalar(node)
        if setting.replace("-", "_") in self._as_json:
            return json.dumps(self._value(node, _DEEPEST))
        entries = list(self._entries(node))
        return Section(
            setting,
            f"{self._path}:{_line(node)}",
            tuple((name.replace("_", "-"), self._scalar(value)) for name, _, value in entries),
            tuple(f"{self._path}:{line}" for _, line, _ in entries),
        )

    def _value(self, node: yaml.Node, levels: int) -> object:
        """What a node means in JSON. Quoted scalars are texts; so is what is no word or number of
        JSON, such as `yes`.
        """
        self._left -= 1
        if not levels or self._left < 0:
            raise self._fault(node, f"more than {_DEEPEST} levels or {_MOST} values")
        if isinstance(node, yaml.MappingNode):
            return {name: self._value(value, levels - 1) for name, _, value in self._entries(node)}
        if isinstance(node, yaml.SequenceNode):
            self._untagged(node, "seq")
            return [self._value(item, levels - 1) for item in node.value]
        text = self._scalar(node)
        if isinstance(node, yaml.ScalarNode) and node.style is not None:
            return text
        try:
            return json.loads(_WORDS.get(text.lower(), text), parse_constant=str)
        except ValueError:
            return text

    def _entries(self, mapping: yaml.MappingNode) -> Iterator[tuple[str, int, yaml.Node]]:
        """Keys with their lines and values; no key twice, in any spelling."""
        self._untagged(mapping, "map")
        seen: dict[str, int] = {}
        for key, value in mapping.value:
            name, line = self._scalar(key), _line(key)
            spelling = name.replace("_", "-")
            if spelling in seen:
                raise self._fault(
                    key, f"{name} stands on line {seen[spelling]} already; leave one of them out"
                )
            seen[spelling] = line
            yield name, line, value

    def _scalar(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            written = "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
            raise self._fault(node, f"{written}, where one value is expected")
        self._untagged(node, "str")
        return str(node.value)

    def _untagged(self, node: yaml.Node, kind: str) -> None:
        """Refuse tags: they would be ignored, and `!env NAME` has a meaning for its author."""
        if node.tag != f"{_TAG}{kind}":
            tag = node.tag.replace(_TAG, "!!")
            raise self._fault(node, f"the tag {tag} is not understood; write the value alone")

    def _fault(self, node: yaml.Node, said: str) -> PenstockError:
        return PenstockError(f"{self._path}:{_line(node)}: {said}")


def _said(error: yaml.MarkedYAMLError) -> tuple[str, int]:
    """Error of the parser, and its line."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    began = error.context_mark
    since = f" from line {began.line + 1}" if began and began.line + 1 != line else ""
    context = f"{error.context}{since}: " if error.context else ""
    return f"{context}{error.problem or ''}", line


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
