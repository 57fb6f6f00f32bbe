"""Pictures are drawn, with the series that the charts have."""

import math
from pathlib import Path

import pytest
from penstock.bench.report import png
from penstock.bench.report.charts import Axis, Chart, Gantt, Lane, Plot, Point, Series

pyplot_image = pytest.importorskip(
    "matplotlib.image", reason="matplotlib (the extra `plot`) is not installed"
)

POINTS = tuple(
    Point(2.0**i, 100.0 * i, label=str(i), y_range=(90.0 * i, 110.0 * i)) for i in range(1, 7)
)
CHARTS: list[Chart] = [
    Plot(
        "curve", "curve $x$ _y_", "c", "d", Axis("x", "ms"), Axis("y"), (Series("_$a$", 0, POINTS),)
    ),
    Plot(
        "empty", "", "c", "d", Axis("x"), Axis("y"), (Series("a", 1, ()),), notes=("nothing here",)
    ),
    Plot(
        "odd",
        "t" * 500,
        "c",
        "d",
        Axis("x"),
        Axis("y"),
        (Series("n" * 500, 9, (Point(math.nan, 1), Point(1, math.inf), Point(-1e300, 1e300))),),
    ),
    Gantt("gantt", "g", "c", "d", (Lane(1, 0, 1, 2, 3), Lane(2, 0, 1, math.nan, 2, "short"))),
    Gantt("empty", "g", "c", "d", ()),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    directory = tmp_path_factory.mktemp("png")
    return directory, png.write(CHARTS, directory / "report")


def test_every_chart_has_its_file(written: tuple[Path, dict[str, str]]) -> None:
    directory, names = written
    assert names == {chart.key: f"report-{chart.key}.png" for chart in CHARTS}
    assert {path.name for path in directory.iterdir()} == set(names.values())


@pytest.mark.parametrize("key", [chart.key for chart in CHARTS])
def test_pictures_have_pixels_that_are_not_white(
    written: tuple[Path, dict[str, str]], key: str
) -> None:
    directory, names = written
    pixels = pyplot_image.imread(directory / names[key])
    assert min(pixels.shape[:2]) > 200
    assert pixels[..., :3].min() < 0.5


def test_a_series_is_drawn_in_its_colour(written: tuple[Path, dict[str, str]]) -> None:
    directory, names = written
    pixels = pyplot_image.imread(directory / names["curve"])[..., :3]
    colour = [int(png.COLOURS[0][start : start + 2], 16) / 255 for start in (1, 3, 5)]
    assert (abs(pixels - colour).max(axis=2) < 0.02).sum() > 100
