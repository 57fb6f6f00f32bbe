"""Steps measured on this machine, and what is made of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.core import PenstockError
from penstock_ops.plan.calibration import Band, shipped
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Load, engine
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.here import here
from penstock_ops.plan.profile import SHORT, Profile, measure, measure_steps, medians, settled
from penstock_ops.plan.search import Goal, Question, Speed, candidates, simulate
from penstock_ops.plan.serving import Extra
from penstock_ops.plan.subject import read_subject
from penstock_ops.plan.virtual import Arrival
from tests.grammar import vocabulary
from tests.plan.conftest import read
from tests.real_ranks import TINY

PROFILE = Profile(
    decodes=((1, 0.002), (2, 0.003), (8, 0.009)),
    chunks=((16, 0.004), (256, 0.064)),
    key=1e-7,
    pair=1e-8,
    beside=((1, 0.001), (8, 0.008)),
    after=((1, 0.002), (8, 0.0006)),
    remains=0.75,
)


def test_measured_counts_are_kept_and_others_lie_between() -> None:
    assert PROFILE.seconds(2, SHORT) == 0.003
    assert PROFILE.seconds(5, SHORT) == pytest.approx(0.006)
    assert PROFILE.seconds(20, SHORT) == pytest.approx(0.021)
    assert PROFILE.seconds(0, 0, 256) == pytest.approx(0.064)
    assert PROFILE.seconds(0, 0, 8) == pytest.approx(0.003)
    assert PROFILE.seconds(0, 0) == 0.0


def test_context_pairs_and_decodes_beside_a_chunk_count() -> None:
    assert PROFILE.seconds(2, SHORT + 1000) == pytest.approx(0.003 + 2e-4)
    assert PROFILE.seconds(0, 0, 16, 16 * 500) == pytest.approx(0.004 + 8e-5)
    assert PROFILE.seconds(2, SHORT, 16) == pytest.approx(0.004 + 0.002)
    assert PROFILE.seconds(2, SHORT + 1000, 16, 1600) == pytest.approx(0.006 + 2e-4 + 1.6e-5)
    assert PROFILE.seconds(8, SHORT, 1) == 0.010125, "a token of a prompt is not less than none"
    unknown = replace(PROFILE, beside=())
    assert unknown.seconds(2, SHORT, 16) == pytest.approx(0.003 + 0.004)


def test_steps_settle_after_a_prompt() -> None:
    assert PROFILE.settling(1, 0) == 0.002
    assert PROFILE.settling(1, 2) == pytest.approx(0.002 * 0.75**2)
    assert PROFILE.settling(4.5, 0) == pytest.approx(0.0013)
    assert PROFILE.settling(32, 0) == 0.0, "a line that falls ends at nothing"
    assert replace(PROFILE, after=()).settling(1, 0) == 0.0


def test_a_simulated_replica_settles_as_the_profile_says() -> None:
    subject, goal = read_subject(str(TINY / "llama")), Goal((Arrival(0.0, 16, 31),), ())

    def simulated(profile: Profile) -> float:
        speed = Speed(shipped()[0], Band(1.0, 1.0), "measured", profile=profile)
        load, target = Load(chunk=256, sequences=4), Target(here(), 1)
        cuts = [Cut(1, 1)]
        question = Question(subject, target, engine("penstock"), load, goal, speed, cuts=cuts)
        return simulate(candidates(question)[0][0], 1, goal, 2.0).served[0].tpot

    quiet = simulated(replace(PROFILE, after=()))
    slower = sum(0.002 * 0.75**step for step in range(17))  # The next would be less than 1%.
    assert simulated(PROFILE) - quiet == pytest.approx(2.0 * slower / 30)


def test_what_remains_of_a_prompt_is_a_share_of_the_step_before() -> None:
    falling = [0.010 + 0.004 * 0.5**step for step in range(24)]
    after, remains = settled((1, 4), (falling, [0.020] * 24))
    assert after == ((1, pytest.approx(0.004, abs=1e-6)), (4, 0.0))
    assert remains == pytest.approx(0.5, abs=0.01)
    assert settled((1,), ([0.02, 0.02, 0.03, 0.02],)) == (((1, 0.0),), 1.0)
    assert settled((), ()) == ((), 0.0)


def test_a_slow_round_does_not_count() -> None:
    slow = replace(PROFILE, decodes=((1, 0.02), (2, 0.003), (8, 0.009)), key=1e-5, pair=0.0)
    slow = replace(slow, after=((1, 0.5), (8, 0.5)), chunks=((16, 0.001), (256, 0.9)))
    assert medians([PROFILE, slow, PROFILE]) == PROFILE


def test_a_server_adds_to_steps_with_decodes_only() -> None:
    served = replace(PROFILE, extra=Extra(step=0.0004, row=0.0001))
    assert served.seconds(2, SHORT) == pytest.approx(0.003 + 0.0006)
    assert served.seconds(2, SHORT, 16) == pytest.approx(PROFILE.seconds(2, SHORT, 16) + 0.0006)
    assert served.seconds(0, 0, 16) == PROFILE.seconds(0, 0, 16)


@pytest.mark.parametrize("family", ["llama", "gemma3", "mixtral"])
def test_steps_of_a_model_are_measured(family: str) -> None:
    said: list[str] = []
    profile = measure_steps(read_subject(str(TINY / family)), said.append)
    assert said[0] == "loading the weights"
    assert all(seconds > 0 for _, seconds in (*profile.decodes, *profile.chunks))
    assert [count for count, _ in profile.decodes] == [1, 2, 4, 8, 16, 32]
    assert [count for count, _ in profile.beside] == [1, 4, 8]
    assert min(profile.key, profile.pair, profile.remains) >= 0
    assert all(seconds >= 0 for _, seconds in (*profile.beside, *profile.after))


def test_after_the_time_limit_only_the_lowest_counts_are_measured() -> None:
    said: list[str] = []
    profile = measure_steps(read_subject(str(TINY / "llama")), said.append, 1e-9)
    assert profile.rounds == 1
    assert [count for count, _ in profile.decodes] == [1, 2]
    assert [count for count, _ in profile.chunks] == [16, 32]
    assert [count for count, _ in profile.beside] == [1, 4]
    assert said[1] == "timing steps, round 1 of 3: chunks (16), no time left"
    assert profile.extent == (
        "measured here: 1 of 3 rounds of steps, with up to 2 decodes and chunks of up to 32 tokens"
    )


def test_a_plan_of_this_machine_knows_the_first_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment sets for servers."""
    monkeypatch.setenv("PENSTOCK_API_KEY", "secret")
    monkeypatch.setenv("PENSTOCK_CONFIG", "/nowhere.yaml")
    model, output = tmp_path / "llama", tmp_path / "plan.yaml"
    shutil.copytree(TINY / "llama", model)
    vocabulary.write_tokenizer(model, {})
    words = ["--measure", "--rate", "1", "--isl", "20", "--osl", "5", "--requests", "20"]
    assert main(["plan", str(model), *words, "-o", str(output)]) == 0
    printed, progress = capsys.readouterr()
    assert "measuring: starting a server" in progress
    assert re.search(r"timing streams of the server \(1\), at most \d+ s left", progress)
    assert re.search("measured here: . of 3 rounds .*, and . of 3 of streams\n", printed)
    plan = read(output)
    assert plan["target"]["accelerator"] == "here"
    assert plan["choice"]["devices"] == 1
    (row,) = plan["memory"]
    assert row["left"] > 0, "not the whole machine"
    each, context = row["kv_bytes_per_token"], plan["choice"]["max_model_len"]
    needed = max(context, plan["choice"]["max_num_seqs"] * 32)  # 25 tokens in whole blocks.
    assert each * needed <= row["kv"] <= each * (needed + 32)
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
        (["--rate", "1", "--measure", "--measure-seconds", "0"], "--measure-seconds is 0.0"),
        (["--rate", "1", "--measure", "--measure-seconds", "nan"], "--measure-seconds is nan"),
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
