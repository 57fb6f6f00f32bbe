"""The cheapest of several targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock_ops.plan.engines import engine
from penstock_ops.plan.hardware import Target, parse_target, parse_targets
from penstock_ops.plan.prices import cheapest
from penstock_ops.plan.search import Question, candidates, judge
from tests.plan.conftest import Model, read
from tests.plan.test_search import ASKED, SPEED, goal


def question(model: Model, rate: float) -> Question:
    subject = model("Qwen/Qwen3-32B")
    return Question(subject, parse_target("l4-24gb"), engine("vllm"), ASKED, goal(rate), SPEED)


@pytest.mark.parametrize(
    "on",
    [
        "h100-sxm-80gb:8@2.5,l40s-48gb:16@0.9",
        "h100-sxm-80gb:8@2.5,l40s-48gb:16@0.4",
        "l40s-48gb:16@0.4,h100-sxm-80gb:8@2.5,azure-nd96isr-h100-v5:1@12",
        "azure-nd96isr-h100-v5:1@12,h100-sxm-80gb:8@4,h200-sxm-141gb:8@4",
    ],
)
def test_brute_force_over_targets_finds_nothing_cheaper(model: Model, on: str) -> None:
    targets = parse_targets(on)
    asked = question(model, 4)
    chosen, found, others = cheapest(asked, targets)
    assert found.choice is not None
    costs = [_least(model, target) for target in targets]
    assert chosen.target == targets[costs.index(min(costs))]
    assert chosen.target.cost(found.choice.devices) == min(costs)
    assert [other.on for other in others] == [t.on for t in targets if t != chosen.target]
    assert all(other.why for other in others)


def _least(model: Model, target: Target) -> float:
    """The least of all candidates with all counts of replicas."""
    asked, least = question(model, 4), math.inf
    each = Question(asked.subject, target, asked.rules, ASKED, asked.goal, SPEED)
    for candidate in candidates(each)[0]:
        for replicas in range(1, target.count // candidate.cut.size + 1):
            cost = target.cost(candidate.cut.size * replicas)
            assert cost is not None
            if cost < least and not judge(candidate, replicas, asked.goal, SPEED).failed:
                least = cost
    return least


def test_a_node_costs_the_same_in_part() -> None:
    target = parse_target("azure-nd96isr-h100-v5:3@30")
    assert [target.cost(devices) for devices in (1, 8, 9, 24)] == [30, 30, 60, 90]
    assert target.within(65).count == 16
    assert parse_target("l4-24gb:8@0.1").within(0.3).count == 3
    assert parse_target("l4-24gb:8").cost(4) is None


def test_a_plan_names_price_and_dearer_targets(
    directory: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "plan.yaml"
    words = ["--isl", "500", "--osl", "100", "--rate", "2", "--requests", "60"]
    on = "h100-sxm-80gb:4@2.5,l40s-48gb:8@0.5"
    path = str(directory("Qwen/Qwen3-32B"))
    assert main(["plan", path, "--on", on, *words, "-o", str(output)]) == 0
    plan = read(output)
    assert plan["target"]["on"] == "l40s-48gb:8"
    assert plan["choice"]["price_per_hour"] == 0.5 * plan["choice"]["devices"]
    assert [each["on"] for each in plan["other_targets"]] == ["h100-sxm-80gb:4"]
    assert "an hour on l40s-48gb:8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("on", "words", "said"),
    [
        ("l4-24gb:2,l40s-48gb@1", ["--rate", "1"], "a price for each"),
        ("l4-24gb:2@0", ["--rate", "1"], "a price of an hour over 0"),
        ("l4-24gb:2@cheap", ["--rate", "1"], "a price of an hour over 0"),
        ("l4-24gb:4@1,l40s-48gb:4@2", [], "one target, or a goal"),
    ],
)
def test_prices_that_cannot_be_used(
    directory: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    on: str,
    words: list[str],
    said: str,
) -> None:
    assert main(["plan", str(directory("Qwen/Qwen3-32B")), "--on", on, *words]) in (1, 2)
    assert said in capsys.readouterr().err
