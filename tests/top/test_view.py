from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock_ops.top.rows import Row
from penstock_ops.top.view import SORTS, View, pressed, shown_rows

A = Row("a", "server", "ready", "a", ("llama",), running=1)
G = Row("g", "gateway", "ready", "g", running=5)
R1 = Row("r1", "replica", "ready", "g", running=2)
R2 = Row("r2", "replica", "ejected", "g", running=3, error="breaker open")
B = Row("b", "server", "dead", "b", error="connection refused")
ROWS = [A, G, R1, R2, B]


def names(view: View) -> list[str]:
    return [row.name for row in shown_rows(view, ROWS)]


def after(*keys: str, view: View | None = None) -> View:
    view = view or View()
    for key in keys:
        view = pressed(view, key, len(ROWS), 3)
    return view


def test_orders_keep_replicas_below_their_gateway() -> None:
    assert names(View()) == ["a", "g", "r1", "r2", "b"]
    assert names(View(is_reversed=True)) == ["b", "g", "r1", "r2", "a"]
    assert names(View(sort="load")) == ["g", "r2", "r1", "a", "b"]
    assert names(View(sort="load", is_reversed=True)) == ["b", "a", "g", "r1", "r2"]
    assert names(View(sort="state"))[:3] == ["g", "r2", "r1"], "what is wrong is first"


def test_a_filter_finds_addresses_models_states_and_errors() -> None:
    assert names(View(filter="LLAMA")) == ["a"]
    assert names(View(filter="refused")) == ["b"]
    assert names(View(filter="ejected")) == ["g", "r2"], "a replica keeps its gateway"
    assert names(View(filter="g")) == ["g", "r1", "r2"]


def test_keys() -> None:
    assert after("q").is_over
    assert after("s").sort == list(SORTS)[1]
    assert after(*"s" * len(SORTS)).sort == "given"
    assert after("r").is_reversed
    assert after(" ").is_paused
    assert not after(" ", " ").is_paused
    assert after("?").mode == after("h").mode == "help"
    assert after("?", "q") == View(), "q leaves the help first"
    assert after("enter").mode == "one"
    assert after("enter", "escape").mode == "table"


def test_the_selection_stays_inside() -> None:
    assert [after(*keys).selected for keys in (("up",), ("down", "j"), ("end",), ("G", "k"))] == [
        0,
        2,
        4,
        3,
    ]
    assert after("page down", "page down", "page up").selected == 1
    assert after("end", "home").selected == 0
    assert pressed(replace(View(), selected=9), "x", 0, 3).selected == 0


def test_a_filter_is_typed() -> None:
    view = after("/", "q", "s", "backspace", "x")
    assert (view.mode, view.filter, view.is_over) == ("filter", "qx", False)
    assert after("enter", view=view).filter == "qx"
    assert after("escape", view=view).filter == ""
    assert after("enter", "escape", view=view).filter == ""


KEYS = st.sampled_from(["up", "down", "enter", "escape", "backspace", "/", *"qsrkjgG? hx"])


@given(st.lists(KEYS, max_size=40))
def test_any_keys_leave_a_view_that_can_be_shown(keys: list[str]) -> None:
    view = View()
    for key in keys:
        shown = shown_rows(view, ROWS)
        view = pressed(view, key, len(shown), 3)
        assert view.selected < max(len(shown), 1)
