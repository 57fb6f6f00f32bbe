"""The loop of a sweep: what is measured in which order, when it ends, and what is said about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench import sweep, sweep_plan
from penstock_lab.bench.runs import Keeper
from penstock_lab.bench.sweep import Curve
from tests.bench.measuring import Call, FakeMeasure, Result, parse, result_of

LENGTHS = ("--isl", "200", "--osl", "100")


@dataclass
class Done:
    curves: list[Curve]
    interrupted: bool


def sweep_of(measure: FakeMeasure, *words: str, keeper: Keeper | None = None) -> Done:
    keeper = keeper or Keeper(None)
    curves = list(sweep.sweep(sweep_plan.plan(parse(sweep, *words)), measure, keeper))
    return Done(curves, keeper.interrupted)


def saturating(capacity: int, **beyond: object) -> Callable[[Call], Result]:
    """100 output tokens a second for each of `capacity` requests; statistics `beyond` it."""

    def answer(call: Call) -> Result:
        load = call.tags["point"]
        more = beyond if load > capacity else {}
        return result_of(call, output_throughput=100.0 * min(load, capacity), **more)

    return answer


def test_workloads_then_points_then_rounds_and_no_seed_twice() -> None:
    measure = FakeMeasure()
    sweep_of(
        measure,
        "--concurrency",
        "1,8",
        "--pair",
        "200/100",
        "--pair",
        "50/20",
        "--rounds",
        "3",
        "--seed",
        "7",
    )
    seen = [
        (call.tags["workload"], call.tags["point"], call.tags["repeat"]) for call in measure.calls
    ]
    assert seen == [(w, p, r) for w in ("200/100", "50/20") for p in (1, 8) for r in range(3)]
    assert [call.seed for call in measure.calls] == list(range(7, 19))
    assert {call.tags["axis"] for call in measure.calls} == {"concurrency"}


def test_what_a_point_of_concurrency_asks_for() -> None:
    measure = FakeMeasure()
    sweep_of(
        measure, "--concurrency", "1,64", *LENGTHS, "--isl-stddev", "10", "--slo", "p99.9_itl_ms:5"
    )
    first, last = measure.calls
    assert first.flags == {
        "dataset-name": "random",
        "random-input-len": "200",
        "random-output-len": "100",
        "random-input-stddev": "10.0",
        "random-output-stddev": "0.0",
        "max-concurrency": "1",
        "num-prompts": "10",
        "metric-percentiles": "50,90,99,99.9",
        "num-warmups": "5",
    }
    assert (last.flags["max-concurrency"], last.flags["num-prompts"]) == ("64", "192")
    assert last.flags["num-warmups"] == "0", "only the first run of a workload warms up"


def test_what_a_point_of_rate_asks_for() -> None:
    measure = FakeMeasure()
    sweep_of(measure, "--request-rate", "0.1,2.5", *LENGTHS)
    slow, fast = (call.flags for call in measure.calls)
    assert (slow["request-rate"], slow["num-prompts"]) == ("0.1", "10")
    assert (fast["request-rate"], fast["num-prompts"]) == ("2.5", "75")
    assert "max-concurrency" not in fast
    assert measure.calls[1].tags["axis"] == "rate"


def test_lengths_pair_up_or_one_serves_all() -> None:
    for words, names in (
        (("--isl", "200,1000", "--osl", "200,1000"), ["200/200", "1000/1000"]),
        (
            ("--synthetic-input-tokens-mean", "5000,1000", "--output-tokens-mean", "500"),
            ["5000/500", "1000/500"],
        ),
        (("--isl", "500", "--osl", "10,10,20"), ["500/10", "500/20"]),
        (("--isl", "500", "--osl", "20", "--pair", "7/8"), ["7/8", "500/20"]),
    ):
        plan = sweep_plan.plan(parse(sweep, "--concurrency", "1", *words))
        assert [workload.name for workload in plan.workloads] == names


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ([], "--isl"),
        (["--isl", "200"], "--osl"),
        (["--isl", "1,2,3", "--osl", "1,2"], "--osl"),
        (["--pair", "200"], "--pair"),
        ([*LENGTHS, "--isl-stddev", "-1"], "--isl-stddev"),
        ([*LENGTHS, "--rounds", "0"], "--rounds"),
        ([*LENGTHS, "--slo", "ttft:1"], "--slo"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(words: list[str], flag: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{flag} "):
        sweep_plan.plan(parse(sweep, "--concurrency", "1", *words))


def test_all_at_once_needs_a_number_of_requests() -> None:
    with pytest.raises(InvalidValueError, match="--requests-per-point"):
        sweep_plan.plan(parse(sweep, "--request-rate", "1,inf", *LENGTHS))
    plan = sweep_plan.plan(
        parse(sweep, "--request-rate", "1,inf", *LENGTHS, "--request-count", "40")
    )
    assert plan.points[1].words() == ["--request-rate", "inf", "--num-prompts", "40"]


def test_a_workload_ends_with_the_first_point_beyond_an_slo() -> None:
    measure = FakeMeasure(saturating(4, p99_ttft_ms=2500.0))
    words = (
        "--concurrency",
        "1..64",
        "--pair",
        "200/100",
        "--pair",
        "50/20",
        "--slo",
        "p99_ttft_ms:2000",
    )
    done = sweep_of(measure, *words)
    for curve in done.curves:
        assert [point.point.load for point in curve.points] == [1, 2, 4, 8]
        assert [point.passed() for point in curve.points] == [
            "",
            "",
            "",
            "p99_ttft_ms 2500.00 > 2000",
        ]
    assert not done.interrupted
    assert "beyond: p99_ttft_ms 2500.00 > 2000" in sweep.lines(done.curves[0])[-3]


def test_a_point_that_nobody_answers_ends_the_workload() -> None:
    def answer(call: Call) -> Result:
        return (
            result_of(call, completed=0, failed=10) if call.tags["point"] == 8 else result_of(call)
        )

    (curve,) = sweep_of(FakeMeasure(answer), "--concurrency", "1..64", *LENGTHS).curves
    assert [point.passed() for point in curve.points] == ["", "", "", "no request succeeded"]


def test_after_ctrl_c_in_a_run_what_there_is_stays(tmp_path: Path) -> None:
    def answer(call: Call) -> Result:
        return result_of(call, partial=call.tags["point"] == 4 and call.tags["repeat"] == 1)

    measure = FakeMeasure(answer)
    words = ("--concurrency", "1..64", "--pair", "200/100", "--pair", "50/20", "--rounds", "3")
    done = sweep_of(measure, *words, keeper=Keeper(tmp_path))
    assert done.interrupted
    assert len(measure.calls) == len(list(tmp_path.iterdir())) == 3 + 3 + 2
    (curve,) = done.curves
    assert [len(point.results) for point in curve.points] == [3, 3, 2]
    assert "partial" in "\n".join(sweep.lines(curve))


def test_after_ctrl_c_between_runs_what_there_is_stays() -> None:
    def answer(call: Call) -> Result:
        if call.tags["point"] == 2:
            raise KeyboardInterrupt
        return result_of(call)

    done = sweep_of(FakeMeasure(answer), "--concurrency", "1..4", *LENGTHS)
    assert done.interrupted
    assert [point.point.load for point in done.curves[0].points] == [1]


def test_ctrl_c_before_the_first_result_leaves_an_empty_table() -> None:
    def answer(_call: Call) -> Result:
        raise KeyboardInterrupt

    (curve,) = sweep_of(FakeMeasure(answer), "--concurrency", "1..4", *LENGTHS).curves
    assert "knee: none" in "\n".join(sweep.lines(curve))


def test_what_goes_wrong_with_a_workload_leaves_the_others() -> None:
    def answer(call: Call) -> Result:
        if call.tags["workload"] == "9000/1":
            raise PenstockError("every warm-up request failed; the first: http_status: too long")
        return result_of(call)

    words = ("--concurrency", "1,2", "--pair", "9000/1", "--pair", "50/20")
    broken, good = sweep_of(FakeMeasure(answer), *words).curves
    assert broken.points == []
    assert "trouble: every warm-up request failed; the first: http_status: too long" in sweep.lines(
        broken
    )
    assert len(good.points) == 2


def test_a_wrong_flag_ends_it() -> None:
    def answer(_call: Call) -> Result:
        raise InvalidValueError("--prompt-ids", True, "a completions endpoint")

    with pytest.raises(InvalidValueError, match="--prompt-ids"):
        sweep_of(FakeMeasure(answer), "--concurrency", "1", *LENGTHS)


def test_the_table_says_where_throughput_bends() -> None:
    done = sweep_of(
        FakeMeasure(saturating(8, failed=3)), "--concurrency", "1..64", *LENGTHS, "--rounds", "2"
    )
    lines = sweep.lines(done.curves[0])
    assert lines[0] == "200/100 (input/output tokens)"
    assert lines[1].split("  ")[0] == "concurrency"
    rows = {line.split()[0]: line for line in lines[3:10]}
    assert [name for name, line in rows.items() if line.endswith("knee")] == ["8"]
    assert rows["8"].split()[1:] == [
        "1.00",
        "800.00",
        "10.00",
        "20.00",
        "5.00",
        "9.00",
        "99.00",
        "0",
        "knee",
    ]
    assert rows["64"].split()[-1] == "6", "failures of both rounds"
    assert lines[10] == "knee: 8, 800.00 output tok/s (100% of the highest)"


def test_values_are_medians_over_rounds() -> None:
    def answer(call: Call) -> Result:
        return result_of(call, p99_ttft_ms=[10.0, 1000.0, 30.0][call.tags["repeat"]])

    (curve,) = sweep_of(FakeMeasure(answer), "--concurrency", "1", *LENGTHS, "--rounds", "3").curves
    assert curve.points[0].value("p99_ttft_ms") == 30.0


def test_each_run_has_a_file_without_texts(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "new" / "results")
    keeper.prepare()
    measure = FakeMeasure()
    sweep_of(measure, "--request-rate", "0.5,2", *LENGTHS, "--rounds", "2", keeper=keeper)
    files = sorted((tmp_path / "new" / "results").iterdir())
    assert [file.name for file in files] == [
        f"sweep_http-server_200-100_rate-{rate}_repeat-{repeat}.json"
        for rate in ("0.5", "2")
        for repeat in (0, 1)
    ]
    documents = [json.loads(file.read_text()) for file in files]
    assert [document["penstock"]["seed"] for document in documents] == [0, 1, 2, 3]
    assert all(document["generated_texts"] == [] for document in documents)


def test_extra_inputs_are_text_or_json() -> None:
    texts = ["max_tokens:200", "ignore_eos:true", "user:me", "url:http://x:1", '{"a": {"b": 1}}']
    assert sweep_plan.extra_inputs("--extra-inputs", texts) == {
        "max_tokens": 200,
        "ignore_eos": True,
        "user": "me",
        "url": "http://x:1",
        "a": {"b": 1},
    }
    for wrong in ("max_tokens", ":5", "{"):
        with pytest.raises(InvalidValueError, match="--extra-inputs"):
            sweep_plan.extra_inputs("--extra-inputs", [wrong])
