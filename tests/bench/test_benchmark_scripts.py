"""The arithmetic of the scripts in benchmarks/: fits, shares, schedules, and the files of other
clients.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock
from tests.bench.scripts import BENCHMARKS, imported


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    names = ("client_agreement", "client_speed", "sim_calibration")
    support = ("clients", "facts", "fitting", "servers", "watching")
    with imported(*names, *(f"support.{name}" for name in support)) as modules:
        yield dict(zip((*names, *support), modules, strict=True))


def engine_us(timing: dict[str, float], prompt: int, budget: int) -> float:
    """TTFT of a lone prompt, chunk by chunk as the engine computes it."""
    total, computed = 0.0, 0
    while computed < prompt:
        work = min(budget, prompt - computed)
        pairs = sum(computed + token + 1 for token in range(work))
        total += timing["base"] + work * timing["token"] + pairs / 1e3 * timing["kpair"]
        computed += work
    return total


def test_prefill_costs_are_found_again(scripts: dict[str, ModuleType]) -> None:
    truth = {"base": 900.0, "token": 190.0, "kpair": 120.0}
    ttfts = {
        prompt: [engine_us(truth, prompt, 256)] * 3
        for prompt in (16, 64, 256, 400, 512, 1024, 4096)
    }
    fit = scripts["fitting"].fit_prefill(ttfts, 256, 2000.0)
    assert fit.base_us == pytest.approx(900.0)
    assert fit.us_per_token == pytest.approx(190.0)
    assert fit.us_per_context_ktoken == pytest.approx(120.0)
    assert fit.ttft_us(2000, 256) == pytest.approx(engine_us(truth, 2000, 256))


def test_a_step_without_decodes_is_not_longer_than_one_with(scripts: dict[str, ModuleType]) -> None:
    ttfts = {prompt: [5000.0 + prompt * 300.0] for prompt in (16, 64, 256)}
    fit = scripts["fitting"].fit_prefill(ttfts, 256, 2000.0)
    assert fit.base_us == 2000.0
    assert fit.us_per_token > 300.0


def test_no_cost_is_negative(scripts: dict[str, ModuleType]) -> None:
    rows = [[1.0, x] for x in (1.0, 2.0, 3.0)]
    assert scripts["fitting"].non_negative(rows, [3.0, 2.0, 1.0]) == pytest.approx([2.0, 0.0])
    assert scripts["fitting"].non_negative(rows, [-1.0, -2.0, -3.0]) == [0.0, 0.0]
    same = [[1.0, 1.0], [2.0, 2.0]]
    assert sum(scripts["fitting"].non_negative(same, [3.0, 6.0])) == pytest.approx(3.0)


def test_decode_costs_are_found_again(scripts: dict[str, ModuleType]) -> None:
    fitting = scripts["fitting"]
    cost = {1: 1900.0, 8: 5000.0}
    points = [
        fitting.Decode(batch, context, 100.0 + cost[batch] + 0.78 * batch * context)
        for batch, context in [(1, 64.0), (8, 64.0), (1, 2080.0), (8, 1056.0)]
    ]
    assert fitting.fit_context(points) == pytest.approx(780.0)
    timing = fitting.timing(fitting.Prefill(100.0, 190.0, 0.0), points)
    assert timing["decode_us"] == [[1, 1900.0], [8, 5000.0]]
    assert timing["decode_us_per_context_ktoken"] == 780.0
    assert fitting.fit_context(points[:2]) == 0.0


def samples(scripts: dict[str, ModuleType]) -> Any:
    """Two seconds of imports, four of load at half a core, one of statistics."""
    sample = scripts["watching"].Sample
    return [
        sample(0.0, 0.0, 0.0, 0),
        sample(2.0, 2.0, 0.1, 0),
        sample(3.0, 2.5, 0.3, 1000),
        sample(4.0, 3.0, 0.5, 2000),
        sample(6.0, 4.0, 0.9, 4000),
        sample(7.0, 5.0, 0.9, 4000),
    ]


def test_shares_are_those_of_the_load(scripts: dict[str, ModuleType]) -> None:
    watching, seen = scripts["watching"], samples(scripts)
    assert watching.client_share(seen, 3.0) == pytest.approx(0.5)
    assert watching.client_share(seen, 3.5) == pytest.approx(2.0 / 3.5)
    assert watching.client_share(seen, 99.0) == pytest.approx(2.5 / 4.0)
    assert watching.server_share(seen) == pytest.approx(0.2)
    assert watching.client_share(seen[:2], 3.0) == 0.0
    assert watching.server_share([]) == 0.0


def test_offered_load_is_the_wanted_rate(scripts: dict[str, ModuleType]) -> None:
    speed = scripts["client_speed"]
    load = speed.load_of(50_000, 1)
    streams = load.rate * load.output_len * speed.STEP_MS / 1000
    assert streams / (speed.STEP_MS / 1000) == pytest.approx(50_000)
    assert load.requests == load.rate * speed.ARRIVALS_S
    events, seconds = load.requests * load.output_len, speed.ARRIVALS_S + 1.0025
    assert speed.due_rate(load) == pytest.approx(events / seconds)


def test_clients_take_turns(scripts: dict[str, ModuleType]) -> None:
    turns = list(scripts["client_speed"].schedule(["a", "b", "c"], [20, 10], 2))
    assert turns[:3] == [(0, 10, "a"), (0, 10, "b"), (0, 10, "c")]
    assert turns[6:9] == [(1, 10, "b"), (1, 10, "c"), (1, 10, "a")]
    assert len(set(turns)) == len(turns) == 12


def test_aiperf_s_names_are_translated(scripts: dict[str, ModuleType]) -> None:
    export = {
        "benchmark_duration": {"avg": 2.0},
        "request_count": {"avg": 9.0},
        "error_request_count": {"avg": 1.0},
        "total_osl": {"avg": 900.0},
        "inter_chunk_latency": {"avg": 5.1, "p50": 5.0, "p99": 9.0},
        "time_to_first_token": {"avg": 8.0, "p50": 7.5, "p99": 10.0},
    }
    assert scripts["clients"].from_aiperf(export) == {
        "duration": 2.0,
        "completed": 9,
        "failed": 1,
        "total_output_tokens": 900,
        "mean_itl_ms": 5.1,
        "median_itl_ms": 5.0,
        "p99_itl_ms": 9.0,
        "mean_ttft_ms": 8.0,
        "median_ttft_ms": 7.5,
        "p99_ttft_ms": 10.0,
    }


def test_a_replayed_draw_has_its_lengths_and_no_common_prefix(
    scripts: dict[str, ModuleType],
) -> None:
    result = {
        "penstock": {"detail": {"due": [0.0, 0.5]}},
        "input_lens": [40, 16],
        "output_lens": [7, 9],
    }
    first, second = map(json.loads, scripts["clients"].trace_lines(result))
    assert (first["timestamp"], first["input_length"], first["output_length"]) == (0.0, 40, 7)
    assert (second["timestamp"], second["input_length"], second["output_length"]) == (0.5, 16, 9)
    assert len(first["hash_ids"]) == 3
    assert len(second["hash_ids"]) == 1
    assert not set(first["hash_ids"]) & set(second["hash_ids"])


def test_both_clients_get_the_same_load(scripts: dict[str, ModuleType]) -> None:
    clients = scripts["clients"]
    place = clients.Place("http://127.0.0.1:1", "model.gguf", Path("hf"), Path("peers"))
    load = clients.Load(256, 128, 10, 3, rate=2.5, range_ratio=0.2)
    ours, theirs = (
        clients.command(name, load, place, Path("out")) for name in ("penstock", "vllm")
    )
    common = ours[ours.index("bench") : ours.index("--tokenizer")]
    assert theirs[1 : 1 + len(common)] == common
    assert "2.5" in common
    assert "--max-concurrency" not in common
    closed = clients.Load(256, 128, 10, 3, concurrency=8)
    assert clients.command("aiperf", closed, place, Path("out"))[-2:] == ["--concurrency", "8"]
    with pytest.raises(ValueError, match="lengths"):
        clients.command("aiperf", load, place, Path("out"))


def test_ratios_beyond_the_bar_are_named(scripts: dict[str, ModuleType]) -> None:
    agreement = scripts["client_agreement"]
    found = agreement.Agreement()
    ours = dict.fromkeys(agreement.STATISTICS, 100.0)
    found.add("open", "penstock", {**ours, "p99_itl_ms": 106.0, "mean_ttft_ms": 95.5})
    found.add("open", "vllm", {**ours, "median_itl_ms": 0.0})
    assert agreement.beyond(agreement.ratios(found, "open")) == ["median_itl_ms", "p99_itl_ms"]


def test_commands_are_shown_without_this_machine(scripts: dict[str, ModuleType]) -> None:
    facts = scripts["facts"]
    words = ["python", str(facts.ROOT / "benchmarks/x.py"), "--trace", "/data/traces/azure.csv"]
    shown = facts.shown(
        [*words, "--base-url", "http://127.0.0.1:4711", str(Path.home() / "model.gguf"), "256/128"]
    )
    assert shown == (
        "python benchmarks/x.py --trace azure.csv --base-url http://127.0.0.1:PORT ~/model.gguf "
        "256/128"
    )


def test_counters_of_one_name_are_added(scripts: dict[str, ModuleType]) -> None:
    page = '# TYPE a_total counter\na_total{x="1"} 2\na_total{x="2"} 3.5\nb{} 1e3\n'
    assert scripts["servers"].counters(page) == {"a_total": 5.5, "b": 1000.0}


def test_checks_are_modelled_over_real(scripts: dict[str, ModuleType]) -> None:
    calibration = scripts["sim_calibration"]
    values = {"real": 10.0, "modelled": 12.0}
    engines = {name: [dict.fromkeys(calibration.CHECKED, value)] for name, value in values.items()}
    (row,) = calibration.check_rows({"w": engines})
    assert row == ["w", *["12.0 / 10.0 = 1.20"] * len(calibration.CHECKED)]


# Those for GPUs need torch: test_gpu_dry_run.py in tests/backends/torch/kernels runs them.
IMPORTING = sorted(set(BENCHMARKS.rglob("*.py")) - set(BENCHMARKS.glob("gpu/*.py")))


@pytest.mark.parametrize("script", IMPORTING, ids=lambda path: path.name)
def test_what_a_script_imports_of_penstock_exists(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
            for name in node.names:
                assert has(str(node.module), name.name), f"{node.module} has no {name.name}"


def has(module: str, name: str) -> bool:
    """Whether a module has a name; by its source where it needs torch, which is not here."""
    if module.startswith("penstock.backends.torch") and not importlib.util.find_spec("torch"):
        place = Path(str(penstock.__file__)).parent.joinpath(*module.split(".")[1:])
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        body = ast.parse(source.read_text()).body
        return name in {getattr(node, "name", None) for node in body}
    found = hasattr(importlib.import_module(module), name)
    return found or importlib.util.find_spec(f"{module}.{name}") is not None
