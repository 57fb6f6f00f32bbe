"""The fewest devices of a model: table 2 of source 002, and brute force beside the search."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.core import InvalidValueError
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Load, engine
from penstock_ops.plan.fewest import in_one_stage, in_stages
from penstock_ops.plan.fitting import Placement
from penstock_ops.plan.hardware import parse_target
from penstock_ops.plan.memory import plan_memory
from penstock_ops.plan.subject import read_subject

PAGE = (Path(__file__).parents[2] / "docs/plan.md").read_text()
MAVERICK = "Llama-4-Maverick-17B-128E-Instruct"
SCOUT = "Llama-4-Scout-17B-16E-Instruct"


@dataclass(frozen=True)
class Row:
    """A row of table 2: a model, the source's own answer, and ours (devices in one stage)."""

    model: str
    tokens: int
    source: tuple[int, int]
    """Devices and servers."""
    devices: int
    fraction: float | None = None
    """Of table 4."""
    weights: str | None = None
    kv: str = "bf16"


TABLE_2 = (
    Row("gpt-oss-120b", 131072, (8, 1), 1),
    Row("Meta-Llama-3.1-405B", 131072, (16, 2), 16, 0.92),
    Row("DeepSeek-R1", 131072, (16, 2), 16, 0.85),
    Row("Mixtral-8x22B-v0.1", 65536, (8, 1), 4),
    Row("Qwen3-235B-A22B", 262144, (16, 2), 16, 0.8),
    Row("Kimi-K2-Instruct", 131072, (32, 4), 32),
    Row(MAVERICK, 1 << 20, (10, 2), 40),
    Row(MAVERICK, 1 << 20, (10, 2), 8, weights="fp8"),
    Row(SCOUT, 10 << 20, (5, 1), 8, weights="fp8", kv="fp8"),
)


def placed(row: Row) -> Placement:
    subject = read_subject(row.model, row.weights)
    load = Load(context=row.tokens, fraction=row.fraction)
    return Placement(subject, parse_target("dell-xe9680-h100"), engine("sglang"), load, row.kv)


def heads(placement: Placement) -> tuple[int, int]:
    mixers = [layer.mixer for layer in placement.subject.spec.layers]
    return (
        max(getattr(mixer, "heads", 0) for mixer in mixers),
        max(getattr(mixer, "kv_heads", 0) for mixer in mixers),
    )


def holds(placement: Placement, cut: Cut) -> bool:
    """Whether each rank has the bytes for its weights, the engine and one sequence."""
    subject, device = placement.subject, placement.target.accelerator
    try:
        memory = plan_memory(
            subject.spec,
            subject.weights,
            device,
            cut,
            placement.rules,
            placement.load,
            placement.kv,
        )
    except InvalidValueError:
        return False
    tokens = placement.load.context
    return all(
        rank.weights + sum(line.bytes for line in rank.engine) + rank.sequence(tokens) <= rank.total
        for rank in memory.ranks
    )


def brute(placement: Placement) -> int:
    """The fewest devices in one stage by rules of its own: equal numbers of query heads and of KV
    heads, or of ranks for a KV head, and equal parts on all servers.
    """
    query, kv = heads(placement)
    for count in range(1, 65):
        servers = math.ceil(count / 8)
        even = query % count == 0 and count % servers == 0
        shared = not kv or kv % count == 0 or count % kv == 0
        if even and shared and holds(placement, Cut(count, 1)):
            return count
    return 0


@pytest.mark.parametrize("row", TABLE_2, ids=lambda row: f"{row.model}-{row.weights}")
def test_table_2_of_source_002(row: Row) -> None:
    """With the memory fractions of the source where it has them."""
    placement = placed(row)
    found = in_one_stage(placement)
    assert found.devices == row.devices == brute(placement)
    same = row.devices == row.source[0]
    servers = math.ceil(row.devices / 8)
    assert same or MAVERICK in row.model or servers == row.source[1], "the page says why"
    for reason in found.reasons:
        for first, last in spans(reason):
            for count in range(first, last + 1):
                assert holds(placement, Cut(count, 1)), "memory is not what stands in the way"


