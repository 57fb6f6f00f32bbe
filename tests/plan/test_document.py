"""plan.yaml as it is written, and what stands in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.hardware import accelerator
from penstock_ops.plan.memory import sized
from tests.plan.conftest import FP8, R1, Model, read

ASKED = ["--isl", "2000", "--osl", "500", "--rate", "2", "--requests", "100"]
BOUNDS = ["--slo", "p99_ttft_ms:2000,p99_tpot_ms:50"]


@pytest.fixture
def planned(directory: Callable[..., Path], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`planned(*words)`: the plan of DeepSeek-R1 with these words."""
    path = str(directory(R1, quantization_config=FP8))

    def plan(*words: str, on: str = "dell-xe9680-h100:2") -> dict[str, Any]:
        output = tmp_path / "plan.yaml"
        asked = ["plan", path, "--on", on, "--engine", "sglang", *ASKED, "-o", str(output)]
        assert main([*asked, *words]) == 0
        return read(output)

    return plan


def test_a_plan_has_what_later_steps_need(planned: Callable[..., dict[str, Any]]) -> None:
    plan = planned(*BOUNDS)
    assert plan["model"]["name"] == "DeepSeek-R1"
    assert len(plan["model"]["sha256"]) == 64
    assert plan["target"]["node"] == "dell-xe9680-h100"
    choice = plan["choice"]
    assert choice["devices"] == 16
    ranks = [rank for row in plan["memory"] for rank in row["ranks"]]
    assert ranks == list(range(16))
    assert all(row["weights"] + row["kv"] < row["total"] for row in plan["memory"])
    tpot = plan["predictions"]["p99_tpot_ms"]
    assert tpot["low"] < tpot["mid"] < tpot["high"] <= 50
    assert plan["bench"] == {**plan["workload"], "slo": ["p99_ttft_ms:2000", "p99_tpot_ms:50"]}
    assert plan["runners_up"]
    assert all(row["why"] for row in plan["runners_up"])


