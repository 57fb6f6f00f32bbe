"""Result files: vLLM's keys and names, this tool's own key, atomic writes."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.core import PenstockError
from penstock_lab.bench import result
from penstock_lab.bench.request import Load, Outcome
from penstock_lab.bench.result import Identity, RampUp, Traffic, Wanted

# What vLLM 0.32 writes for `vllm bench serve --save-result` with a generative model, from its
# source.
HEAD = {
    *(
        "date",
        "endpoint_type",
        "backend",
        "label",
        "model_id",
        "tokenizer_id",
        "num_prompts",
        "request_rate",
    ),
    *("burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens"),
    *("total_output_tokens", "request_throughput", "request_goodput", "output_throughput"),
    *("total_token_throughput", "latencies", "queue_times", "max_output_tokens_per_s"),
    *("max_concurrent_requests", "rtfx"),
}
STATISTICS = {
    f"{statistic}_{metric}_ms"
    for statistic in ("mean", "median", "std", "p99")
    for metric in ("ttft", "tpot", "itl")
}
DETAILED = {
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "start_times",
    "generated_texts",
    "errors",
}
RAMP_UP = {"ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps", "rps_change_events"}
E2EL = {f"{statistic}_e2el_ms" for statistic in ("mean", "median", "std", "p99")}

NAN = math.nan
DATE = datetime(2026, 1, 2, 3, 4, 5)


def outcome(**changes: Any) -> Outcome:
    fields: dict[str, Any] = {
        "input_tokens": 10,
        "output_tokens": 3,
        "asked": (10, 3),
        "due": 1.0,
        "sent": 1.25,
        "connected": 1.0,
        "ended": 1.75,
        "events": array("d", [1.5, 1.625, 1.75]),
        "reported": True,
        "cached_tokens": 4,
        "finish": "length",
        "text": "abc",
        "failure": "",
        "detail": "",
    }
    return Outcome(**{**fields, **changes})


UNSENT = outcome(
    output_tokens=0,
    due=5.0,
    sent=NAN,
    connected=NAN,
    ended=NAN,
    events=array("d"),
    reported=False,
    cached_tokens=0,
    text="",
    failure="unsent",
    detail="stopped",
)
SHORT = outcome(output_tokens=2, failure="short", detail="2 tokens of 3", due=1.25)


def made(
    *outcomes: Outcome,
    traffic: Traffic | None = None,
    wanted: Wanted | None = None,
    tags: Mapping[str, object] | None = None,
    partial: bool = False,
) -> result.Result:
    return result.make(
        Load(outcomes, duration=2.0, client_cpu=0.5, partial=partial),
        Identity("openai", "org/model", "org/tokenizer", metadata={"version": "1"}),
        traffic or Traffic(num_prompts=len(outcomes)),
        wanted or Wanted(),
        tags or {},
        DATE,
    )


def test_the_keys_are_vllms_and_e2el_and_ours() -> None:
    ours = {"penstock", "version"}
    assert set(made(outcome())) == HEAD | STATISTICS | DETAILED | E2EL | ours
    assert set(result.slim(made(outcome()))) == HEAD | STATISTICS | E2EL | ours


def test_the_keys_of_a_ramp() -> None:
    ramp = RampUp("linear", 1, 3, ((1, 0.0), (2, 0.5), (3, 1.0)))
    found = made(outcome(), traffic=Traffic(1, ramp_up=ramp))
    assert set(found) >= RAMP_UP
    assert found["rps_change_events"][1] == {"rps": 2, "timestamp": "2026-01-02T03:04:05.500000"}
    assert (found["ramp_up_strategy"], found["ramp_up_start_rps"], found["ramp_up_end_rps"]) == (
        "linear",
        1,
        3,
    )


def test_values_by_hand() -> None:
    found = made(outcome(), outcome(due=1.25), SHORT, wanted=Wanted((50.0, 99.9), {"ttft": 0.25}))
    assert found["date"] == "20260102-030405"
    assert (found["completed"], found["failed"], found["num_prompts"]) == (2, 1, 3)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (20, 6)
    assert (found["request_throughput"], found["output_throughput"]) == (1.0, 3.0)
    assert (found["total_token_throughput"], found["request_goodput"]) == (13.0, 1.0)
    assert (found["mean_ttft_ms"], found["median_itl_ms"], found["p99.9_e2el_ms"]) == (
        250.0,
        125.0,
        500.0,
    )
    assert (found["mean_tpot_ms"], found["p50_tpot_ms"], found["std_tpot_ms"]) == (
        125.0,
        125.0,
        0.0,
    )
    assert found["version"] == "1"
    assert "p99_ttft_ms" not in found


def test_arrays_have_one_item_for_each_request() -> None:
    found = made(outcome(), SHORT, UNSENT)
    assert found["input_lens"] == [10, 10, 10]
    assert found["output_lens"] == [3, 0, 0]
    assert found["ttfts"] == [0.25, 0.25, 0.0]
    assert found["itls"] == [[0.125, 0.125], [0.125, 0.125], []]
    assert found["latencies"] == [0.5, 0.5, 0.0]
    assert found["start_times"] == [1.25, 1.25, 0.0]
    assert found["queue_times"] == [0.25, 0.0, 0.0]
    assert found["errors"] == ["", "short: 2 tokens of 3", "unsent: stopped"]
    assert found["generated_texts"] == ["abc", "abc", ""]
    assert found["penstock"]["detail"] == {
        "due": [1.0, 1.25, 5.0],
        "sent": [1.25, 1.25, None],
        "ended": [1.75, 1.75, None],
        "failure": ["", "short", "unsent"],
        "event_counts": [3, 3, 0],
    }


def test_our_own_key() -> None:
    odd = outcome(input_tokens=11, due=1.25)
    silent = outcome(reported=False, cached_tokens=0, due=1.25)
    ours = made(
        outcome(), odd, silent, SHORT, UNSENT, tags={"server": "s", "axis": "rate", "point": 2.0}
    )["penstock"]
    assert (ours["format"], ours["server"], ours["axis"], ours["point"]) == (1, "s", "rate", 2.0)
    assert ours["failures"] == {"short": 1, "unsent": 1}
    assert ours["failure_examples"] == ["short: 2 tokens of 3", "unsent: stopped"]
    assert (ours["resent"], made(outcome(resent=True), odd)["penstock"]["resent"]) == (0, 1)
    assert ours["usage"] == {"reported": 2, "prompt_mismatch": 1, "cached_tokens": 8}
    assert ours["send_lateness_ms"] == {
        "mean": 62.5,
        "median": 0.0,
        "p99": pytest.approx(242.5),
        "max": 250.0,
    }
    assert (ours["events"], ours["client_cpu_s"], ours["partial"]) == (12, 0.5, False)


def test_a_length_nobody_knew_beforehand_is_no_mismatch() -> None:
    assert made(outcome(asked=(0, 3)))["penstock"]["usage"]["prompt_mismatch"] == 0


def test_examples_of_failures_are_few_and_different() -> None:
    failures = [outcome(failure="connect", detail=f"refused {index % 20}") for index in range(100)]
    examples = made(*failures)["penstock"]["failure_examples"]
    assert len(examples) == len(set(examples)) == 10


def test_queueing_in_the_client_is_a_metric_with_a_limit() -> None:
    limited = made(outcome(), traffic=Traffic(1, max_concurrency=1))
    assert limited["mean_client_queue_time_ms"] == 250.0
    assert "mean_e2el_including_client_queue_ms" not in limited
    at_a_rate = made(outcome(), traffic=Traffic(1, request_rate=2.0, max_concurrency=1))
    assert at_a_rate["mean_e2el_including_client_queue_ms"] == 750.0
    assert "mean_client_queue_time_ms" not in made(outcome())


def test_nothing_succeeded_and_nothing_happened() -> None:
    found = made(UNSENT, wanted=Wanted(goodput={"ttft": 1.0}))
    assert (found["completed"], found["mean_ttft_ms"], found["request_goodput"]) == (0, 0.0, 0.0)
    empty = result.make(
        Load([], 0.0, 0.0, True), Identity("openai", "m", "m"), Traffic(0), Wanted(), {}, DATE
    )
    assert (empty["request_throughput"], empty["penstock"]["partial"]) == (0.0, True)
    json.dumps([found, empty], allow_nan=False)


@pytest.mark.parametrize(
    ("traffic", "name"),
    [
        (Traffic(1), "openai-infqps-model-20260102-030405.json"),
        (
            Traffic(1, request_rate=2.5, max_concurrency=8),
            "openai-2.5qps-concurrency8-model-20260102-030405.json",
        ),
        (
            Traffic(1, ramp_up=RampUp("linear", 1, 3, ())),
            "openai-ramp-up-linear-1qps-3qps-model-20260102-030405.json",
        ),
    ],
)
def test_file_names_are_vllms(traffic: Traffic, name: str) -> None:
    assert result.file_name(made(outcome(), traffic=traffic)) == name


def test_a_file_is_strict_json_and_nothing_else_is_left(tmp_path: Path) -> None:
    found = made(outcome(), UNSENT)
    result.write(found, tmp_path / "new/deep/file.json")
    assert json.loads((tmp_path / "new/deep/file.json").read_text()) == json.loads(
        json.dumps(found)
    )
    assert [path.name for path in (tmp_path / "new/deep").iterdir()] == ["file.json"]


def test_appending_adds_a_line(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for _ in range(3):
        result.write(made(outcome()), path, append=True)
    assert [json.loads(line)["completed"] for line in path.read_text().splitlines()] == [1, 1, 1]
    result.write(made(outcome()), path)
    assert len(path.read_text().splitlines()) == 1


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="JSON"):
        result.write({"broken": NAN}, path)
    assert path.read_text() == "old"
    with pytest.raises(PenstockError, match="cannot write"):
        result.write(made(outcome()), path / "below a file.json")
