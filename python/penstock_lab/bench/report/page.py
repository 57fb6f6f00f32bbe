"""Writes a report document as one self-contained HTML page, without scripts, fonts or network
requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files

from penstock_lab.bench.report.charts import Chart
from penstock_lab.bench.report.document import (
    Block,
    Cell,
    Charts,
    Column,
    Document,
    Headline,
    Listing,
    Note,
    Section,
    Table,
)
from penstock_lab.bench.report.drawing import Picture
from penstock_lab.bench.report.wording import clean

# Content Security Policy: the page cannot load anything, even if a result file contains markup.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@cache
def style_sheet() -> str:
    return files("penstock_lab.bench.report").joinpath("style.css").read_text(encoding="utf-8")


def page(document: Document, pictures: Mapping[str, Picture]) -> str:
    """Content of the HTML file. `pictures` has pictures by chart key; a chart without a picture is
    shown as text.
    """
    title = words(document.title)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{words(_POLICY)}">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" '
        'content="no-referrer">'
        f"<title>{title}</title><style>{style_sheet()}</style>"
    )
    sections = "".join(
        _section(section, index, pictures) for index, section in enumerate(document.sections)
    )
    body = f"<main>{_top(document)}{sections}</main>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def words(text: str) -> str:
    """Text escaped for an element's body or an attribute."""
    return escape(clean(text), quote=True)


def _top(document: Document) -> str:
    facts = "".join(f"<li>{words(fact)}</li>" for fact in document.facts)
    warnings = "".join(_note(Note(warning, warning=True)) for warning in document.warnings)
    cards = "".join(_card(one, index) for index, one in enumerate(document.headlines))
    links = "".join(
        f'<li><a href="#s{index}">{words(section.title)}</a></li>'
        for index, section in enumerate(document.sections)
    )
    return (
        f'<header><h1>{words(document.title)}</h1><ul class="facts">{facts}</ul></header>{warnings}'
        f'<div class="cards">{cards}</div><nav aria-label="Contents"><ul>{links}</ul></nav>'
    )


def _card(one: Headline, index: int) -> str:
    partial = '<span class="badge">partial results</span>' if one.partial else ""
    figure = ""
    if one.figure:
        figure = (
            f'<p class="figure"><b>{words(one.figure)}</b> <span>{words(one.caption)}</span></p>'
        )
    heading = f'<h2><a href="#s{index}">{words(one.subject)}</a>{partial}</h2>'
    return f"<article>{heading}{figure}<p>{words(one.text)}</p></article>"


def _section(section: Section, index: int, pictures: Mapping[str, Picture]) -> str:
    blocks = "".join(_block(block, pictures) for block in section.blocks)
    return f'<section id="s{index}"><h2>{words(section.title)}</h2>{blocks}</section>'


def _block(block: Block, pictures: Mapping[str, Picture]) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Note):
        return _note(block)
    if isinstance(block, Listing):
        lines = "\n".join(words(line) for line in block.lines)
        return f'<h3>{words(block.title)}</h3><pre tabindex="0">{lines}</pre>'
    return _charts(block, pictures)


def _note(note: Note) -> str:
    if note.warning:
        return f'<p class="warning"><b aria-hidden="true">!</b> {words(note.text)}</p>'
    return f'<p class="note">{words(note.text)}</p>'


def _charts(block: Charts, pictures: Mapping[str, Picture]) -> str:
    figures = "".join(_figure(chart, pictures.get(chart.key)) for chart in block.charts)
    inner = f'<div class="charts n{min(len(block.charts), 2)}">{figures}</div>'
    if block.folded:
        return _folded(block.title, inner, len(block.charts))
    return f"<h3>{words(block.title)}</h3>{inner}"


def _notes(notes: tuple[str, ...]) -> str:
    return f'<p class="note">{words(" ".join(notes))}</p>' if notes else ""


def _folded(title: str, inner: str, number: int = 0) -> str:
    beside = f" ({number})" if number > 1 else ""
    return f"<details><summary>{words(title)}{beside}</summary>{inner}</details>"


def _figure(chart: Chart, picture: Picture | None) -> str:
    """HTML of a chart: the picture, which includes title and notes, or else these as text."""
    said = words(chart.description)
    if picture:
        shown = f'<img src="{picture.data_url}" alt="{words(chart.title)}. {said}">'
    else:
        shown = f"<b>{words(chart.title)}</b><p>{said}</p>{_notes(chart.notes)}"
    return f'<figure id="{words(chart.key)}">{shown}</figure>'


def _table(table: Table) -> str:
    head = "".join(map(_heading, table.columns))
    groups = dict(table.groups)
    rows = "".join(
        _group(groups.get(index), len(table.columns)) + f"<tr>{_cells(row, table.columns)}</tr>"
        for index, row in enumerate(table.rows)
    )
    notes = _notes(table.notes)
    title = words(table.title)
    box = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{notes}"
    )
    return _folded(table.title, box) if table.folded else f"<h3>{title}</h3>{box}"


def _group(title: str | None, columns: int) -> str:
    if title is None:
        return ""
    return (
        f'<tr class="group"><th scope="rowgroup">{words(title)}</th><td '
        f'colspan="{columns - 1}"></td></tr>'
    )


def _heading(column: Column) -> str:
    unit = f"<small>{words(column.unit)}</small>" if column.unit else ""
    kind = ' class="num"' if column.numeric else ""
    return f'<th scope="col"{kind}>{words(column.title)}{unit}</th>'


def _cells(row: tuple[Cell, ...], columns: tuple[Column, ...]) -> str:
    parts = []
    for index, (cell, column) in enumerate(zip(row, columns, strict=True)):
        name = "th" if index == 0 else "td"
        scope = ' scope="row"' if index == 0 else ""
        kind = ' class="num"' if column.numeric else ""
        parts.append(f"<{name}{scope}{kind}>{_cell(cell)}</{name}>")
    return "".join(parts)


def _cell(cell: Cell) -> str:
    text = f"<code>{words(cell.text)}</code>" if cell.code and cell.text else words(cell.text)
    parts = [f"<span>{text}</span>"]
    if cell.ratio or (cell.mark and cell.mark.word):
        parts.append(_ratio(cell))
    if cell.detail:
        kind = ' class="mark-warning"' if cell.mark and not cell.mark.word else ""
        parts.append(f"<small{kind}>{words(cell.detail)}</small>")
    return "".join(parts)


def _ratio(cell: Cell) -> str:
    """HTML of a cell's ratio, with the verdict as a sign, and as a word for screen readers."""
    mark = f' {cell.mark.sign}<i class="heard"> {cell.mark.word}</i>' if cell.mark else ""
    kind = cell.mark.name.lower() if cell.mark else "plain"
    return f'<span class="mark-{kind}">{words(cell.ratio)}{mark}</span>'
