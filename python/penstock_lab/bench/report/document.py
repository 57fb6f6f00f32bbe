"""A report as plain data: sections with text, tables and charts. `page` writes it as HTML,
`markdown` as Markdown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock_lab.bench.report.charts import Chart


class Mark(Enum):
    """Verdict of a comparison: a sign and a word, so that colour is never the only cue."""

    BETTER = ("▲", "better")
    WORSE = ("▼", "worse")
    EVEN = ("≈", "even")
    WARNING = ("!", "")

    @property
    def sign(self) -> str:
        return self.value[0]

    @property
    def word(self) -> str:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell: its text, a ratio beside it, smaller detail below it, and a verdict's mark."""

    text: str
    ratio: str = ""
    detail: str = ""
    mark: Mark | None = None
    code: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    unit: str = ""
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first cell of a row names it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    groups: tuple[tuple[int, str], ...] = ()
    """Headings of row groups, each with the index of its first row."""
    notes: tuple[str, ...] = ()
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """A line of text. Warnings are highlighted."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Machine output, line by line, verbatim."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Charts:
    """A group of charts, side by side if there is room. If `folded`, it is closed at first."""

    title: str
    charts: tuple[Chart, ...]
    folded: bool = False


Block = Table | Note | Listing | Charts


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Headline:
    """The main result of a workload: a number, and a sentence about it."""

    subject: str
    figure: str
    """The number with its unit, such as `1.42×`."""
    caption: str
    """Meaning of the number."""
    text: str
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    facts: tuple[str, ...]
    warnings: tuple[str, ...]
    headlines: tuple[Headline, ...]
    sections: tuple[Section, ...]

    @property
    def charts(self) -> list[Chart]:
        """All charts, in the order of the document."""
        groups = [
            block
            for section in self.sections
            for block in section.blocks
            if isinstance(block, Charts)
        ]
        return [chart for group in groups for chart in group.charts]
