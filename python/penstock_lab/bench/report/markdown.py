"""Writes a report document as Markdown with GitHub's tables. Pictures are linked by file name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from penstock_lab.bench.report.document import (
    Block,
    Cell,
    Charts,
    Column,
    Document,
    Headline,
    Listing,
    Note,
    Table,
)
from penstock_lab.bench.report.wording import clean

_SPECIAL = re.compile(r"([\\`*_\[\]<>|&$~#!])")


def markdown(document: Document, pictures: Mapping[str, str]) -> str:
    """Content of the Markdown file. `pictures` has file names by chart key. A chart without a
    picture appears as text.
    """
    return "\n\n".join(_parts(document, pictures)) + "\n"


def text(words: str) -> str:
    """`words` on one line, with all characters escaped that Markdown could read as markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(clean(words).split()))


def _parts(document: Document, pictures: Mapping[str, str]) -> Iterator[str]:
    yield f"# {text(document.title)}"
    if document.facts:
        yield " · ".join(map(text, document.facts))
    for warning in document.warnings:
        yield f"> **Note:** {text(warning)}"
    if document.headlines:
        yield "\n".join(map(_headline, document.headlines))
    for section in document.sections:
        yield f"## {text(section.title)}"
        for block in section.blocks:
            yield from _block(block, pictures)


def _headline(one: Headline) -> str:
    figure = f"**{text(one.figure)}** {text(one.caption)}. " if one.figure else ""
    partial = " (partial results)" if one.partial else ""
    return f"- **{text(one.subject)}**{partial}: {figure}{text(one.text)}"


def _block(block: Block, pictures: Mapping[str, str]) -> Iterator[str]:
    if isinstance(block, Table):
        yield from _table(block)
    elif isinstance(block, Note):
        yield ("**Note:** " if block.warning else "") + text(block.text)
    elif isinstance(block, Listing):
        yield f"### {text(block.title)}"
        yield "\n".join("    " + " ".join(clean(line).split()) for line in block.lines)
    else:
        yield from _charts(block, pictures)


def _charts(block: Charts, pictures: Mapping[str, str]) -> Iterator[str]:
    yield f"### {text(block.title)}"
    for chart in block.charts:
        picture = pictures.get(chart.key)
        if picture:
            yield f"![{text(chart.title)}]({picture})"
        yield f"{text(chart.title)}. {text(' '.join([chart.description, *chart.notes]))}"


def _table(table: Table) -> Iterator[str]:
    yield f"### {text(table.title)}"
    head = "| " + " | ".join(map(_heading, table.columns)) + " |"
    rule = "|" + "|".join("--:" if column.numeric else "---" for column in table.columns) + "|"
    groups, empty = dict(table.groups), " |" * (len(table.columns) - 1)
    rows = []
    for index, row in enumerate(table.rows):
        rows += [f"| **{text(groups[index])}** |{empty}"] if index in groups else []
        rows.append("| " + " | ".join(map(_cell, row)) + " |")
    yield "\n".join([head, rule, *rows])
    for note in table.notes:
        yield text(note)


def _heading(column: Column) -> str:
    return text(f"{column.title} ({column.unit})" if column.unit else column.title)


def _cell(cell: Cell) -> str:
    words = text(cell.text) if cell.text else " "
    mark = f" {cell.mark.sign} {cell.mark.word}".rstrip() if cell.mark and cell.mark.word else ""
    parts = [words, f"{text(cell.ratio)}{mark}" if cell.ratio or mark else ""]
    parts += [f"({text(cell.detail)})"] if cell.detail else []
    return " ".join(part.strip() for part in parts if part.strip())
