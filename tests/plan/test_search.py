"""The choice: beside brute force, and properties of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from penstock.bench.slo import parse_slo
from penstock.plan.calibration import shipped
from penstock.plan.engines import Load, engine
from penstock.plan.hardware import Target, accelerator, parse_target
from penstock.plan.search import Found, Goal, Question, Speed, candidates, judge, search
from penstock.plan.subject import Subject
from penstock.plan.virtual import poisson

from tests.plan.conftest import FP8, R1, Model

CONSTANTS, BAND, SOURCE = shipped()
SPEED = Speed(CONSTANTS, BAND, SOURCE)
ASKED = Load(chunk=0, sequences=0)
SLO = ("p99_ttft_ms:2000", "p99_tpot_ms:50")


def goal(rate: float, isl: int = 1000, osl: int = 100, slo: tuple[str, ...] = SLO) -> Goal:
    arrivals = poisson(rate, 150, isl, osl)
    return Goal(tuple(arrivals), tuple(parse_slo("--slo", text) for text in slo))


def found(
    subject: Subject, on: str | Target, asked: Goal, rules: str = "vllm", speed: Speed = SPEED
) -> Found:
    target = parse_target(on) if isinstance(on, str) else on
    return search(Question(subject, target, engine(rules), ASKED, asked, speed))


@pytest.mark.parametrize(
    ("name", "on", "rate", "rules"),
    [
        ("Qwen/Qwen3-32B", "h100-sxm-80gb:8", 4, "vllm"),
        ("Qwen/Qwen3-32B", "l40s-48gb:8", 3, "vllm"),
        ("Qwen/Qwen3-30B-A3B", "l4-24gb:8", 6, "vllm"),
        ("mistralai/Mixtral-8x22B-v0.1", "h100-sxm-80gb:8", 6, "sglang"),
        ("meta-llama/Llama-3.2-3B", "a10-24gb:4", 8, "penstock"),
    ],
)
def test_brute_force_finds_nothing_better(
    model: Model, name: str, on: str, rate: float, rules: str
) -> None:
    """All candidates with all counts of replicas, none bounded away."""
    subject, target, asked = model(name), parse_target(on), goal(rate)
    choice = found(subject, target, asked, rules).choice
    held = []
    question = Question(subject, target, engine(rules), ASKED, asked, SPEED)
    for candidate in candidates(question)[0]:
        for replicas in range(1, target.count // candidate.cut.size + 1):
            trial = judge(candidate, replicas, asked, SPEED)
            if not trial.failed:
                held.append(trial)
    best = min(held, key=lambda trial: (trial.devices, trial.worst), default=None)
    assert (choice and choice.devices) == (best and best.devices)
    assert (choice and choice.worst) == (best and best.worst)


@pytest.mark.parametrize(
    ("name", "on", "rules"),
    [
        ("Qwen/Qwen3-32B", "h100-sxm-80gb:32", "vllm"),
        ("Qwen/Qwen3-30B-A3B", "azure-nd96isr-h100-v5:2", "sglang"),
    ],
)
def test_more_rate_never_needs_fewer_devices(model: Model, name: str, on: str, rules: str) -> None:
    subject = model(name)
    counts = []
    for rate in (1, 2, 4, 8, 16, 32):
        choice = found(subject, on, goal(rate), rules).choice
        counts.append(choice.devices if choice else 33)
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.parametrize(
    ("name", "keys", "count", "link", "rates"),
    [
        ("mistralai/Mixtral-8x22B-v0.1", {}, 8, "link", (450e9, 100e9, 20e9)),
        (R1, {"quantization_config": FP8}, 16, "network", (50e9, 10e9, 2e9)),
    ],
)
def test_a_slower_link_never_gives_better_latency(
    model: Model,
    name: str,
    keys: dict[str, object],
    count: int,
    link: str,
    rates: tuple[float, ...],
) -> None:
    subject, asked = model(name, **keys), goal(2)
    device = accelerator("h100-sxm-80gb")
    worst = []
    for rate in rates:
        slower = replace(device, link=rate) if link == "link" else replace(device, network=rate)
        choice = found(subject, Target(slower, count), asked).choice
        worst.append((choice.devices, choice.worst) if choice else (count + 1, 0.0))
    assert worst[0][0] <= count
    assert worst == sorted(worst)


def test_equal_input_gives_an_equal_choice(model: Model) -> None:
    subject = model(R1, quantization_config=FP8)
    one, two = (found(subject, "dell-xe9680-h100:2", goal(2), "sglang").choice for _ in range(2))
    assert one is not None
    assert two is not None
    assert (one.candidate.cut, one.worst) == (two.candidate.cut, two.worst)


def test_source_002_has_its_two_servers(model: Model) -> None:
    """DeepSeek-R1 fits no eight H100, and two servers hold a moderate load: as deployed."""
    subject = model(R1, quantization_config=FP8)
    choice = found(subject, "dell-xe9680-h100:8", goal(2), "sglang").choice
    assert choice is not None
    assert 8 < choice.devices <= 16
    reasons = dict(found(subject, "dell-xe9680-h100:1", goal(2), "sglang").misfits)
    assert reasons["TP8"].startswith("rank 0 lacks")


def test_source_000_fits_cards_of_24_gigabytes(model: Model) -> None:
    """QwQ-32B over 2 x 2 devices, as deployed: 15.3 GiB of weights on a rank."""
    choice = found(model("Qwen/QwQ-32B"), "a10-24gb:4", goal(0.2, slo=()), "vllm").choice
    assert choice is not None
    assert choice.devices == 4
    weights = [rank.weights for rank in choice.candidate.memory.ranks]
    assert sum(weights) / 4 / 2**30 == pytest.approx(15.3, rel=0.01)


def test_a_bound_that_nothing_meets(model: Model) -> None:
    nothing = found(model("Qwen/Qwen3-32B"), "h100-sxm-80gb:8", goal(1, slo=("p99_tpot_ms:1",)))
    assert nothing.choice is None
    assert nothing.simulated == 0


def test_a_load_that_outgrows_the_target_is_not_held(model: Model) -> None:
    flood = found(model("Qwen/Qwen3-32B"), "h100-sxm-80gb:2", goal(500, slo=()))
    assert flood.choice is None
