"""YAML documents with the line of every member."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from penstock.core import PenstockError

Steps = tuple[str | int, ...]
"""The way to a value: keys of mappings and places in lists."""


@dataclass(frozen=True, slots=True)
class Document:
    """One resource of a file."""

    file: str
    content: Mapping[str, object]
    lines: Mapping[Steps, int]
    """Line of each value of the file, from 1."""
    root: Steps
    """Where the resource is in the file: the number of its document, further steps in a list."""

    def line(self, *steps: str | int) -> int:
        """Line of a value of the resource, or of what it would be in."""
        path = (*self.root, *steps)
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


def read_documents(path: Path) -> list[Document]:
    """All resources of a YAML or JSON file; lists of resources become their items. PenstockError
    names the file and the place.
    """
    lines: dict[Steps, int] = {}
    try:
        text = path.read_text("utf-8-sig")
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        contents = list(yaml.safe_load_all(text))
    except OSError as error:
        raise PenstockError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PenstockError(f"{path}: not UTF-8 at byte {error.start}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise PenstockError(f"{path}: {error}") from error
    lines[()] = 1
    found: list[Document] = []
    for number, (node, content) in enumerate(zip(nodes, contents, strict=True)):
        if content is None:
            continue
        _note(node, (number,), lines)
        found += _resources(str(path), content, lines, (number,))
    return found


def _resources(
    file: str, content: object, lines: Mapping[Steps, int], root: Steps
) -> Iterator[Document]:
    if not isinstance(content, dict):
        raise PenstockError(f"{file}:{lines[root]}: a resource is a mapping")
    items = content.get("items")
    if str(content.get("kind")).endswith("List") and isinstance(items, list):
        for at, item in enumerate(items):
            yield from _resources(file, item, lines, (*root, "items", at))
        return
    yield Document(file, content, lines, root)


def _note(node: yaml.Node, path: Steps, lines: dict[Steps, int]) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            steps = (*path, str(key.value))
            lines[steps] = key.start_mark.line + 1
            _note(value, steps, lines)
    elif isinstance(node, yaml.SequenceNode):
        for at, value in enumerate(node.value):
            _note(value, (*path, at), lines)
