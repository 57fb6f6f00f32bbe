from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ops.top import words
from penstock_ops.top.frame import frame
from penstock_ops.top.rows import Quantiles, Row, TierUse
from penstock_ops.top.table import plain
from penstock_ops.top.view import View

SERVER = Row(
    "http://10.0.0.9:8000",
    "server",
    "ready",
    "http://10.0.0.9:8000",
    models=("smollm2",),
    running=3,
    waiting=12,
    tokens_in=1234.5,
    tokens_out=88,
    kv_use=0.42,
    hit_share=0.61,
    ttft=Quantiles(0.085, 1.234),
    itl=Quantiles(0.0042, 0.031),
    tiers=(TierUse("ram", 1.2 * 2**30, 4 * 2**30, 0.12, False),),
    error="2 refused (queue_full)",
    error_seconds=12,
    age=0.2,
)
GATEWAY = Row("http://gw:8080", "gateway", "ready", "http://gw:8080", ("smollm2",), age=0.1)
REPLICA = replace(SERVER, name="10.0.0.1:8000", kind="replica", group=GATEWAY.name, error="")
LOST = Row(
    "10.0.0.2:8000",
    "replica",
    "unhealthy",
    GATEWAY.name,
    ("other",),
    error="health check: connection refused",
    error_seconds=83,
)
DEAD = Row(
    "http://h:1", "server", "dead", "http://h:1", error="connection refused", error_seconds=83
)
ROWS = [SERVER, GATEWAY, REPLICA, LOST, DEAD]


def texts(rows: list[Row], view: View, width: int, height: int) -> list[str]:
    lines = frame(rows, view, (width, height), "12:34:56")
    return ["".join(span.text for span in line) for line in lines]


def test_at_80_columns_what_has_no_column_is_below_its_row() -> None:
    assert plain(ROWS, 80) == [
        "ADDRESS            STATE  RUN WAIT  IN/s OUT/s   KV  HIT  TTFT   P99   ITL   P99",
        "10.0.0.9:8000      ready    3   12  1.2k    88  42%  61%  85ms 1.23s 4.2ms  31ms",
        "  2 refused (queue_full), 12s ago  smollm2  ram 1.2G/4.0G hit 12%",
        "gw:8080            ready    -    -     -     -    -    -     -     -     -     -",
        "  smollm2",
        "  10.0.0.1:8000    ready    3   12  1.2k    88  42%  61%  85ms 1.23s 4.2ms  31ms",
        "    ram 1.2G/4.0G hit 12%",
        "  10.0.0.2:8000    down     -    -     -     -    -    -     -     -     -     -",
        "    health check: connection refused, for 1m23s  other",
        "h:1                dead     -    -     -     -    -    -     -     -     -     -",
        "  connection refused, for 1m23s",
    ]


def test_at_200_columns_a_row_is_a_line() -> None:
    lines = plain(ROWS, 200)
    assert len(lines) == 1 + len(ROWS)
    assert "MODEL" in lines[0]
    assert lines[0].split()[-4:] == ["KV", "TIERS", "LAST", "ERROR"]
    assert "smollm2" in lines[1]
    assert lines[1].split("31ms ")[1].split("  ")[0] == "ram 1.2G/4.0G hit 12%"
    assert lines[1].endswith("  2 refused (queue_full), 12s ago")
    assert lines[4].startswith("  10.0.0.2:8000")
    assert " unhealthy " in lines[4]


@pytest.mark.parametrize("mode", ["table", "one", "help", "filter"])
@pytest.mark.parametrize("size", [(80, 24), (200, 50), (120, 10), (20, 5), (3, 2), (1, 1)])
def test_the_screen_is_filled_and_never_left(mode: str, size: tuple[int, int]) -> None:
    view = View(mode=mode, filter="0", selected=2, sort="load")  # type: ignore[arg-type]
    lines = texts(ROWS * 9, view, *size)
    assert len(lines) == size[1]
    assert all(words.width(line) <= size[0] for line in lines)


HOSTILE = st.text(max_size=300) | st.sampled_from(["\x1b]0;t\x07", "\x1b[2J" * 40, "模" * 200])


@given(HOSTILE, HOSTILE, HOSTILE, st.integers(1, 220), st.integers(1, 60), st.integers(0, 9))
def test_no_remote_text_reaches_the_terminal_as_it_is(
    name: str, model: str, error: str, width: int, height: int, selected: int
) -> None:
    tier = TierUse(model, 1, 2, None, True)
    hostile = replace(LOST, name=name, models=(model,), error=error, state=error, tiers=(tier,))
    for mode in ("table", "one"):
        view = View(mode=mode, selected=selected, filter=model)  # type: ignore[arg-type]
        lines = texts([SERVER, GATEWAY, hostile], view, width, height)
        assert len(lines) == height
        assert all(line.isprintable() for line in lines)
        assert all(words.width(line) <= width for line in lines)


def test_an_error_that_has_no_room_is_below_its_row() -> None:
    long = "the engine failed to start: " + "reason " * 9
    _, first, below = plain([replace(SERVER, error=long)], 200)
    assert "engine" not in first
    assert below.startswith(f"  {long.strip()}, 12s ago")


def test_a_tier_has_its_path_where_there_is_room() -> None:
    row = replace(SERVER, tiers=(TierUse("disk:/var/kv", 64 * 2**30, 0, None, True),))
    assert "disk 64G skipped" in plain([row], 200)[1]
    assert "disk:/var/kv 64G skipped" in "\n".join(texts([row], View(mode="one"), 80, 24))


def test_the_selected_row_is_always_in_sight() -> None:
    rows = [replace(SERVER, name=f"host-{n}:1", group=f"host-{n}") for n in range(40)]
    for selected in range(40):
        view = View(selected=selected)
        lines = frame(rows, view, (80, 24), "12:34:56")
        marked = [line for line in lines if line and line[0].style == "reverse"]
        assert f"host-{selected}:1" in marked[0][0].text
        assert len(marked) == 2, "and the line below it"


def test_what_is_set_is_in_the_last_line() -> None:
    view = View(sort="load", is_reversed=True, filter="gw", is_paused=True)
    last = texts(ROWS, view, 80, 24)[-1]
    assert last.endswith("order: load, reversed  filter: gw  PAUSED")
    assert last.startswith("q quit  s sort")


def test_a_filter_that_nothing_passes_says_so() -> None:
    assert "no row has 'xyz'" in "\n".join(texts(ROWS, View(filter="xyz"), 80, 24))


def test_one_row_has_all_that_is_known() -> None:
    shown = "\n".join(texts(ROWS, View(mode="one"), 80, 24))
    for text in ("10.0.0.9:8000", "4.2ms, 31ms", "ram 1.2G/4.0G hit 12%", "queue_full", "0.2s ago"):
        assert text in shown
