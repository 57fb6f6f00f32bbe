"""Configuration files: YAML in which every scalar stays text as written.

YAML does not assign types: `dtype: off` is the word off and `port: 0123` is 0123, as on the command
line and in the environment. The kind of the flag parses the text.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from penstock.config.documents import compose, read_text
from penstock.config.kinds import Section
from penstock.core import PenstockError

LARGEST = 1 << 20
"""Maximum size of a file in bytes. It is small, because the YAML loader that records exact
positions is slow.
"""
_TAG = "tag:yaml.org,2002:"
_WORDS = {"": "null", "~": "null", "true": "true", "false": "false", "null": "null"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a file: a key with its value."""

    name: str
    """The key as written."""
    place: str
    """File and line of the key, for error messages."""
    items: tuple[str | Section, ...]
    listed: bool
    """Whether the value is a list. If not, there is one item."""
    source: str
    """The value as text, for error messages."""

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


def read_settings(path: Path, as_json: Container[str] = ()) -> list[Setting]:
    """The settings of a file in order. Mappings under the keys `as_json` become JSON text. Raises
    PenstockError, which names the file, the line and what is expected.
    """
    return list(_File(path, as_json).settings())


class _File:
    def __init__(self, path: Path, as_json: Container[str]) -> None:
        self._path = path
        self._as_json = as_json
        self._text = read_text(path, "--config", LARGEST)

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
        # PyYAML's own loader and not libyaml's: its positions are character offsets into the text.
        nodes = compose(self._text, self._path, yaml.BaseLoader)
        if len(nodes) > 1:
            raise self._fault(nodes[1], "a second document, where one is expected")
        return nodes[0] if nodes else None

    def _item(self, setting: str, node: yaml.Node) -> str | Section:
        if not isinstance(node, yaml.MappingNode):
            return self._scalar(node)
        if setting.replace("-", "_") in self._as_json:
            return json.dumps(self._value(node))
        entries = list(self._entries(node))
        return Section(
            setting,
            f"{self._path}:{_line(node)}",
            tuple((name.replace("_", "-"), self._scalar(value)) for name, _, value in entries),
            tuple(f"{self._path}:{line}" for _, line, _ in entries),
        )

    def _value(self, node: yaml.Node) -> object:
        """The JSON value of a node. Quoted scalars are strings. Unquoted scalars that are not JSON
        literals, such as `yes`, are strings too.
        """
        if isinstance(node, yaml.MappingNode):
            return {name: self._value(value) for name, _, value in self._entries(node)}
        if isinstance(node, yaml.SequenceNode):
            self._untagged(node, "seq")
            return [self._value(item) for item in node.value]
        text = self._scalar(node)
        if isinstance(node, yaml.ScalarNode) and node.style is not None:
            return text
        try:
            return json.loads(_WORDS.get(text.lower(), text), parse_constant=str)
        except ValueError:
            return text

    def _entries(self, mapping: yaml.MappingNode) -> Iterator[tuple[str, int, yaml.Node]]:
        """The mapping's keys with their lines and values. A duplicate key is an error, even if one
        is spelled with `-` and the other with `_`.
        """
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
        """Raise PenstockError for a tag other than the default one of `kind`. Such a tag would have
        no effect, but the author of `!env NAME` expects one.
        """
        if node.tag != f"{_TAG}{kind}":
            tag = node.tag.replace(_TAG, "!!")
            raise self._fault(node, f"the tag {tag} is not understood; write the value alone")

    def _fault(self, node: yaml.Node | None, said: str) -> PenstockError:
        return PenstockError(f"{self._path}:{_line(node) if node else 1}: {said}")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
