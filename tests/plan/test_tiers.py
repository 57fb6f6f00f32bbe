"""Shared prefixes in virtual time, and KV tiers as a choice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from penstock.cli.main import main
from penstock.core import InvalidValueError
from penstock_lab.bench.slo import parse_slo
from penstock_ops.plan.engines import engine
from penstock_ops.plan.hardware import parse_target
from penstock_ops.plan.prefixes import CachedPrefix, Prefixes, Store
from penstock_ops.plan.search import Goal, Question, candidates, judge, search
from penstock_ops.plan.tiers import Tier, keeps, parse_tiers, store
from penstock_ops.plan.virtual import Arrival, Limits, Outcome, Replica
from tests.plan.conftest import FP8, R1, Model, read
from tests.plan.test_search import ASKED, SPEED
from tests.plan.test_virtual import on_the_scheduler, step_time

BLOCK = 16
RAM = Store(10**6, 1e-7)


def sessions(seed: int, count: int = 40, gap: float = 2.0, turns: int = 8) -> list[Arrival]:
    """Sessions whose prompts grow, in turns, far enough apart that a prompt is computed before the
    next one comes.
    """
    draw, found, histories = Random(seed), [], [[n] for n in range(turns)]
    for at in range(count):
        history = histories[draw.randrange(turns)]
        history += [1000 * (at + 1) + n for n in range(1, draw.randint(2, 5))]
        isl = len(history) * BLOCK - draw.randint(0, BLOCK - 1)
        found.append(Arrival(gap * at, isl, draw.choice([1, 5, 40]), tuple(history), BLOCK))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_prefixes_are_found_as_the_scheduler_finds_them(seed: int) -> None:
    arrivals, limits = sessions(seed), Limits(8, 4096, 16 * 4000)
    real = on_the_scheduler(arrivals, limits, prefix=True)
    outcome = Replica(step_time, limits, Prefixes()).run(arrivals)
    assert outcome.pooled > 1000
    assert [(each.first, each.end) for each in outcome.served] == [
        (pytest.approx(first), pytest.approx(end)) for first, end in real
    ]


def test_blocks_leave_in_the_order_of_their_use() -> None:
    prefixes = Prefixes()
    prefixes.keep((1, 2), BLOCK, 32)
    prefixes.keep((3,), BLOCK, 16)
    prefixes.keep((1, 2), BLOCK, 32)
    assert prefixes.find((1, 2, 9), BLOCK, 48, room=32) == CachedPrefix(32, 0, 0.0)
    assert prefixes.find((3, 9), BLOCK, 32, room=32) == CachedPrefix(0, 0, 0.0)
    # Of one prompt the first blocks stay longest: later ones are nothing without them.
    assert prefixes.find((1, 2, 9), BLOCK, 48, room=16) == CachedPrefix(16, 0, 0.0)


def test_the_last_token_is_computed_and_blocks_are_whole() -> None:
    prefixes = Prefixes()
    prefixes.keep((1, 2), 512, 700)
    assert prefixes.find((1, 2), 512, 700, room=1000).pooled == 688
    assert prefixes.find((1,), 512, 512, room=1000).pooled == 496


def test_what_left_the_kv_comes_from_the_first_tier_that_has_it() -> None:
    prefixes = Prefixes((Store(32, 1.0), Store(1000, 5.0)))
    prefixes.keep((1, 2, 3), BLOCK, 48)
    assert prefixes.find((1, 2, 3, 4), BLOCK, 64, room=16) == CachedPrefix(
        16, 32, 16 * 1.0 + 16 * 5.0
    )


def played(stores: tuple[Store, ...] | None, kv_tokens: int = 800) -> Outcome:
    prefixes = None if stores is None else Prefixes(stores)
    return Replica(step_time, Limits(4, 512, kv_tokens), prefixes).run(sessions(1, 60, 0.03))


def test_a_tier_saves_what_a_small_kv_forgets() -> None:
    nothing, pool, ram = played(None), played(()), played((RAM,))
    assert nothing.pooled == nothing.stored == pool.stored == 0
    assert ram.stored > pool.pooled
    waits = [each.percentile("ttft", 0.9) for each in (nothing, pool, ram)]
    assert waits == sorted(waits, reverse=True)
    assert waits[2] < 0.85 * waits[0]


def test_a_tier_that_is_slower_than_computing_is_not_read() -> None:
    slow = played((Store(10**6, 1.0),))
    assert slow.stored == 0
    assert [each.end for each in slow.served] == [each.end for each in played(()).served]


def test_loads_come_one_after_another() -> None:
    """Two requests at once: the second's load waits for the first's."""
    arrivals = [Arrival(at, 161, 1, tuple(range(11)), BLOCK) for at in (0.0, 100.0, 100.0)]
    one = Replica(step_time, Limits(4, 4096, 400), Prefixes((Store(10**6, 1e-5),)))
    other = [Arrival(50.0, 380, 1, tuple(range(100, 124)), BLOCK)]
    served = one.run(sorted([*arrivals, *other], key=lambda each: each.at)).served
    load, step = 160 * 1e-5, step_time(0, 0, 1, 0)
    assert served[2].ttft == pytest.approx(load + step)
    assert served[3].ttft == pytest.approx(max(2 * load, load + step) + step)


def test_a_tier_is_shared_by_the_devices_of_a_node(model: Model) -> None:
    subject = model("Qwen/Qwen3-32B")
    target = parse_target("azure-nd96isr-h100-v5:1")
    question = Question(subject, target, engine("vllm"), ASKED, goal(1), SPEED)
    one, two = (
        next(c for c in candidates(question)[0] if str(c.cut) == name) for name in ("TP1", "TP2")
    )
    stores = [store(Tier("ram", 1 << 40, None), each.memory, target) for each in (one, two)]
    assert stores[0].tokens == (1 << 40) // 8 // (256 * 1024)
    assert stores[1].tokens == 2 * stores[0].tokens
    assert stores[0].seconds == pytest.approx(256 * 1024 / 64e9)
    disk = store(Tier("disk", 1 << 40, 8.0), one.memory, target)
    assert disk.seconds == pytest.approx(256 * 1024 / 1e9)


def test_states_and_attention_by_requests_are_not_kept(model: Model) -> None:
    def kept(name: str, cut: str, **keys: object) -> bool:
        subject, target = model(name, **keys), parse_target("h200-sxm-141gb:16")
        question = Question(subject, target, engine("vllm"), ASKED, goal(1), SPEED)
        memory = next(c.memory for c in candidates(question)[0] if str(c.cut) == cut)
        return keeps(memory)

    assert kept(R1, "TP8", quantization_config=FP8)
    assert not kept(R1, "TP8 EP DP", quantization_config=FP8)
    assert not kept("Qwen/Qwen3.5-397B-A17B", "TP8")


def goal(rate: float) -> Goal:
    """Forty sessions with long histories, more than a few cards keep."""
    draw, arrivals, now = Random(3), [], 0.0
    for _ in range(160):
        now += draw.expovariate(rate)
        history = 100 * draw.randrange(40)
        names = (*range(history, history + 16), draw.randrange(10**4, 10**9))
        arrivals.append(Arrival(now, 16 * 512 + 200, 60, names, 512))
    return Goal(tuple(arrivals), (parse_slo("--slo", "p90_ttft_ms:3000"),))


TIERS = (Tier("ram", 1 << 39, None), Tier("disk", 1 << 42, 2.0))


def asked(model: Model, tiers: tuple[Tier, ...]) -> Question:
    subject, target = model("Qwen/Qwen3-32B"), parse_target("l40s-48gb:4")
    return Question(subject, target, engine("vllm"), ASKED, goal(1.0), SPEED, tiers=tiers)


def test_brute_force_over_tiers_finds_nothing_better(model: Model) -> None:
    question = asked(model, TIERS)
    choice = search(question).choice
    held = [
        (devices, len(candidate.tiers))
        for candidate in candidates(question)[0]
        for replicas in range(1, question.target.count // candidate.cut.size + 1)
        for devices in (candidate.cut.size * replicas,)
        if not judge(candidate, replicas, question.goal, SPEED).failed
    ]
    assert choice is not None
    assert (choice.devices, len(choice.candidate.tiers)) == min(held)


def test_a_tier_is_taken_where_it_saves_devices(model: Model) -> None:
    """The histories do not fit beside the weights on three L40S; they do in RAM."""
    without, ram = (search(asked(model, tiers)).choice for tiers in ((), TIERS[:1]))
    assert ram is not None
    assert without is not None
    assert ram.candidate.tiers == TIERS[:1]
    assert (ram.devices, without.devices) == (3, 4)


def test_a_plan_names_its_tiers(
    directory: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, output = tmp_path / "trace.jsonl", tmp_path / "plan.yaml"
    rows = [
        {
            "timestamp": 1e3 * each.at,
            "input_length": each.isl,
            "output_length": each.osl,
            "hash_ids": each.names,
        }
        for each in goal(1.0).arrivals
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    words = ["--on", "l40s-48gb:3", "--trace", str(trace), "--slo", "p90_ttft_ms:3000"]
    words += ["-tp", "1", "-pp", "3", "-o", str(output)]
    path = str(directory("Qwen/Qwen3-32B"))
    assert main(["plan", path, *words]) == 1
    assert main(["plan", path, *words, "--tiers", "ram:512GiB,disk:4TiB@2"]) == 0
    first, plan = output.read_bytes(), read(output)
    tiers = plan["choice"]["tiers"]
    assert [(tier["kind"], tier["bytes"]) for tier in tiers] == [("ram", 512 << 30)]
    assert plan["predictions"]["prompt_tokens_reused"]["tiers"] > 0.2
    assert "KV in ram too" in capsys.readouterr().out
    assert main(["plan", path, *words, "--tiers", "ram:512GiB,disk:4TiB@2"]) == 0
    assert output.read_bytes() == first


@pytest.mark.parametrize(
    "text",
    ["tape:1GiB", "ram", "ram:512GiB@0", "ram:512GiB@fast", "disk:1TiB", "ram:1GiB,ram:2GiB"],
)
def test_tiers_that_are_none(text: str) -> None:
    with pytest.raises(InvalidValueError, match="--tiers"):
        parse_tiers(text)


def test_tiers_need_shared_prefixes(
    directory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--on", "l4-24gb:8", "--rate", "1", "--tiers", "ram:1GiB"]
    assert main(["plan", str(directory("Qwen/Qwen3-8B")), *words]) in (1, 2)
    assert "whose prompts share prefixes" in capsys.readouterr().err
