"""Imports between rooms, and between the files of a crate, follow the tables in arrows.py."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.project import arrows, python_modules, rust_modules, tree

PREFIX = "penstock-"
PACKAGES = ("penstock", "penstock_lab", "penstock_ops")
FRONTS = ("penstock_lab.__init__", "penstock_ops.__init__")
"""Files of packages beside penstock with a docstring and no code."""


def crate_dependencies(manifest: Path) -> set[str]:
    """Penstock crates that a crate links, dev-dependencies left out (a test may use anything)."""
    data = tomllib.loads(manifest.read_text())
    return {
        name.removeprefix(PREFIX)
        for name in data.get("dependencies", {})
        if name.startswith(PREFIX)
    }


def imported_modules(path: Path) -> Iterator[tuple[str, bool]]:
    """Dotted names that a file imports, each with whether that happens when the file itself is
    imported.
    """
    nodes = tree.syntax(path)
    functions = (n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    deferred = {id(inner) for function in functions for inner in ast.walk(function)}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in deferred
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module in ("penstock", arrows.TORCH):
                for alias in node.names:
                    yield f"{node.module}.{alias.name}", id(node) not in deferred
            else:
                yield node.module, id(node) not in deferred


def torch_floor(module: str) -> str | None:
    """Floor of the torch backend in which a module is; None outside of that backend."""
    if not f"{module}.".startswith(f"{arrows.TORCH}."):
        return None
    return module.removeprefix(arrows.TORCH).strip(".").split(".")[0] or "__init__"


def test_every_crate_has_an_entry_and_keeps_to_it() -> None:
    crates = {path.parent.name: path for path in tree.manifests()}
    assert set(crates) == set(arrows.RUST), (
        "tests/project/arrows.py and crates/ name different rooms"
    )
    foreign = {name: crate_dependencies(path) - arrows.RUST[name] for name, path in crates.items()}
    assert not {name: extra for name, extra in foreign.items() if extra}


def test_every_product_links_only_those_below_it() -> None:
    products = {path.parent.name: tree.product(path) for path in tree.manifests()}
    assert set(products.values()) == set(arrows.PRODUCTS)
    upward = {
        (products[name], products[below])
        for name, allowed in arrows.RUST.items()
        for below in allowed
        if products[below] not in arrows.PRODUCTS[products[name]] | {products[name]}
    }
    assert not upward


def test_architecture_has_a_line_for_each_room() -> None:
    text = (tree.REPOSITORY / "ARCHITECTURE.md").read_text()
    listed = re.findall(r"^\* `([\w.-]+)`: ", text, re.MULTILINE)
    python = {room if "." in room else f"penstock.{room}" for room in arrows.PYTHON}
    rooms = set(arrows.RUST) | {room for room in python if "__" not in room}
    assert sorted(listed) == sorted(rooms)


def test_the_table_has_no_cycle() -> None:
    for table in (arrows.PRODUCTS, arrows.RUST, arrows.PYTHON, arrows.TORCH_FLOORS):
        settled: set[str] = set()
        while len(settled) < len(table):
            ready = {name for name, below in table.items() if below <= settled} - settled
            assert ready, (
                f"these rooms import each other in a circle: {sorted(set(table) - settled)}"
            )
            settled |= ready


def test_files_of_a_crate_use_each_other_in_no_circle() -> None:
    found = {
        (manifest.parent.name, *sorted("::".join(module) for module in circle))
        for manifest in tree.manifests()
        for circle in rust_modules.circles(rust_modules.Crate(manifest.parent / "src").uses())
    }
    assert not found


def test_python_files_use_each_other_in_no_circle() -> None:
    circles = rust_modules.circles(python_modules.Files().uses())
    found = {tuple(sorted(".".join(name) for name in circle)) for circle in circles}
    assert not found


def test_python_rooms_import_only_what_lies_below_them() -> None:
    wrong = []
    for path in tree.package_sources():
        here = tree.room(path)
        if here in FRONTS:
            continue
        assert here in arrows.PYTHON, (
            f"{tree.relative(path)}: no entry for {here} in tests/project/arrows.py"
        )
        allowed = arrows.PYTHON[here] | arrows.OPEN | {here}
        for name, _ in imported_modules(path):
            there = tree.room_of(name)
            if there in arrows.PYTHON and there not in allowed:
                wrong.append(f"{tree.relative(path)} imports {name}")
    assert not wrong


def test_floors_of_the_torch_backend_import_only_those_below_them() -> None:
    floors, wrong = set(), []
    for path in tree.package_sources():
        here = torch_floor(tree.module(path))
        if here is None:
            continue
        floors.add(here)
        allowed = arrows.TORCH_FLOORS.get(here, set()) | {here}
        for name, _ in imported_modules(path):
            there = torch_floor(name)
            if there is not None and there not in allowed:
                wrong.append(f"{tree.relative(path)} imports {name}, which is not below `{here}`")
    assert floors == set(arrows.TORCH_FLOORS), (
        "TORCH_FLOORS in tests/project/arrows.py and backends/torch name different floors"
    )
    assert not wrong, "see TORCH_FLOORS in tests/project/arrows.py"


def test_only_some_rooms_call_the_compiled_extension() -> None:
    wrong = [
        tree.relative(path)
        for path in tree.package_sources()
        for name, _ in imported_modules(path)
        if name.startswith("penstock._native") and tree.room(path) not in arrows.NATIVE
    ]
    assert not wrong


def test_the_base_install_needs_no_other_third_party_package() -> None:
    wrong = []
    for path in tree.package_sources():
        for name, at_import in imported_modules(path):
            top = name.split(".")[0]
            if (
                top in PACKAGES
                or top in sys.stdlib_module_names
                or tree.room(path) in arrows.BASE.get(top, set())
                or (top in arrows.FOLDERS and tree.relative(path).startswith(arrows.FOLDERS[top]))
            ):
                continue
            if at_import or tree.room(path) not in arrows.EXTRAS.get(top, set()):
                wrong.append(f"{tree.relative(path)} imports {name}")
    assert not wrong
