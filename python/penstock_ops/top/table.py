"""Formats rows as lines of a table of limited width. No IO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock_ops.top import words
from penstock_ops.top.history import DEAD, READY, UNREAD
from penstock_ops.top.rows import Quantiles, Row, TierUse


class Span(NamedTuple):
    """Text in one style: `bold`, `dim`, `red`, `yellow`, `green`, `reverse`, or plain."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    width: int
    value: Callable[[Row], str]
    at: int = 0
    """Minimum screen width at which the column is shown."""
    right: bool = True


SHORT = {"not ready": "no", "unhealthy": "down", "warming": "warm", "draining": "drain"}
"""Abbreviations of states, at most five characters."""
LEAST_NAME, MOST_NAME = 16, 44
INDENT = "  "


def _state(row: Row) -> str:
    return words.printable(row.state)


def _short_state(row: Row) -> str:
    return SHORT.get(row.state, _state(row))


def _models(row: Row) -> str:
    return words.printable(", ".join(row.models))


def _tiers(row: Row) -> str:
    return ", ".join(tier_words(tier, tier.name.partition(":")[0]) for tier in row.tiers)


def tier_words(tier: TierUse, name: str) -> str:
    """Text about a tier, such as `ram 1.2G/4.0G hit 12%`."""
    found = f"{words.printable(name)} {words.size(tier.used)}"
    if tier.capacity:
        found += f"/{words.size(tier.capacity)}"
    if tier.hit_share is not None:
        found += f" hit {words.share(tier.hit_share)}"
    return found + (" skipped" if tier.is_skipped else "")


def error_words(row: Row) -> str:
    """The error, and how long it has lasted or how long ago it occurred."""
    if not row.error:
        return ""
    error = words.printable(" ".join(row.error.split()))
    if row.error_seconds is None:
        return error
    passed = words.duration(row.error_seconds)
    return f"{error}, {passed} ago" if row.state == READY else f"{error}, for {passed}"


def _p50(found: Quantiles | None) -> str:
    return words.seconds(found.p50 if found else None)


def _p99(found: Quantiles | None) -> str:
    return words.seconds(found.p99 if found else None)


NUMBERS = (
    Column("RUN", 4, lambda row: words.count(row.running)),
    Column("WAIT", 4, lambda row: words.count(row.waiting)),
    Column("IN/s", 5, lambda row: words.count(row.tokens_in)),
    Column("OUT/s", 5, lambda row: words.count(row.tokens_out)),
    Column("KV", 4, lambda row: words.share(row.kv_use)),
    Column("HIT", 4, lambda row: words.share(row.hit_share)),
    Column("TTFT", 5, lambda row: _p50(row.ttft)),
    Column("P99", 5, lambda row: _p99(row.ttft)),
    Column("ITL", 5, lambda row: _p50(row.itl)),
    Column("P99", 5, lambda row: _p99(row.itl)),
)
MODEL = Column("MODEL", 24, _models, 120, right=False)
TIERS = Column("KV TIERS", 46, _tiers, 190, right=False)
ERROR = Column("LAST ERROR", 0, error_words, 150, right=False)
"""The error's column, which takes the rest of the line."""


def columns_of(width: int) -> list[Column]:
    """The columns that fit, without the name column."""
    found = [Column("STATE", 9, _state, right=False)]
    if width < MODEL.at:
        found = [Column("STATE", 5, _short_state, right=False)]
    found += [MODEL] if width >= MODEL.at else []
    found += NUMBERS
    found += [TIERS] if width >= TIERS.at else []
    while len(found) > 1 and LEAST_NAME + _taken(found) > width:
        found.pop()
    return found


def _taken(columns: Sequence[Column]) -> int:
    return sum(column.width + 1 for column in columns)


