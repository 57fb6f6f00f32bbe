"""Charts are drawn, whatever the data are, with values where they belong."""

import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_lab.bench.report import drawing
from penstock_lab.bench.report.charts import Axis, Chart, Gantt, Plot, Point, Series
from penstock_lab.bench.report.drawing import draw, request_parts, write
from penstock_lab.bench.report.request_rows import RequestRow

pytestmark = pytest.mark.heavy

image = pytest.importorskip(
    "matplotlib.image", reason="matplotlib (the extra `plot`) is not installed"
)

POINTS = tuple(
    Point(2.0**i, 100.0 * i, label=str(i), y_range=(90.0 * i, 110.0 * i)) for i in range(1, 7)
)


def plot(*shown: Series, title: str = "A & B <c>", x: Axis | None = None) -> Plot:
    return Plot("key", title, "words", x or Axis("x"), Axis("y", "ms"), shown)


def request(due: float, sent: float, first: float, ended: float, failure: str = "") -> RequestRow:
    return RequestRow(due, sent, first, ended, ended, (), 2, failure)


WHOLE = request(0, 1, 2, 4)
BROKEN = request(0, 1, math.nan, 3, "timeout")
UNSENT = request(2, math.nan, math.nan, math.nan, "unsent")
ODD = Series("n" * 500, 9, (Point(math.nan, 1), Point(1, math.inf), Point(-1e300, 1e300)))
CHARTS: dict[str, Chart] = {
    "curve": plot(Series("_$a$", 0, POINTS), title="curve $x$ _y_"),
    "empty": plot(Series("a", 1, ()), title=""),
    "odd": plot(ODD, title="t" * 500),
    "gantt": Gantt("key", "g", "d", (WHOLE, BROKEN, UNSENT)),
    "no requests": Gantt("key", "g", "d", ()),
}

numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-1e6, 1e6),
    st.sampled_from([0.0, 1e308, 5e-324, math.nan]),
)
ranges = st.none() | st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
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
    name=st.text(max_size=60),
    style=st.integers(0, 30),
    points=st.lists(points, max_size=8).map(tuple),
    line=st.booleans(),
    light=st.booleans(),
)
axes = st.builds(
    Axis, st.text(max_size=60), log=st.sampled_from([None, False, True]), zero=st.booleans()
)
plots = st.builds(
    Plot,
    key=st.just("key"),
    title=st.text(max_size=60),
    description=st.just("d"),
    x=axes,
    y=axes,
    series=st.lists(series, max_size=4).map(tuple),
)
rows = st.builds(request, numbers, numbers, numbers, numbers, st.sampled_from(["", "short"]))
gantts = st.builds(
    Gantt,
    key=st.just("key"),
    title=st.text(max_size=60),
    description=st.just("d"),
    requests=st.lists(rows, max_size=8).map(tuple),
)


def svg(chart: Chart) -> ET.Element:
    return ET.fromstring(draw([chart])[chart.key].svg)


def texts(element: ET.Element) -> list[str]:
    return [
        "".join(one.itertext()).strip() for one in element.iter("{http://www.w3.org/2000/svg}text")
    ]


def lines(element: ET.Element, colour: str) -> list[str]:
    """Paths that are drawn in a colour, markers left out."""
    paths = element.iter("{http://www.w3.org/2000/svg}path")
    styled = [(one.get("d", ""), one.get("style", "")) for one in paths]
    return [d for d, style in styled if "fill: none" in style and f"stroke: {colour}" in style]


@settings(max_examples=10, deadline=None)
@given(st.one_of(plots, gantts))
def test_charts_of_anything_are_well_formed(chart: Chart) -> None:
    for path in svg(chart).iter("{http://www.w3.org/2000/svg}path"):
        assert not re.search(r"nan|inf", path.get("d", ""))


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_pictures_have_pixels_that_are_not_white(chart: Chart, tmp_path: Path) -> None:
    names = write(draw([chart]), tmp_path / "report")
    assert names == {"key": "report-key.png"}
    pixels = image.imread(tmp_path / "report-key.png")
    assert min(pixels.shape[:2]) > 200
    assert pixels[..., :3].min() < 0.5


def test_the_same_chart_gives_the_same_file() -> None:
    assert draw([CHARTS["curve"]]) == draw([CHARTS["curve"]])


def test_points_lie_where_their_values_are() -> None:
    shown = Series("s", 0, (Point(0, 0), Point(5, 50), Point(10, 100)))
    path = lines(svg(plot(shown)), drawing.COLOURS[0])[0]
    places = [tuple(map(float, pair)) for pair in re.findall(r"[ML] (\S+) (\S+)", path)]
    (left, bottom), middle, (right, top) = places
    assert left < right
    assert top < bottom
    assert middle == pytest.approx(((left + right) / 2, (top + bottom) / 2))


def test_a_point_without_a_place_breaks_the_line() -> None:
    shown = Series("s", 0, (Point(0, 1), Point(1, 3), Point(2, math.nan), Point(3, 2), Point(4, 5)))
    assert lines(svg(plot(shown)), drawing.COLOURS[0])[0].count("M") == 2


def test_labels_are_drawn_once_and_long_names_are_cut() -> None:
    ends = [Point(i, i * i, f"c{i}", emphasis="knee" if i == 3 else "") for i in range(6)]
    found = texts(svg(plot(Series("x" * 500, 0, tuple(ends)))))
    assert [found.count(f"c{i}") for i in (0, 1, 2, 4, 5)] == [1] * 5
    assert found.count("c3 knee") == 1
    assert any(re.fullmatch("x{20,60}…", text) for text in found)


@pytest.mark.parametrize(
    ("axis", "xs", "ticks"),
    [
        (Axis("x"), (1, 100), ["1", "2", "5", "10", "20", "50", "100"]),
        (Axis("x", ticks=(1, 3, 12)), (1, 12), ["1", "3", "12"]),
        (Axis("x", ends=(0, 100)), (40, 60), ["0", "20", "40", "60", "80", "100"]),
        (Axis("x", log=False, zero=True), (9_000, 10_000), ["0", "2,000", "4,000"]),
        (Axis("x", log=True, low=1.0), (1e-9, 2, 500), ["2", "5", "10"]),
    ],
    ids=["wide ranges are logarithmic", "measured", "given ends", "with zero", "from the lowest"],
)
def test_ticks(axis: Axis, xs: tuple[float, ...], ticks: list[str]) -> None:
    shown = Series("s", 0, tuple(Point(float(x), 1.0) for x in xs))
    assert texts(svg(plot(shown, x=axis)))[: len(ticks)] == ticks


def test_the_parts_of_a_request() -> None:
    assert request_parts(WHOLE) == ((0, 1), (1, 2), (2, 4))
    assert request_parts(BROKEN) == ((0, 1), (1, 3), None)
    assert request_parts(UNSENT) == (None, None, None)
    # One broken line for each part, after its sample in the legend is left out of the count.
    drawn = svg(CHARTS["gantt"])
    assert [max(d.count("M") for d in lines(drawn, colour)) for _, colour, _ in drawing.PARTS] == [
        2,
        2,
        1,
    ]
    assert "failed" in texts(drawn)
