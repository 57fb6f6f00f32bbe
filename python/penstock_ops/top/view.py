"""The view state that keys change: sort order, filter, selection. No IO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from penstock_ops.top.rows import Row

Mode = Literal["table", "one", "help", "filter"]
"""Table, details of one row, help, or table while a filter is typed."""

MOST_FILTER = 60


def _number(value: float | None) -> float:
    return -1.0 if value is None else value


SORTS: dict[str, Callable[[Row], float]] = {
    "given": lambda row: 0.0,
    "state": lambda row: float(row.state != "ready"),
    "load": lambda row: max(_number(row.running), 0.0) + max(_number(row.waiting), 0.0),
    "tokens out": lambda row: _number(row.tokens_out),
    "KV use": lambda row: _number(row.kv_use),
    "TTFT": lambda row: _number(row.ttft.p99 if row.ttft else None),
    "ITL": lambda row: _number(row.itl.p99 if row.itl else None),
}
"""Sort orders by name; the largest number comes first."""


@dataclass(frozen=True, slots=True)
class View:
    mode: Mode = "table"
    sort: str = "given"
    is_reversed: bool = False
    filter: str = ""
    selected: int = 0
    """Index of the selected row among the rows shown."""
    is_paused: bool = False
    is_over: bool = False


def pressed(view: View, key: str, shown: int, page: int) -> View:
    """The view after a key press. `shown`: number of rows that pass the filter; `page`: number of
    rows that fit the screen.
    """
    if view.mode == "filter":
        return typed(view, key)
    if view.mode in ("help", "one") and key in ("q", "escape", "enter", "?", "h"):
        return replace(view, mode="table")
    return chosen(moved(view, key, shown, page), key)


def typed(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, mode="table")
    if key == "escape":
        return replace(view, mode="table", filter="")
    if key == "backspace":
        return replace(view, filter=view.filter[:-1])
    if len(key) == 1 and key.isprintable() and len(view.filter) < MOST_FILTER:
        return replace(view, filter=view.filter + key, selected=0)
    return view


def moved(view: View, key: str, shown: int, page: int) -> View:
    steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page}
    steps |= {"home": -shown, "g": -shown, "end": shown, "G": shown}
    place = view.selected + steps.get(key, 0)
    return replace(view, selected=max(min(place, shown - 1), 0))


def chosen(view: View, key: str) -> View:
    if key == "q":
        return replace(view, is_over=True)
    if key == "s":
        names = list(SORTS)
        return replace(view, sort=names[(names.index(view.sort) + 1) % len(names)])
    if key == "r":
        return replace(view, is_reversed=not view.is_reversed)
    if key == " ":
        return replace(view, is_paused=not view.is_paused)
    modes: dict[str, Mode] = {"/": "filter", "?": "help", "h": "help", "enter": "one"}
    if key == "escape":
        return replace(view, filter="")
    return replace(view, mode=modes[key]) if key in modes else view


def shown_rows(view: View, rows: Sequence[Row]) -> list[Row]:
    """The rows that pass the filter, in the chosen order. Replicas stay below their gateway, and a
    gateway is kept if one of its replicas passes.
    """
    groups = [list(group) for _, group in groupby(rows, lambda row: row.group)]
    measure = SORTS[view.sort]
    kept = [passing(view.filter.lower(), group) for group in groups]
    if view.sort == "given":
        ordered = kept[::-1] if view.is_reversed else kept
        return [row for group in ordered for row in group]
    down = not view.is_reversed
    ordered = sorted(filter(None, kept), key=lambda group: max(map(measure, group)), reverse=down)
    return [
        row
        for head, *replicas in ordered
        for row in (head, *sorted(replicas, key=measure, reverse=down))
    ]


def passing(wanted: str, group: Sequence[Row]) -> list[Row]:
    head, *replicas = group
    if matches(wanted, head):
        return [head, *replicas]
    kept = [row for row in replicas if matches(wanted, row)]
    return [head, *kept] if kept else []


def matches(wanted: str, row: Row) -> bool:
    texts = (row.name, row.state, row.error, *row.models)
    return any(wanted in text.lower() for text in texts)
