"""The choice: beside brute force, and properties of it."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import fmean, median_low, pstdev

import pytest

from penstock_lab.bench.slo import parse_slo
from penstock_ops.plan.arrivals import poisson
from penstock_ops.plan.calibration import shipped
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Load, engine
from penstock_ops.plan.hardware import Target, accelerator, parse_target
from penstock_ops.plan.search import Goal, Question, SearchResult, Speed, Trial, search, statistic
from penstock_ops.plan.subject import Subject
from penstock_ops.plan.virtual import Outcome, Served
from tests.plan.brute import Deployment
from tests.plan.brute import best as brute_force
from tests.plan.conftest import FP8, R1, Model

CONSTANTS, BAND, SOURCE = shipped()
SPEED = Speed(CONSTANTS, BAND, SOURCE)
ASKED = Load(chunk=0, sequences=0)
SLO = ("p99_ttft_ms:2000", "p99_tpot_ms:50")
LOOSE = ("p99_tpot_ms:400",)


def goal(rate: float, isl: int = 1000, osl: int = 100, slo: tuple[str, ...] = SLO) -> Goal:
    arrivals = poisson(rate, 150, isl, osl)
    return Goal(tuple(arrivals), tuple(parse_slo("--slo", text) for text in slo))


def found(
    subject: Subject, on: str | Target, asked: Goal, rules: str = "vllm", speed: Speed = SPEED
) -> SearchResult:
    target = parse_target(on) if isinstance(on, str) else on
    return search(Question(subject, target, engine(rules), ASKED, asked, speed))


def agree(
    subject: Subject, target: Target, rules: str, asked: Goal
) -> tuple[Trial | None, Deployment | None]:
    """The choice, and brute force's, which are the same."""
    choice = found(subject, target, asked, rules).choice
    best = brute_force(subject, target, rules, asked.arrivals, asked.slo, SPEED)
    assert (choice and choice.devices) == (best and best.devices)
    assert (choice and choice.worst) == pytest.approx(best and best.worst)
    return choice, best


@pytest.mark.parametrize(
    ("name", "on", "rules", "asked", "devices"),
    [
        ("Qwen/Qwen3-32B", "h100-sxm-80gb:8", "vllm", (4, 1000, SLO), 2),
        ("Qwen/Qwen3-32B", "l40s-48gb:8", "vllm", (0.5, 1000, ("p99_tpot_ms:100",)), 2),
        ("Qwen/Qwen3-32B", "l40s-48gb:8", "vllm", (3, 1000, SLO), None),
        ("Qwen/Qwen3-30B-A3B", "l4-24gb:8", "vllm", (0.5, 1000, ("p99_tpot_ms:150",)), 4),
        ("mistralai/Mixtral-8x22B-v0.1", "h100-sxm-80gb:8", "sglang", (6, 1000, SLO), 4),
        ("mistralai/Mixtral-8x22B-v0.1", "l40s-48gb:8", "penstock", (0.2, 1000, LOOSE), 7),
        ("meta-llama/Llama-3.2-3B", "a10-24gb:4", "penstock", (8, 1000, SLO), 2),
        # 24 query heads divide by six, eight KV heads do not.
        ("meta-llama/Llama-3.2-3B", "l4-24gb:8", "vllm", (1, 1000, ("p99_tpot_ms:14",)), 8),
        ("meta-llama/Llama-3.2-3B", "l4-24gb:8", "penstock", (1, 1000, ("p99_tpot_ms:14",)), 6),
        # The KV of one request wants a fifth device, and as many stages.
        ("Qwen/Qwen3-32B", "l4-24gb:8", "vllm", (0.01, 60_000, ()), 5),
    ],
)
def test_brute_force_finds_nothing_better(
    model: Model,
    name: str,
    on: str,
    rules: str,
    asked: tuple[float, int, tuple[str, ...]],
    devices: int | None,
) -> None:
    """All deployments with all counts of replicas, none bounded away; tests/plan/brute.py has its
    own rules.
    """
    rate, isl, slo = asked
    choice, _ = agree(model(name), parse_target(on), rules, goal(rate, isl, slo=slo))
    assert (choice and choice.devices) == devices


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


def hosts_of_one(count: int, network: float = 50e9) -> Target:
    """H100s of which each is alone on its host."""
    device = replace(accelerator("h100-sxm-80gb"), linked=1, per_node=1, network=network)
    return Target(device, count)


@pytest.mark.parametrize("rules", ["vllm", "sglang", "penstock"])
def test_brute_force_finds_nothing_better_than_a_stage_over_hosts(model: Model, rules: str) -> None:
    """A bound on TPOT that one device does not hold, nor stages of one, whose tokens pass all."""
    subject, target = model("Qwen/Qwen3-32B"), hosts_of_one(4)
    asked = goal(1, isl=100, slo=("p99_tpot_ms:33",))
    choice, best = agree(subject, target, rules, asked)
    assert choice is not None
    assert best is not None
    assert choice.candidate.cut.tp > 1
    assert best.cut.tp > 1