@dataclass(frozen=True, slots=True)
class Table:
    """Column positions of a table of `width` characters."""

    width: int
    name: int
    """Width of the name column."""
    columns: Sequence[Column]
    error: int
    """Width of the column for the last error; 0 if the error is on a separate line."""

    def head(self) -> Line:
        names = [words.padded("ADDRESS", self.name)]
        names += [words.padded(one.title, one.width, right=one.right) for one in self.columns]
        if self.error:
            names.append(ERROR.title)
        return (Span(words.padded(" ".join(names), self.width), "bold"),)

    def lines(self, row: Row, above: Row | None) -> list[Line]:
        """A row as lines; a second line has the data without a column. `above`: the gateway of a
        replica.
        """
        spans = [Span(words.padded(name_of(row), self.name), "" if above else "bold")]
        for column in self.columns:
            text = words.padded(column.value(row), column.width, right=column.right)
            style = state_style(row.state) if column.title == "STATE" else ""
            spans += [Span(" "), Span(text, style)]
        if self.has_room(row):
            spans += [Span(" "), Span(error_words(row), error_style(row))]
        note = self.note(row, above)
        return [fitted(spans, self.width), *([note] if note else [])]

    def has_room(self, row: Row) -> bool:
        """Whether the row's error fits in its column."""
        return self.error > 0 and words.width(error_words(row)) <= self.error

    def note(self, row: Row, above: Row | None) -> Line | None:
        shown = {column.title for column in self.columns}
        texts = []
        if MODEL.title not in shown and not (above and above.models == row.models):
            texts.append(_models(row))
        if TIERS.title not in shown:
            texts.append(_tiers(row))
        rest = INDENT.join(filter(None, texts))
        error = "" if self.has_room(row) else error_words(row)
        if not rest and not error:
            return None
        indent = INDENT * (2 if above else 1)
        # The error comes first, because the end of the line may be truncated.
        spans = [Span(indent), Span(error, error_style(row))]
        spans.append(Span((INDENT if error else "") + rest, "dim"))
        return fitted(spans, self.width)


def table(width: int, names: int) -> Table:
    """A table of `width` characters, where the longest name has `names` characters."""
    columns = columns_of(width)
    free = width - _taken(columns)
    if width < ERROR.at:
        return Table(width, max(free, 1), columns, 0)
    name = min(max(names, LEAST_NAME), MOST_NAME, free - len(ERROR.title) - 1)
    return Table(width, name, columns, free - name - 1)


def table_of(rows: Sequence[Row], width: int) -> Table:
    return table(width, max((words.width(name_of(row)) for row in rows), default=0))


def name_of(row: Row) -> str:
    """The address, indented below a gateway."""
    name = words.printable(row.name.removeprefix("http://"))
    return INDENT + name if row.kind == "replica" else name


def line_groups(rows: Sequence[Row], width: int) -> tuple[Line, list[list[Line]]]:
    """The table header, and the lines of each row."""
    found = table_of(rows, width)
    groups, above = [], None
    for row in rows:
        is_replica = row.kind == "replica"
        groups.append(found.lines(row, above if is_replica else None))
        above = above if is_replica else row
    return found.head(), groups


def plain(rows: Sequence[Row], width: int) -> list[str]:
    """The table as plain text, without trailing spaces."""
    head, groups = line_groups(rows, width)
    lines = [head, *(line for group in groups for line in group)]
    return ["".join(span.text for span in line).rstrip() for line in lines]


def fitted(spans: Sequence[Span], width: int) -> Line:
    """The spans, truncated to `width` columns."""
    kept, free = [], width
    for span in spans:
        text = words.cut(span.text, free)
        if text:
            kept.append(Span(text, span.style))
        free -= words.width(text)
        if free <= 0:
            break
    return tuple(kept)


def state_style(state: str) -> str:
    if state in (READY, UNREAD):
        return "green" if state == READY else "dim"
    return "red" if state in (DEAD, "unhealthy") else "yellow"


def error_style(row: Row) -> str:
    return "dim" if row.state == READY else state_style(row.state)
