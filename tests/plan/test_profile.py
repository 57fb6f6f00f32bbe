"""Steps measured on this machine, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from penstock.cli.main import main
from penstock.core import PenstockError
from penstock.plan.document import read
from penstock.plan.profile import SHORT, Profile, measure
from penstock.plan.subject import read_subject

from tests.real_ranks import TINY

PROFILE = Profile(
    decodes=((1, 0.002), (2, 0.003), (8, 0.009)),
    chunks=((16, 0.004), (256, 0.064)),
    key=1e-7,
    pair=1e-8,
    saved=0.0015,
)


def test_measured_counts_are_kept_and_others_lie_between() -> None:
    assert PROFILE.seconds(2, SHORT) == 0.003
    assert PROFILE.seconds(5, SHORT) == pytest.approx(0.006)
    assert PROFILE.seconds(20, SHORT) == pytest.approx(0.021)
    assert PROFILE.seconds(0, 0, 256) == pytest.approx(0.064)
    assert PROFILE.seconds(0, 0, 8) == pytest.approx(0.003)
    assert PROFILE.seconds(0, 0) == 0.0


def test_context_pairs_and_a_shared_step_count() -> None:
    assert PROFILE.seconds(2, SHORT + 1000) == pytest.approx(0.003 + 2e-4)
    assert PROFILE.seconds(0, 0, 16, 16 * 500) == pytest.approx(0.004 + 8e-5)
    both = PROFILE.seconds(2, SHORT) + PROFILE.seconds(0, 0, 16)
    assert PROFILE.seconds(2, SHORT, 16) == pytest.approx(both - 0.0015)


@pytest.mark.parametrize("family", ["llama", "gemma3", "mixtral"])
def test_steps_of_a_model_are_measured(family: str) -> None:
    profile = measure(read_subject(str(TINY / family)))
    assert all(seconds > 0 for _, seconds in (*profile.decodes, *profile.chunks))
    assert [count for count, _ in profile.decodes] == [1, 2, 4, 8, 16, 32]
    assert min(profile.key, profile.pair, profile.saved) >= 0


def test_a_plan_of_this_machine_knows_the_first_token(tmp_path: Path) -> None:
    output = tmp_path / "plan.yaml"
    words = ["--measure", "--rate", "1", "--isl", "20", "--osl", "5", "--requests", "20"]
    assert main(["plan", str(TINY / "llama"), *words, "-o", str(output)]) == 0
    plan = read(output)
    assert plan["target"]["accelerator"] == "here"
    assert plan["choice"]["devices"] == 1
    ttft = plan["predictions"]["p99_ttft_ms"]
    assert 3 < ttft["low"] <= ttft["mid"] <= ttft["high"]
    times = plan["start"]
    assert times["image"]["seconds"] == 4  # 0.2 GB at 0.05 GB/s.
    assert times["weights"]["claim"]["seconds"] == 60, "the least of a planned load"
    assert list(plan["thresholds"]) == ["storage_gb_per_s", "requests_waiting", "kv_use"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "1"], "add --measure"),
        (["--rate", "1", "--measure", "--on", "l4-24gb"], "--on here"),
    ],
)
def test_what_is_not_measured_is_not_predicted(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["plan", str(TINY / "llama"), *words]) in (1, 2)
    assert said in capsys.readouterr().err


def test_weights_are_needed_to_measure(directory: Callable[..., Path]) -> None:
    subject = read_subject(str(directory("Qwen/Qwen3-8B")))
    with pytest.raises(PenstockError, match="--measure needs weights"):
        measure(subject)
    with pytest.raises(PenstockError, match="no backend"):
        measure(replace(subject, path=Path(), refused="no backend runs it"))
