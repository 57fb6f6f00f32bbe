"""The files of a crate that use each other, by `use` and by inline paths, tests left out."""

from __future__ import annotations

import re
from pathlib import Path

USE = re.compile(r"^(pub(?:\([^)]*\))? )?use ((?:crate|super|self)\b[^;]*);", re.MULTILINE)
LOCAL_USE = re.compile(r"^(pub(?:\([^)]*\))? )?use ([a-z_]\w*::[^;]*);", re.MULTILINE)
INLINE = re.compile(r"(?<!in )\b((?:crate|super|self)(?:::\w+)+)")
TEST_MODULE = re.compile(
    r"^#\[cfg\((?:test|all\(test)[^\n]*\n(?:#[^\n]*\n)*(?:pub )?mod (\w+)", re.M
)
COMMENT = re.compile(r"//[^\n]*")

Module = tuple[str, ...]


class Crate:
    """The modules of one crate by path: the root is ()."""

    def __init__(self, source: Path) -> None:
        self.texts = {module_of(path, source): sourced(path) for path in source.rglob("*.rs")}
        for module, text in list(self.texts.items()):
            for name in TEST_MODULE.findall(text):
                self.texts.pop((*module, name), None)

    def uses(self) -> dict[Module, set[Module]]:
        """The modules that each module uses; a re-export alone is no use."""
        return {
            module: {
                target
                for public, path in self._paths(module)
                if not public and (target := self._resolve(path)) not in (None, module)
            }
            for module in self.texts
        }

    def _paths(self, module: Module) -> list[tuple[bool, Module]]:
        """Absolute paths of the `use` declarations, each with whether it is a re-export."""
        text = self.texts[module].split("#[cfg(test)]\nmod ")[0]
        found = [(bool(m[1]), m[2]) for m in USE.finditer(text)]
        found += [
            (bool(m[1]), f"self::{m[2]}")
            for m in LOCAL_USE.finditer(text)
            if (*module, m[2].split("::")[0]) in self.texts
        ]
        found += [(False, path) for path in INLINE.findall(USE.sub("", text))]
        return [
            (public, absolute(path, module)) for public, tree in found for path in expanded(tree)
        ]

    def _resolve(self, path: Module, depth: int = 0) -> Module | None:
        """The module in which the item at `path` is written."""
        module = path
        while module not in self.texts:
            module = module[:-1]
        name = path[len(module)] if len(path) > len(module) else None
        for _, other in self._paths(module) if name else ():
            if other[-1] == name and other != path and depth < 5:
                return self._resolve(other, depth + 1)
        return module


def module_of(path: Path, source: Path) -> Module:
    parts = path.relative_to(source).with_suffix("").parts
    return parts[:-1] if parts[-1] in ("mod", "lib") else parts


def sourced(path: Path) -> str:
    return COMMENT.sub("", path.read_text())


def expanded(tree: str) -> list[str]:
    """`a::{b, c::{d, e}}` as a::b, a::c::d and a::c::e; `x as y` as x."""
    tree = " ".join(tree.split())
    head, brace, rest = tree.partition("{")
    if not brace:
        return [tree.split(" as ")[0]]
    parts, depth, start = [], 0, 0
    inner = rest[: rest.rindex("}")]
    for at, sign in enumerate(inner + ","):
        depth += (sign == "{") - (sign == "}")
        if sign == "," and depth == 0:
            parts.append(inner[start:at].strip())
            start = at + 1
    return [path for part in parts if part for path in expanded(head.replace(" ", "") + part)]


def absolute(path: str, module: Module) -> Module:
    steps = path.split("::")
    here: Module = () if steps[0] == "crate" else module
    for step in steps:
        if step == "super":
            here = here[:-1]
        elif step not in ("crate", "self"):
            here = (*here, step)
    return here


def circles(uses: dict[Module, set[Module]]) -> list[set[Module]]:
    """Groups of modules that use each other, directly or through others."""
    reach = {module: set(targets) for module, targets in uses.items()}
    for middle in uses:
        for targets in reach.values():
            if middle in targets:
                targets |= reach[middle]
    groups = {frozenset(t for t in reach[m] if m in reach[t]) for m in uses if m in reach[m]}
    return [set(group) for group in groups]
