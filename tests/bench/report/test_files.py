"""Reading a directory: results of both tools, other files by name."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from penstock.core import PenstockError
from penstock_lab.bench.report.files import read
from penstock_lab.bench.report.request_rows import LATENCIES, pooled
from penstock_lab.bench.report.runs import collect, spread, tail_percentile
from tests.bench.report import examples
from tests.bench.report.examples import SERVERS, SHAPES


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": [1,', "is no JSON (line 1"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"[" * 200_000, "is nested too deeply"),
        (b"[1, 2]", "holds no result"),
        (b"", "holds no result"),
        (b'{"completed": 3}', "holds no result"),
        (b'{"completed": 3, "duration": "long"}', "holds no result"),
    ],
)
def test_what_is_no_result_is_named_and_left_out(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "odd.json").write_bytes(content)
    examples.write(tmp_path, examples.load(SERVERS[0], SHAPES[4], 0), "good")
    found = read(tmp_path)
    assert [name for name, _ in found.results] == ["good.json"]
    (skipped,) = found.skipped
    assert skipped.name == "odd.json"
    assert reason in skipped.reason


def test_results_come_in_the_order_of_time(tmp_path: Path) -> None:
    def run(name: str, date: int) -> str:
        return json.dumps(
            {"duration": 1.0, "completed": 1, "label": name, "date": f"2026010{date}"}
        )

    (tmp_path / "a.json").write_text(run("late", 2))
    (tmp_path / "b.json").write_text(run("early", 1))
    (tmp_path / "c.json").write_text(f"{run('later', 3)}\n{run('latest', 4)}\n")
    (tmp_path / "comparison.json").write_text('{"title": "T"}')
    found = read(tmp_path)
    assert [result["label"] for _, result in found.results] == ["early", "late", "later", "latest"]
    assert found.comparison == {"title": "T"}
    assert not found.skipped


def test_other_files_are_no_matter(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not ours")
    assert read(tmp_path).skipped == ()


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="is no directory"):
        read(tmp_path / "nowhere")


def test_numbers_that_are_none_are_dropped(tmp_path: Path) -> None:
    odd = (
        '{"completed": "x", "failed": null, "duration": 1, "median_ttft_ms": NaN, "mean_ttft_ms": '
        "Infinity, "
        f'"output_throughput": 1{"0" * 400}, "request_throughput": true, "ttfts": [1, "x", null], '
        '"itls": [1, [null, "a", 0.5], [1e999]], "penstock": {"failures": 3, "point": "a", "axis": '
        "{}, "
        '"usage": [], "detail": 7, "repeat": -1e400, "failure_examples": {}, "argv": 5}}'
    )
    (tmp_path / "odd.json").write_text(odd)
    (run,) = collect(read(tmp_path)).runs
    assert (run.result["completed"], run.failed, run.repeat) == (0, 0, 0)
    assert [run.value(key) for key in ("median_ttft_ms", "mean_ttft_ms", "output_throughput")] == [
        None
    ] * 3
    assert run.workload.point is None
    assert run.requests is not None
    assert len(run.requests) == 3


def test_files_that_were_appended_to_hold_several_results(tmp_path: Path) -> None:
    found = examples.load(SERVERS[0], SHAPES[4], 0)
    (tmp_path / "many.json").write_text(f"{json.dumps(found)}\n{json.dumps(found)}\n")
    assert len(read(tmp_path).results) == 2


@pytest.mark.parametrize("kind", ["penstock", "vllm"])
def test_latencies_of_single_requests_give_the_statistics_of_the_file(
    tmp_path: Path, kind: str
) -> None:
    if kind == "vllm":
        examples.vllm(tmp_path)
    else:
        examples.write(tmp_path, examples.load(SERVERS[4], SHAPES[0], 0), "one")
    (run,) = collect(read(tmp_path)).runs
    assert run.requests is not None
    for latency in LATENCIES:
        values = pooled(run.requests, latency)
        for rank in (50, 99):
            expected = run.value(f"p{rank}_{latency.key}_ms")
            assert np.percentile(values, rank) == pytest.approx(expected, rel=1e-9)


def test_times_of_vllm_count_from_the_first_that_was_due(tmp_path: Path) -> None:
    examples.vllm(tmp_path)
    (run,) = collect(read(tmp_path)).runs
    assert run.requests is not None
    assert min(request.due for request in run.requests) == 0
    assert all(request.sent - request.due == pytest.approx(0.01) for request in run.requests)
    assert run.server == "vllm"


def test_files_of_vllm_at_several_concurrencies_are_a_sweep(tmp_path: Path) -> None:
    for limit in (1, 8):
        found = examples.load(SERVERS[3], SHAPES[0], 0, limit)
        del found["penstock"]
        examples.write(tmp_path, found, f"c{limit}")
    collection = collect(read(tmp_path))
    (workload,) = collection.workloads
    assert collection.axis(workload) == "concurrency"
    assert collection.points(workload) == [1, 8]


def test_repeats_of_vllm_are_numbered(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        found = examples.load(SERVERS[3], SHAPES[0], 0)
        del found["penstock"]
        examples.write(tmp_path, found, name)
    assert [run.repeat for run in collect(read(tmp_path)).runs] == [0, 1, 2]


def test_servers_come_in_the_order_of_the_comparison(tmp_path: Path) -> None:
    examples.comparison(tmp_path, repeats=1)
    assert list(collect(read(tmp_path)).servers) == [server.name for server in SERVERS]


def test_partial_runs_count_only_where_there_are_no_others(tmp_path: Path) -> None:
    for repeat, (value, partial) in enumerate([(10.0, False), (30.0, False), (1000.0, True)]):
        found = examples.load(SERVERS[0], SHAPES[4], repeat)
        found["output_throughput"] = value
        examples.write(
            tmp_path, examples.tagged(found, repeat=repeat, partial=partial), str(repeat)
        )
    runs = collect(read(tmp_path)).runs
    whole = spread(runs, "output_throughput")
    assert whole is not None
    assert (whole.median, whole.low, whole.high, whole.n) == (20, 10, 30, 2)
    rest = spread([run for run in runs if run.partial], "output_throughput")
    assert rest is not None
    assert rest.median == 1000
    assert spread(runs, "no_such_key") is None


def test_the_tail_is_the_highest_percentile_up_to_the_99th(tmp_path: Path) -> None:
    found = examples.load(SERVERS[0], SHAPES[4], 0) | {"p99.9_ttft_ms": 1.0, "pxx_ttft_ms": 2.0}
    for key in ("p99_tpot_ms", "p90_tpot_ms", "p50_tpot_ms"):
        del found[key]
    examples.write(tmp_path, found, "one")
    runs = collect(read(tmp_path)).runs
    assert tail_percentile(runs, "ttft") == "p99"
    assert tail_percentile(runs, "tpot") is None


def test_requests_that_were_not_sent_have_no_times(tmp_path: Path) -> None:
    found = examples.load(SERVERS[0], SHAPES[4], 0)
    detail = found["penstock"]["detail"]
    detail["sent"][-1] = detail["ended"][-1] = None
    detail["failure"][-1] = "unsent"
    found["ttfts"][-1], found["itls"][-1] = 0.0, []
    examples.write(tmp_path, found, "one")
    (run,) = collect(read(tmp_path)).runs
    assert run.requests is not None
    last = run.requests[-1]
    assert (last.failure, math.isnan(last.sent), math.isnan(last.first)) == ("unsent", True, True)
    assert math.isfinite(last.due)
