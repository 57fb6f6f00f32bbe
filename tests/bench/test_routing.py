"""Replays of fleets: workloads, summaries, and what the default profile is chosen for."""

import json
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.routing import (
    POLICIES,
    WORKLOADS,
    Fleet,
    from_trace,
    made_up,
    policy,
    replay,
)
from penstock_lab.bench.traces import Arrival, Trace, read


@pytest.mark.parametrize("name", WORKLOADS)
def test_made_up_workloads_ascend_repeat_and_follow_the_seed(name: str) -> None:
    workload = made_up(name, rate=0.2, duration=20.0)
    assert workload == made_up(name, rate=0.2, duration=20.0)
    assert workload != made_up(name, rate=0.2, duration=20.0, seed=2)
    times = [one.at for one in workload.arrivals]
    assert times == sorted(times)
    assert 0 < min(times) < max(times) < 20
    for one in workload.arrivals:
        assert len(one.hash_ids) == one.input_tokens // workload.block_tokens


def test_a_window_of_a_trace_begins_at_zero_and_rate_shortens_it() -> None:
    arrivals = tuple(Arrival(float(at), 600, 0, (at,), 512) for at in range(10))
    workload = from_trace(Trace(Path("a.jsonl"), "mooncake", arrivals), 2.0, 4.0, 3.0)
    assert [one.at for one in workload.arrivals] == [0.0, 0.5, 1.0]
    assert workload.arrivals[0].output_tokens == 1
    assert workload.block_tokens == 512
    with pytest.raises(InvalidValueError, match="within 9 s"):
        from_trace(Trace(Path("a.jsonl"), "mooncake", arrivals), 1.0, 50.0)


def test_the_default_beats_load_and_prefix_alone_where_both_matter() -> None:
    workload = made_up("tenants", rate=0.5, duration=60.0)
    fleet = Fleet(engines=("h100",) * 4)
    found = {
        name: replay(workload, policy(name), fleet)
        for name in ("default", "round-robin", "least-load", "oracle")
    }
    ours = found["default"]
    assert ours.failed == 0
    assert ours.requests == len(workload.arrivals)
    assert ours.ttft_mean < 0.5 * found["round-robin"].ttft_mean
    assert ours.ttft_mean < 0.5 * found["least-load"].ttft_mean
    assert ours.ttft_mean < 1.15 * found["oracle"].ttft_mean
    assert ours.cached > found["round-robin"].cached


def test_the_command_compares_profiles_of_files_and_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "small.jsonl"
    rows = [
        {"timestamp": 40 * n, "input_length": 1500, "output_length": 20, "hash_ids": [n % 3, n]}
        for n in range(30)
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    own = tmp_path / "sticky.yaml"
    own.write_text("scorers:\n- name: prefix\n  weight: 3\n- {name: queue, weight: 0.5}\n")
    output = tmp_path / "found.json"
    words = ["--replicas", "2", "--profile", "round-robin", "--profile", str(own)]
    assert main(["route", "replay", str(trace), *words, "--output", str(output)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in printed[2:]] == ["round-robin", "sticky"]
    results = json.loads(output.read_text())["results"]
    assert [one["requests"] for one in results] == [30, 30]
    assert results[1]["cached"] > results[0]["cached"]
    several = [*words, "--gateways", "4", "--output", str(output)]
    assert main(["route", "replay", str(trace), *several]) == 0
    again = json.loads(output.read_text())["results"]
    assert again[1]["expected"] < results[1]["expected"], "each knows what it has sent itself"
    assert main(["route", "replay", str(trace), "--gateways", "0"]) == 2
    assert "--gateways" in capsys.readouterr().err


def test_profiles_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"nowhere\.yaml.*round-robin"):
        policy("nowhere.yaml")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("scorers: [{name: quue}]")
    workload = made_up("mixed", rate=0.1, duration=5.0)
    with pytest.raises(PenstockError, match=r"quue.*queue, running"):
        replay(workload, policy(str(wrong)), Fleet(engines=("h100",)))
    wrong.write_text("- a")
    with pytest.raises(PenstockError, match="a mapping"):
        policy(str(wrong))
    assert set(POLICIES) >= {"default", "round-robin", "oracle"}


def test_the_mooncake_trace_is_answered_in_half_the_mean_time(shared: Path) -> None:
    path = shared / "data/traces/mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip(f"no trace at {path}")
    workload = from_trace(read(path), 3.0, 2400.0, 300.0)
    fleet = Fleet(engines=("h100",) * 8)
    ours, turns = (replay(workload, policy(name), fleet) for name in ("default", "round-robin"))
    assert ours.ttft_mean < 0.5 * turns.ttft_mean
    # Its longest prompts take ten seconds to compute on an idle replica.
    assert ours.ttft_p99 < 0.75 * turns.ttft_p99
    assert ours.tpot_p99 < turns.tpot_p99