def test_time_to_first_token_is_unknown_without_a_profile(
    planned: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    ttft = planned(*BOUNDS)["predictions"]["p99_ttft_ms"]
    assert ttft["unknown"] is True
    assert 0 < ttft["at_least"] < 2000
    printed = capsys.readouterr().out
    said = f"P99 TTFT at least {ttft['at_least']:,.0f} ms, limit 2,000; P99 TPOT "
    assert said in printed.splitlines()[0]
    assert "TTFT and E2EL are lower bounds: real engines are slower" in printed


def test_thresholds_are_reached_by_the_hardware_of_the_plan(
    planned: Callable[..., dict[str, Any]],
) -> None:
    found = planned(*BOUNDS)["thresholds"]
    assert found["memory_gb_per_s"]["needed"] < found["memory_gb_per_s"]["expected"]
    assert found["memory_gb_per_s"]["expected"] == pytest.approx(3350 * 0.95, abs=0.1)
    assert found["all_reduce_us"]["needed"] > found["all_reduce_us"]["expected"]
    formula = found["all_reduce_us"]["formula"]
    assert formula.startswith(f"{found['all_reduce_us']['bytes'] / 1e3:.1f} KB, ")
    assert found["storage_gb_per_s"]["needed"] < found["storage_gb_per_s"]["expected"]


def test_the_load_from_which_on_a_replica_is_missing(
    planned: Callable[..., dict[str, Any]],
) -> None:
    plan = planned(*BOUNDS)
    found, choice = plan["thresholds"], plan["choice"]
    # What comes within the bound on TTFT, two seconds.
    rate = float(found["requests_waiting"]["formula"].split()[0])
    assert rate == pytest.approx(plan["workload"]["rate"] / choice["replicas"], rel=0.2)
    assert found["requests_waiting"]["needed"] == max(round(2 * rate), 1)
    load = plan["workload"]["isl"] + plan["workload"]["osl"]
    room = 1 - load / choice["kv_tokens"]
    assert found["kv_use"]["needed"] == pytest.approx(min(max(room, 0.5), 0.95), abs=1e-3)
    assert found["kv_use"]["expected"] < found["kv_use"]["needed"]


def test_equal_input_gives_equal_bytes(
    planned: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    planned(*BOUNDS)
    first = (tmp_path / "plan.yaml").read_bytes()
    planned(*BOUNDS)
    assert (tmp_path / "plan.yaml").read_bytes() == first


def test_a_cut_that_was_asked_for(planned: Callable[..., dict[str, Any]]) -> None:
    plan = planned("-tp", "16", "--max-num-batched-tokens", "4096", "--kv-cache-dtype", "fp8")
    assert plan["choice"]["tensor_parallel_size"] == 16
    assert plan["choice"]["max_num_batched_tokens"] == 4096
    assert plan["memory"][0]["kv_bytes_per_token"] == 576 * 61


def test_the_arithmetic_of_a_step_over_two_hosts(
    planned: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The parts add up to the step, and a sum to what it says."""
    planned("-tp", "16", "--explain")
    printed = capsys.readouterr().out
    total = float(re.findall(r"tokens each: ([\d.]+) ms", printed)[0])
    parts = {name: float(ms) for name, ms in re.findall(r"^  (\w+) +([\d.]+) ms", printed, re.M)}
    assert parts.pop("computing") < parts["reading"]
    assert set(parts) == {"reading", "layers", "sums", "logits", "step"}
    assert sum(parts.values()) == pytest.approx(total, abs=0.01)
    size, inside, between = re.findall(
        r"a sum of ([\d.]+) KB: 10 us \+ 28 us x log2\(2 domains\) \+ the longer of "
        r"2 x 7/8 x [\d.]+ KB / (\d+) GB/s and 2 x 1/2 x [\d.]+ KB / \(8 x (\d+) GB/s\)",
        printed,
    )[0]
    each = 38 + float(size) * max(2 * 7 / 8 / int(inside), 1 / 8 / int(between))
    assert parts["sums"] == pytest.approx(122 * each / 1e3, rel=0.01)


def test_smaller_types_are_offered_and_not_chosen(
    directory: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(directory("meta-llama/Meta-Llama-3.1-70B"))
    words = ["--on", "h100-sxm-80gb:8", *ASKED, "-o", str(tmp_path / "plan.yaml")]
    assert main(["plan", path, *words]) == 0
    plan = read(tmp_path / "plan.yaml")
    assert plan["model"]["weights"] == "bf16"
    offer, odd = plan["offers"]
    assert offer["change"] == "--weights fp8"
    assert offer["devices"] < plan["choice"]["devices"]
    assert (odd["change"], odd["devices"]) == ("-tp 1 -pp 3", 3)
    assert "\nfewer devices:\n  --weights fp8  fits on " in capsys.readouterr().out


def test_arrivals_of_a_trace(planned: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    row = '{{"timestamp": {}, "input_length": 900, "output_length": 40, "hash_ids": [1, 2]}}\n'
    trace.write_text("".join(row.format(at * 250) for at in range(60)))
    plan = planned("--trace", str(trace))
    assert plan["workload"] == {"trace": str(trace), "requests": 60}


def test_the_served_length_is_the_models_own(
    planned: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """However short the requests of the load are."""
    assert planned("--engine", "sglang")["choice"]["max_model_len"] == 163_840
    assert "up to 163,840 tokens: the model's own length" in capsys.readouterr().out


def test_the_served_length_is_what_the_memory_holds(
    directory: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(directory("meta-llama/Meta-Llama-3.1-70B"))
    words = ["--on", "h100-sxm-80gb:8", "--weights", "fp8", "--rate", "0.1"]
    words += ["--isl", "500", "--requests", "20", "-o", str(tmp_path / "plan.yaml")]
    assert main(["plan", path, *words, "-tp", "2", "--memory-fraction", "0.6"]) == 0
    choice = read(tmp_path / "plan.yaml")["choice"]
    assert choice["max_model_len"] == choice["kv_tokens"] < 131_072
    said = f"up to {choice['kv_tokens']:,} tokens: what the KV holds; the model's own length is"
    assert said in capsys.readouterr().out


def test_the_served_length_is_as_asked_for(planned: Callable[..., dict[str, Any]]) -> None:
    assert planned("--max-model-len", "65536")["choice"]["max_model_len"] == 65_536


@pytest.mark.parametrize("tokens", ["100", "163841"])
def test_a_served_length_below_the_load_or_above_the_model_is_refused(
    planned: Callable[..., dict[str, Any]], tokens: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError):
        planned("--max-model-len", tokens)
    assert "--max-model-len" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mistralai/Mixtral-8x7B-v0.1", "google/gemma-2-9b"])
def test_the_longest_sequence_that_fits(model: Model, name: str) -> None:
    """One block more does not."""
    subject = model(name)
    memory = sized(subject.spec, subject.weights, accelerator("h100-sxm-80gb"), Cut(2, 1), "bf16")
    found = memory.longest(1 << 40)
    assert memory.concurrency(found) >= 1 > memory.concurrency(found + 16)
    assert memory.longest(4096) == 4096


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "0"], "--rate"),
        (["--rate", "2", "--slo", "p99_ttft:5"], "--slo"),
        (["--trace", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_goals_that_cannot_be_met(
    directory: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    path = str(directory(R1, quantization_config=FP8))
    assert main(["plan", path, "--on", "h100-sxm-80gb:16", *words]) in (1, 2)
    assert said in capsys.readouterr().err
