"""Bars of a device's memory."""

from __future__ import annotations

import pytest

from penstock_ops.plan.bars import ASCII, BLOCKS, MOST_BARS, NAMES, WIDTH, bars, parts
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Load, engine
from penstock_ops.plan.hardware import accelerator
from penstock_ops.plan.memory import Memory, plan_memory
from tests.plan.conftest import FP8, R1, Model


def memory(model: Model, name: str, cut: Cut, rules: str = "vllm", **keys: object) -> Memory:
    subject, device = model(name, **keys), accelerator("h100-sxm-80gb")
    return plan_memory(subject.spec, subject.weights, device, cut, engine(rules), Load())


def drawn(lines: list[str], marks: str) -> list[str]:
    """The bars alone, without what precedes and follows them."""
    ends = [line.rstrip().split(" lacks")[0].split()[-1] for line in lines[1:]]
    return [end for end in ends if len(end) == WIDTH and set(end) <= set(marks)]


@pytest.mark.parametrize("rules", ["vllm", "sglang", "penstock"])
def test_the_parts_are_the_whole_device(model: Model, rules: str) -> None:
    held = memory(model, "Qwen/Qwen3-32B", Cut(2, 1), rules)
    for rank in held.ranks:
        assert sum(parts(rank).values()) == rank.total
        assert tuple(parts(rank)) == NAMES


@pytest.mark.parametrize("marks", [ASCII, BLOCKS])
def test_a_bar_is_as_wide_as_its_parts_are_large(model: Model, marks: str) -> None:
    held = memory(model, "Qwen/Qwen3-32B", Cut(1, 1))
    (bar,) = drawn(bars(held, marks), marks)
    for mark, size in zip(marks, parts(held.fullest).values(), strict=True):
        assert bar.count(mark) == pytest.approx(WIDTH * size / held.fullest.total, abs=1)
    assert "".join(sorted(bar, key=marks.index)) == bar


def test_each_kind_of_rank_has_a_bar(model: Model) -> None:
    lines = bars(memory(model, R1, Cut(8, 2), quantization_config=FP8), ASCII)
    assert lines[0] == "Memory of each device, 80.00 GiB (sizes: rank 8, the fullest):"
    assert [line.split("  ")[1] for line in lines[1:3]] == ["ranks 0-7", "ranks 8-15"]
    assert len(drawn(lines, ASCII)) == 2
    assert "# weights 40.88 GiB" in lines[3]


def test_many_kinds_of_ranks_have_the_fullest_ones_bar(model: Model) -> None:
    held = memory(model, "Qwen/Qwen3-32B", Cut(3, 5), "penstock")
    assert len({rank.weights for rank in held.ranks}) > MOST_BARS
    lines = bars(held, ASCII)
    assert len(drawn(lines, ASCII)) == 1
    assert lines[1].strip().startswith(f"rank {held.fullest.rank} ")


def test_what_does_not_fit_ends_at_the_edge(model: Model) -> None:
    held = memory(model, R1, Cut(8, 1), quantization_config=FP8)
    lines = bars(held, ASCII)
    assert lines[1].endswith(" lacks 10.83 GiB")
    (bar,) = drawn(lines, ASCII)
    assert "=" not in bar
    assert not any("KV" in line for line in lines)
