"""The Python files of the wheel that use each other, also for types and in functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.project import tree


class Files:
    """The files by dotted name: a package is its `__init__`."""

    def __init__(self) -> None:
        self.paths = {
            path.relative_to(tree.PYTHON)
            .with_suffix("")
            .as_posix()
            .removesuffix("/__init__")
            .replace("/", "."): path
            for path in tree.package_sources()
        }

    def uses(self) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
        """The files that each file uses; a re-export alone is no use."""
        return {
            (name,): {
                (target,)
                for module, item in self._imports(name)
                if item not in self._exports(name) and (target := self._resolve(module, item))
            }
            - {(name,)}
            for name in self.paths
        }

    def _imports(self, name: str) -> Iterator[tuple[str, str | None]]:
        """Modules and the items that are imported from them."""
        for node in tree.syntax(self.paths[name]):
            if isinstance(node, ast.Import):
                yield from ((alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from ((node.module, alias.name) for alias in node.names)

    def _exports(self, name: str) -> set[str]:
        """`__all__` of a package."""
        if self.paths[name].name != "__init__.py":
            return set()
        return {
            item
            for node in tree.syntax(self.paths[name])
            if isinstance(node, ast.Assign)
            and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets)
            for item in ast.literal_eval(node.value)
        }

    def _resolve(self, module: str, item: str | None) -> str | None:
        """The file in which an item is written; None outside of the wheel."""
        if item and f"{module}.{item}" in self.paths:
            return f"{module}.{item}"
        if module not in self.paths:
            return None
        if item in self._exports(module):
            for other, name in self._imports(module):
                if name == item:
                    return self._resolve(other, item)
        return module