def spans(reason: str) -> Iterator[tuple[int, int]]:
    """The numbers of devices in `40 heads do not divide by 14-19, 21`."""
    if " lacks " not in reason:
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", reason.rpartition(" by ")[2]):
            yield int(first), int(last or first)


def test_the_page_has_the_counts_of_table_2() -> None:
    (section,) = re.findall(r"^### What fits\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    found = [tuple(map(int, re.findall(r"\d+", "/".join(row[2:4])))) for row in rows]
    assert found == [(*row.source, row.devices, math.ceil(row.devices / 8)) for row in TABLE_2]


def test_stages_never_need_more_devices() -> None:
    for row in TABLE_2[2:4]:
        placement = placed(row)
        memory = in_stages(placement)
        assert memory is not None
        assert memory.cut.size <= in_one_stage(placement).devices
        assert holds(placement, memory.cut)


def test_several_models_in_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--on", "dell-xe9680-h100", "--table", "fit", "--weights", "bf16"]
    words += ["--kv-cache-dtype", "bf16", "--max-model-len", "40960"]
    assert main(["plan", MAVERICK, "Qwen3-8B", *words]) == 0
    printed = capsys.readouterr().out
    assert "on Dell PowerEdge XE9680, by the rules of vllm:" in printed
    maverick, small = (
        next(line.split() for line in printed.splitlines() if line.split()[:1] == [name])
        for name in (MAVERICK, "Qwen3-8B")
    )
    assert maverick[4:6] == ["40", "5"]
    assert small[4:6] == ["1", "1"]
    assert "8 KV heads do not divide by 20" in " ".join(maverick)
    assert "40 heads do not divide by 12-19, 21-39" in " ".join(maverick)


@pytest.mark.parametrize("name", ["vllm", "sglang", "penstock"])
def test_the_engine_and_the_fraction_count(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Mixtral in fp8 would fit on three devices, whose ranks do not divide 8 KV heads."""
    words = ["--on", "h100", "--table", "fit", "--weights", "fp8", "--kv-cache-dtype", "bf16"]
    assert main(["plan", "Mixtral-8x22B-v0.1", *words, "--engine", name]) == 0
    row = capsys.readouterr().out.splitlines()[4]
    assert row.split()[4] == ("2" if name == "penstock" else "4")
    assert ("8 KV heads do not divide by 3" in row) == (name != "penstock")
    assert main(["plan", "Mixtral-8x22B-v0.1", *words, "--engine", "vllm"]) == 0
    usual = capsys.readouterr().out.splitlines()[4].split()[4]
    less = [*words, "--engine", "vllm", "--memory-fraction", "0.4"]
    assert main(["plan", "Mixtral-8x22B-v0.1", *less]) == 0
    printed = capsys.readouterr().out
    assert "memory fraction 0.4" in printed
    assert int(printed.splitlines()[4].split()[4]) > int(usual)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["Qwen3-8B", "Qwen3-32B", "--on", "h100"], "one model; several: --table fit"),
        (["Qwen3-8B", "--table", "fit"], "devices of --list-hardware"),
        (["Qwen3-8B", "--table", "fit", "--on", "h100@2,l4@1"], "one target"),
        (
            [
                "Qwen3-8B",
                "DeepSeek-R1",
                "--table",
                "fit",
                "--on",
                "h100",
                "--max-model-len",
                "99999",
            ],
            "1 to 40960, the model's own length of Qwen3-8B",
        ),
        (["Qwen3-8B", "--on", "h100", "--memory-fraction", "1.5"], "0.01 to 1"),
        (["Qwen3-8B", "--on", "h100", "--memory-fraction", "nan"], "0.01 to 1"),
    ],
)
def test_questions_that_have_no_answer(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    assert said in capsys.readouterr().err
