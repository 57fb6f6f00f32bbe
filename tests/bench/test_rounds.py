"""Rounds of the same prompts: order, seeds, means, and ratios to a baseline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench import rounds
from penstock_lab.bench.rounds import Figures, Plan, measure_rounds, summarise
from penstock_lab.bench.runs import Keeper
from tests.bench.measuring import Call, FakeMeasure, Result, parse, result_of

PLAN = Plan([100, 1000], output=1, prompts=50, max_concurrency=16, rounds=3, seed=5)


def cached_later(call: Call) -> Result:
    """The first round computes; the others take 3/4 of the prompt from the cache, at different
    speeds.
    """
    number = call.tags["point"]
    if number == 1:
        return result_of(call, mean_ttft_ms=900.0, total_token_throughput=100.0)
    return result_of(
        call,
        mean_ttft_ms={2: 200.0, 3: 100.0}[number],
        total_token_throughput={2: 500.0, 3: 1500.0}[number],
        cached_tokens=750,
    )


def test_rounds_of_a_length_have_one_seed_and_lengths_their_own() -> None:
    measure = FakeMeasure()
    assert len(list(measure_rounds(PLAN, measure))) == 6
    seen = [(call.tags["workload"], call.tags["point"], call.seed) for call in measure.calls]
    assert seen == [("100/1", n, 5) for n in (1, 2, 3)] + [("1000/1", n, 6) for n in (1, 2, 3)]
    assert {call.tags["axis"] for call in measure.calls} == {"round"}
    assert measure.calls[0].flags == {
        "dataset-name": "random",
        "random-input-len": "100",
        "random-output-len": "1",
        "num-prompts": "50",
        "max-concurrency": "16",
    }


def test_the_defaults_are_those_of_the_published_method() -> None:
    parsed = parse(rounds)
    assert (parsed.rounds, parsed.num_prompts, parsed.max_concurrency, parsed.output_len) == (
        10,
        50,
        16,
        1,
    )
    assert parsed.lengths == "100,1000,10000"


def test_means_are_of_the_rounds_after_the_first() -> None:
    small, large = summarise(measure_rounds(PLAN, FakeMeasure(cached_later)))
    assert (small.workload, large.workload) == ("100/1", "1000/1")
    assert small.first == Figures(900.0, 100.0, 0.0)
    assert small.later == Figures(150.0, 1000.0, 0.75)
    assert small.rounds == 3


def test_the_table_without_a_baseline() -> None:
    table = rounds.lines(summarise(measure_rounds(PLAN, FakeMeasure(cached_later))))
    assert "baseline" not in table[0]
    row = ["100/1", "900.00", "150.00", "6.00x", "100.00", "1,000.00", "10.00x", "75.0%", "0"]
    assert table[2].split() == row


def test_ratios_to_a_baseline_are_those_of_the_later_rounds() -> None:
    def computing(call: Call) -> Result:
        return result_of(call, mean_ttft_ms=600.0, total_token_throughput=125.0)

    known = Plan([100], output=1, prompts=50, max_concurrency=16, rounds=2, seed=5)
    baseline = summarise(measure_rounds(known, FakeMeasure(computing)))
    table = rounds.lines(summarise(measure_rounds(PLAN, FakeMeasure(cached_later))), baseline)
    assert table[2].split()[-3:] == ["4.00x", "8.00x", "0"]
    assert table[3].split()[-3:] == ["-", "-", "0"], "a length that the baseline has not"


def test_one_round_is_compared_as_it_is() -> None:
    plan = Plan([100], output=1, prompts=50, max_concurrency=16, rounds=1, seed=5)
    (only,) = summarise(measure_rounds(plan, FakeMeasure(cached_later)))
    assert only.later is None
    assert only.steady == only.first
    assert rounds.lines([only])[2].split() == [
        "100/1",
        "900.00",
        "-",
        "-",
        "100.00",
        "-",
        "-",
        "-",
        "0",
    ]


def test_after_ctrl_c_whole_rounds_count_and_the_rest_is_marked() -> None:
    def answer(call: Call) -> Result:
        return result_of(call, mean_ttft_ms=50.0, partial=call.tags["point"] == 3, failed=2)

    results = list(measure_rounds(PLAN, FakeMeasure(answer)))
    assert len(results) == 3
    (summary,) = summarise(results)
    assert (summary.rounds, summary.failed, summary.partial) == (2, 6, True)
    assert rounds.lines([summary])[2].endswith("partial: 2 whole rounds")


def test_a_round_without_an_answer_does_not_count_as_a_fast_one() -> None:
    def answer(call: Call) -> Result:
        broken = call.tags["point"] == 2
        return result_of(call, completed=0 if broken else 50, mean_ttft_ms=0.0 if broken else 80.0)

    small, _large = summarise(measure_rounds(PLAN, FakeMeasure(answer)))
    assert small.later is not None
    assert small.later.ttft_ms == 80.0
    assert small.partial


def test_a_cache_that_was_warm_before_is_said() -> None:
    def answer(call: Call) -> Result:
        return result_of(call, cached_tokens=900)

    table = rounds.lines(summarise(measure_rounds(PLAN, FakeMeasure(answer))))
    assert table[2].endswith(
        "round 1 met a warm cache (90%): restart the server or take another --seed"
    )


def test_results_read_back_give_the_same_table(tmp_path: Path) -> None:
    results = list(measure_rounds(PLAN, FakeMeasure(cached_later)))
    keeper = Keeper(tmp_path)
    for result in results:
        keeper.keep(result)
    (tmp_path / "other.json").write_text(json.dumps({"penstock": {"axis": "concurrency"}}))
    read = {summary.workload: summary for summary in summarise(rounds.read_results(tmp_path))}
    assert read == {summary.workload: summary for summary in summarise(results)}


def test_what_is_no_baseline_is_named(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="no results of"):
        rounds.read_results(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(PenstockError, match=r"broken\.json"):
        rounds.read_results(tmp_path)
    with pytest.raises(PenstockError, match="cannot read"):
        rounds.read_results(tmp_path / "missing")


def test_wrong_lengths_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="--lengths"):
        rounds.run(parse(rounds, "--lengths", "100,x"))
