"""Resources in YAML or JSON files, with the line of every value, for error messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.config.documents import Steps, read_trees
from penstock.core import PenstockError


@dataclass(frozen=True, slots=True)
class Document:
    """One resource in a file."""

    file: str
    content: Mapping[str, object]
    lines: Mapping[Steps, int]
    """Line of each value of the file, from 1."""
    root: Steps
    """Path of the resource in the file: the number of its document, and its index in a list."""

    def line(self, *steps: str | int) -> int:
        """Line of a value of the resource, or of the container that would hold it."""
        path = (*self.root, *steps)
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


def read_documents(path: Path) -> list[Document]:
    """All resources of a YAML or JSON file. Lists of resources are expanded. Raises PenstockError,
    which names the file and the location in it.
    """
    lines: dict[Steps, int] = {(): 1}
    found: list[Document] = []
    for number, tree in enumerate(read_trees(path)):
        if tree.content is not None:
            lines |= {(number, *steps): line for steps, line in tree.lines.items()}
            found += _resources(str(path), tree.content, lines, (number,))
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
