"""The documents as one site: links lead somewhere, every page is in the navigation."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from penstock.cli.gateway_flags import add_arguments
from tests.project import tree

DOCS = tree.REPOSITORY / "docs"
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`+[^`\n]+?`+")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]*)\)")
ANCHOR = re.compile(r'<a id="([^"]+)">')
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Anchors of a page: those that GitHub makes of headings, and its own."""
    text = FENCE.sub("", page.read_text())
    found = dict.fromkeys(ANCHOR.findall(text), 0)
    for heading in HEADING.findall(text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = found[anchor] = found.get(anchor, -1) + 1
        if number:
            found[f"{anchor}-{number}"] = 0
    return frozenset(found)


def links(page: Path) -> Iterator[str]:
    """Relative links of a page, those in code left out."""
    return iter(LINK.findall(CODE.sub("", FENCE.sub("", page.read_text()))))


def broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not target.is_relative_to(tree.REPOSITORY):
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target)


@pytest.mark.parametrize("page", [*tree.sources(".md")], ids=tree.relative)
def test_relative_links_and_anchors_resolve(page: Path) -> None:
    assert not [link for link in links(page) if broken(page, link)]


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('# A `b`: c\n\n```\n# no heading\n```\n## A b c\n<a id="own"></a>')
    assert anchors(page) == {"a-b-c", "a-b-c-1", "own"}
    readme = tree.REPOSITORY / "README.md"
    assert not any(broken(readme, link) for link in ("docs/index.md", "#start", "docs"))
    wrong = ("docs/none.md", "#none", "docs/index.md#none", "../elsewhere.md")
    assert all(broken(readme, link) for link in wrong)


def navigated(entry: object) -> list[str]:
    """Pages below an entry of `nav`."""
    if isinstance(entry, str):
        return [entry]
    assert isinstance(entry, dict | list)
    children = entry.values() if isinstance(entry, dict) else entry
    return [page for child in children for page in navigated(child)]


def test_every_page_is_in_the_navigation_once() -> None:
    site = yaml.safe_load((tree.REPOSITORY / "mkdocs.yml").read_text())
    assert site["strict"] is True
    listed = sorted(navigated(site["nav"]))
    assert listed == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_the_index_links_every_page() -> None:
    index = DOCS / "index.md"
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links(index)}
    assert not [page for page in DOCS.rglob("*.md") if page != index and page not in linked]


def test_flags_are_those_of_the_table() -> None:
    command = [sys.executable, str(tree.REPOSITORY / "scripts/flags_page.py")]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (DOCS / "flags.md").read_text() == made, (
        "run: python scripts/flags_page.py > docs/flags.md"
    )


PRINTED = (
    "no such file or directory, and no alias",
    "no such repository, or a private one",
    "forbids downloads: run",
    "run `penstock pull",
    "is not supported; supported:",
    "the directory has no weights:",
    "it is truncated or damaged",
    "choose another --port or stop the program that uses it",
    "A valid API key is required in the Authorization header",
    "does not exist. Served here",
    "This model's maximum context length is",
    "The server has as many requests as it may hold. Try again later.",
    "bytes for each rank are more than the",
    "Lower it to at most ram:",
    "unknown setting",
    "in the environment is no setting",
    "there are no adapters, and the base model would answer for one",
    "pip install 'penstock[cuda]' (5.3 GB)",
    "no GPU is visible; see CUDA_VISIBLE_DEVICES",
    "has compute capability",
    "no replica is healthy",
    "no replica takes requests yet",
    "reports no load; only this gateway's requests count",
    "does it want a key?",
    "is not there and cannot be made",
    "of shared memory: enlarge it",
    "start there the same command",
)
"""Parts of errors that docs/troubleshooting.md shows."""


def test_errors_of_the_page_are_those_of_the_code() -> None:
    page = " ".join((DOCS / "troubleshooting.md").read_text().split())
    code = "".join(
        path.read_text()
        for path in tree.sources(".py", ".rs")
        if path.is_relative_to(tree.PYTHON) or "/src/" in tree.relative(path)
    )
    assert not [part for part in PRINTED if part not in page or part not in code]


def test_the_reference_of_the_gateway_has_its_flags_and_metrics() -> None:
    page = (DOCS / "gateway-reference.md").read_text()
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    flags = [name for action in parser._actions for name in action.option_strings]
    crate = (path for path in tree.sources(".rs") if "crates/gateway/" in tree.relative(path))
    named = re.findall(
        r'"(penstock:gateway_\w+?)(?:_count|_sum)?"', "".join(map(tree.shipped_rust, crate))
    )
    assert len(flags) > 25
    assert len(named) > 20
    assert not [flag for flag in flags if f"`{flag}" not in page]
    assert not [name for name in named if f"`{name}`" not in page]
