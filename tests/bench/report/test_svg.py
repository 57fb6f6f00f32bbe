"""Drawings are well-formed and stay inside their frame, whatever the data are."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.bench.report import svg
from penstock.bench.report.charts import Axis, Extent, Gantt, Lane, Plot, Point, Series
from penstock.bench.report.svg_primitives import WIDE, line_path, simplified

from tests.bench.report import drawn

anything = st.floats(allow_nan=True, allow_infinity=True)
sensible = st.floats(-1e6, 1e6)
numbers = st.one_of(anything, sensible, st.sampled_from([0.0, 1e308, -1e308, 5e-324, math.nan]))
ranges = st.none() | st.tuples(sensible, sensible)
names = st.text(max_size=60)
points = st.builds(
    Point,
    x=numbers,
    y=numbers,
    label=st.text(max_size=8),
    x_range=ranges,
    y_range=ranges,
    emphasis=st.sampled_from(["", "knee"]),
    marked=st.booleans(),
)
series = st.builds(
    Series,
    name=names,
    style=st.integers(0, 30),
    points=st.lists(points, max_size=12).map(tuple),
    line=st.booleans(),
    light=st.booleans(),
)
axes = st.builds(
    Axis,
    label=names,
    unit=st.sampled_from(["", "ms"]),
    extent=st.sampled_from(Extent),
    zero=st.booleans(),
)
plots = st.builds(
    Plot,
    key=st.just("key"),
    title=names,
    caption=names,
    description=names,
    x=axes,
    y=axes,
    series=st.lists(series, max_size=5).map(tuple),
)
lanes = st.builds(
    Lane,
    number=st.integers(1, 10**6),
    due=numbers,
    sent=numbers,
    first=numbers,
    ended=numbers,
    failure=st.sampled_from(["", "short"]),
)
gantts = st.builds(
    Gantt,
    key=st.just("key"),
    title=names,
    caption=names,
    description=names,
    lanes=st.lists(lanes, max_size=12).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(plots)
def test_plots_of_anything_are_well_formed_and_inside_their_frame(plot: Plot) -> None:
    forms = drawn.drawings(svg.draw(plot))
    assert [form.get("class") for form in forms] == ["wide", "narrow"]
    for form in forms:
        drawn.assert_inside(form)


@settings(max_examples=100, deadline=None)
@given(gantts)
def test_gantt_charts_of_anything_are_well_formed_and_inside_their_frame(gantt: Gantt) -> None:
    for form in drawn.drawings(svg.draw(gantt)):
        drawn.assert_inside(form)


def plot(*shown: Series) -> Plot:
    return Plot(
        "key", "A & B <c>", "short", "what it says", Axis("load"), Axis("time", "ms"), shown
    )


def test_a_drawing_says_in_words_what_it_shows() -> None:
    form = drawn.drawings(svg.drawing(plot(), WIDE))[0]
    assert form.get("role") == "img"
    assert form.findtext(f"{drawn.SVG}title") == "A & B <c>"
    assert form.findtext(f"{drawn.SVG}desc") == "what it says"


def test_points_lie_where_their_values_are() -> None:
    shown = Series("s", 0, (Point(0, 0), Point(5, 50), Point(10, 100)))
    form = drawn.drawings(svg.drawing(plot(shown), WIDE))[0]
    line = next(one for one in form if one.get("class", "").startswith("line"))
    # The points are on one straight line, so the middle one is left out.
    (left, bottom), (right, top) = drawn.path_places(line.attrib["d"])
    assert left < right
    assert top < bottom
    grid = next(one for one in form if one.get("class") == "grid")
    xs = [x for x, _ in drawn.path_places(grid.attrib["d"])]
    ys = [y for _, y in drawn.path_places(grid.attrib["d"])]
    assert (left, right) == (min(xs), max(xs))
    assert (top, bottom) == (min(ys), max(ys))


def test_a_point_without_a_place_breaks_the_line() -> None:
    shown = Series("s", 0, (Point(0, 1), Point(1, 3), Point(2, math.nan), Point(3, 2), Point(4, 5)))
    markup = svg.drawing(plot(shown), WIDE)
    form = drawn.drawings(markup)[0]
    line = next(one for one in form if one.get("class", "").startswith("line"))
    assert line.attrib["d"].count("M") == 2


def test_every_label_and_emphasis_is_drawn_once() -> None:
    shown = Series(
        "s",
        0,
        tuple(Point(i, i * i, label=f"c{i}", emphasis="knee" if i == 3 else "") for i in range(6)),
    )
    form = drawn.drawings(svg.drawing(plot(shown), WIDE))[0]
    texts = [one.text for one in form.iter(f"{drawn.SVG}text")]
    assert [texts.count(f"c{i}") for i in (0, 1, 2, 4, 5)] == [1] * 5
    assert texts.count("c3 knee") == 1
    assert len(list(form.iter(f"{drawn.SVG}circle"))) == 1


def test_names_that_are_too_long_for_the_legend_are_cut() -> None:
    form = drawn.drawings(svg.drawing(plot(Series("x" * 500, 0, (Point(1, 1),))), WIDE))[0]
    texts = [one.text or "" for one in form.iter(f"{drawn.SVG}text")]
    assert any(text.startswith("xxx") and text.endswith("…") and len(text) < 120 for text in texts)


def test_a_simplified_line_stays_close_to_all_its_places() -> None:
    line = [(float(x), 30 * math.sin(x / 9)) for x in range(400)]
    kept = simplified(line, 0.2)
    assert len(kept) < len(line) / 2
    assert (kept[0], kept[-1]) == (line[0], line[-1])
    for (x0, y0), (x1, y1) in pairwise(kept):
        for x, y in line[int(x0) : int(x1)]:
            assert (
                abs((x1 - x0) * (y - y0) - (x - x0) * (y1 - y0)) / math.hypot(x1 - x0, y1 - y0)
                < 0.2001
            )


@pytest.mark.parametrize("places", [[(1.0, 2.0)], [(1.0, 2.0), (1.0, 2.0)]])
def test_lines_of_one_place_survive(places: list[tuple[float, float]]) -> None:
    assert line_path(simplified(places)).startswith("M1 2")


def test_failures_are_marked_and_phases_differ_in_thickness() -> None:
    lane = Lane(1, due=0, sent=1, first=2, ended=4)
    broken = Lane(2, due=0, sent=1, first=math.nan, ended=3, failure="timeout")
    unsent = Lane(3, due=2, sent=math.nan, first=math.nan, ended=math.nan, failure="unsent")
    gantt = Gantt("key", "t", "c", "d", (lane, broken, unsent))
    form = drawn.drawings(svg.drawing(gantt, WIDE))[0]
    crosses = [one for one in form if one.get("class") == "gx"]
    assert len(crosses) == 2
    widths = {
        one.get("class"): one.get("stroke-width")
        for one in form
        if one.get("class") in ("gq", "gp", "gd")
    }
    assert len(set(widths.values())) == 3
    segments = {
        one.get("class"): one.attrib["d"].count("M") for one in form if one.get("class") in widths
    }
    assert segments == {"gq": 2, "gp": 2, "gd": 1}
