"""Python files that use each other."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.project import tree


def dotted(path: Path, root: Path) -> str:
    """The name of a module below `root`; a package is its `__init__`."""
    name = path.relative_to(root).with_suffix("").as_posix()
    return name.removesuffix("/__init__").replace("/", ".")


class Files:
    """The files of the wheel and those of `tests`, by dotted name. With `at_import`, imports for
    types and in functions do not count.
    """

    def __init__(self, tests: Iterable[Path] = (), *, at_import: bool = False) -> None:
        self._at_import = at_import
        self.paths = {dotted(path, tree.PYTHON): path for path in tree.package_sources()}
        self.paths |= {dotted(path, tree.REPOSITORY): path for path in tests}

    def uses(self) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
        """The files that each file uses; a re-export alone is no use."""
        return {
            (name,): {
                (target,)
                for module, item in self.imports(name)
                if item not in self._exports(name) and (target := self._resolve(module, item))
            }
            - {(name,)}
            for name in self.paths
        }

    def imports(self, name: str) -> Iterator[tuple[str, str | None]]:
        """Modules and the items that are imported from them."""
        path = self.paths[name]
        for node in ast.parse(path.read_text()).body if self._at_import else tree.syntax(path):
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
        """The file in which an item is written; None for a file outside."""
        if item and f"{module}.{item}" in self.paths:
            return f"{module}.{item}"
        if module not in self.paths:
            return None
        if item in self._exports(module):
            for other, name in self.imports(module):
                if name == item:
                    return self._resolve(other, item)
        return module