def test_a_slower_network_never_makes_stages_over_hosts_better(model: Model) -> None:
    subject, asked = model("Qwen/Qwen3-32B"), goal(1, isl=100, slo=("p99_tpot_ms:33",))
    worst = []
    for rate in (50e9, 20e9, 5e9, 1e9, 0.2e9):
        choice = found(subject, hosts_of_one(4, rate), asked).choice
        worst.append((choice.devices, choice.worst) if choice else (5, 0.0))
    assert worst[0][0] <= 4 < worst[-1][0]
    assert worst == sorted(worst)


def test_more_rate_never_needs_fewer_hosts(model: Model) -> None:
    subject, counts = model("Qwen/Qwen3-32B"), []
    for rate in (0.5, 1, 2, 4, 8):
        asked = goal(rate, isl=100, slo=("p99_tpot_ms:33",))
        choice = found(subject, hosts_of_one(16), asked).choice
        counts.append(choice.devices if choice else 17)
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.parametrize(
    ("rules", "cut", "per_node", "served"),
    [
        ("vllm", Cut(16, 1), 8, True),
        ("sglang", Cut(16, 2), 8, True),
        ("vllm", Cut(8, 3), 8, True),
        ("vllm", Cut(4, 4), 8, True),
        ("vllm", Cut(4, 3), 8, False),  # Six ranks a host: the second stage is on both.
        ("penstock", Cut(4, 3), 8, False),  # Eight and four, on pods that are alike.
        ("penstock", Cut(16, 1), 8, True),
        ("penstock", Cut(12, 1), 8, True),
        ("penstock", Cut(5, 3), 8, False),  # Ten ranks on the first of two hosts.
    ],
)
def test_stages_are_whole_on_a_host_or_have_whole_hosts(
    model: Model, rules: str, cut: Cut, per_node: int, served: bool
) -> None:
    spec = model(R1, quantization_config=FP8).spec
    why = engine(rules).refuses(spec, cut, per_node)
    assert bool(why) != served
    assert served or f"{cut.pp} stages of {cut.tp} ranks do not divide over 2 hosts" in why


@pytest.mark.parametrize(
    ("name", "ranks", "said"),
    [
        ("meta-llama/Llama-3.2-3B", 6, "8 KV heads do not divide by 6"),
        ("meta-llama/Llama-3.2-3B", 8, ""),
        ("Qwen/Qwen3-32B", 16, ""),  # Two ranks have each of eight KV heads.
        ("Qwen/Qwen3-32B", 4, ""),
    ],
)
def test_kv_heads_divide_over_ranks_or_ranks_over_them(
    model: Model, name: str, ranks: int, said: str
) -> None:
    spec = model(name).spec
    assert engine("vllm").refuses(spec, Cut(ranks, 1), 16) == said
    assert engine("penstock").refuses(spec, Cut(ranks, 1), 16) == ""


def test_nodes_of_fewer_devices_link_no_more_than_they_have() -> None:
    device = parse_target("alibaba-gn7i:4").accelerator
    assert (device.linked, device.per_node, device.network) == (1, 1, 2e9)
    assert parse_target("gcp-a4x:4").accelerator.linked == 72


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


def test_671_billion_weights_on_64_devices(
    model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends. benchmarks/plan_time.py reports the time."""
    began = time.perf_counter()
    subject = model(R1, quantization_config=FP8)
    choice = found(subject, "dell-xe9680-h100:8", goal(2, 2000, 500), "sglang").choice
    with capsys.disabled():
        print(f" 671B on 64 devices planned in {time.perf_counter() - began:.1f} s ", end="")
    assert choice is not None
    assert 8 < choice.devices <= 64
    assert choice.worst <= 1


@pytest.mark.parametrize("metric", ["ttft", "tpot", "itl", "e2el"])
def test_every_statistic_of_an_slo_can_be_judged(metric: str) -> None:
    served = tuple(Served(0.0, first / 100, first / 100 + first, osl=11) for first in range(1, 201))
    outcome = Outcome(served, seconds=1.0, busy=1.0)
    times = [
        {"ttft": each.first, "e2el": each.end}.get(metric, (each.end - each.first) / 10)
        for each in served
    ]
    wanted = {"mean": fmean(times), "std": pstdev(times), "median": median_low(times)}
    for kind, value in {**wanted, "p100": max(times), "p99": sorted(times)[197]}.items():
        slo = parse_slo("--slo", f"{kind}_{metric}_ms:1")
        assert statistic(outcome, slo.key) == pytest.approx(1e3 * value), slo.key
