"""Memory of each rank: beside a published start-up log, and properties."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core import PenstockError
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import ENGINES, Load, engine, sglang_reserve
from penstock_ops.plan.hardware import GIB, OWN_SHARE, Accelerator, accelerator
from penstock_ops.plan.here import here
from penstock_ops.plan.memory import Memory, plan_memory, sized
from penstock_ops.plan.subject import Subject, read_subject
from tests.plan.conftest import FP8, R1, Model

H100 = accelerator("h100-sxm-80gb")
PAGE = (Path(__file__).parents[2] / "docs/plan.md").read_text()


def planned(subject: Subject, cut: Cut, name: str = "vllm", **load: object) -> Memory:
    settings = Load(**load)  # type: ignore[arg-type]
    return plan_memory(subject.spec, subject.weights, H100, cut, engine(name), settings)


def test_the_log_of_source_002(model: Model) -> None:
    """DeepSeek-R1 by SGLang on 16 H100, `--mem-fraction-static 0.85`: 76.88 GB before the weights,
    36.55 after them, 381,804 tokens in 24.99 GB.
    """
    memory = planned(
        model(R1, quantization_config=FP8), Cut(16, 1), "sglang", fraction=0.85, context=163840
    )
    rank = memory.fullest
    assert rank.weights / GIB == pytest.approx(40.33, rel=0.04)
    pool = 36.55 - 76.88 * (1 - 0.85)
    assert pool == pytest.approx(24.99, rel=0.005)
    assert pool * GIB / rank.growth == pytest.approx(381_804, rel=0.005)
    # Nothing of the log known: 2.7% more, for the weights' and the groups' differences.
    assert memory.kv_tokens == pytest.approx(381_804, rel=0.03)
    assert f"| 40.33 GiB | {rank.weights / GIB:.2f} GiB |" in PAGE
    assert f"| 381,804 | {memory.kv_tokens:,} | +2.7%" in PAGE


def test_the_rules_of_sglang_on_the_free_memory_of_source_002s_log(model: Model) -> None:
    """What the log shows free before the weights (76.88 GB, 1.75 of process groups gone) and after
    them (36.55) through the engine's own rule: pool and tokens as logged.
    """
    before, after, groups = (round(size * GIB) for size in (76.88, 36.55, 1.75))
    subject, cut = model(R1, quantization_config=FP8), Cut(16, 1)
    logged = replace(H100, memory=round((before + groups) / (1 - OWN_SHARE)))
    load = Load(fraction=0.85, context=163840)
    sizes = sized(subject.spec, subject.weights, logged, cut, "bf16")
    ranks = tuple(replace(rank, weights=before - after) for rank in sizes.ranks)
    kept = engine("sglang").rule(subject.spec, logged, cut, load)
    memory = Memory(cut, ranks).beside(kept)
    assert {line.name: line.bytes for line in kept}["communicators"] == groups
    assert memory.fullest.room / GIB == pytest.approx(24.99, rel=0.005)
    assert memory.kv_tokens == pytest.approx(381_804, rel=0.005)
    assert f"| 24.99 GiB | {memory.fullest.room / GIB:.2f} GiB |" in PAGE
    assert f"| 381,804 | {memory.kv_tokens:,} | +0.1%" in PAGE
    # The same rule without a log: 0.8% more free before the weights.
    usable = H100.usable - groups
    assert usable / GIB == pytest.approx(76.88, rel=0.01)


def test_two_stages_hold_twice_the_tokens_of_latent_attention(model: Model) -> None:
    """Every rank has the whole latent of its layers: half the layers, twice the tokens."""
    subject = model(R1, quantization_config=FP8)
    one, two = (planned(subject, cut, "sglang", fraction=0.85) for cut in (Cut(16, 1), Cut(8, 2)))
    assert two.kv_tokens / one.kv_tokens == pytest.approx(1.97, rel=0.02)
    assert one.concurrency(8192) == 47


def test_a_head_on_two_ranks_is_paid_twice(model: Model) -> None:
    subject = model("HuggingFaceTB/SmolLM2-135M")
    one, two = (planned(subject, cut, "penstock") for cut in (Cut(1, 1), Cut(2, 1)))
    # 9 query heads over 2 ranks: 5 and 4, with the middle one of 3 KV heads on both.
    assert [rank.growth / one.ranks[0].growth for rank in two.ranks] == [2 / 3, 2 / 3]
    assert two.imbalance > 1


def test_attention_by_requests_has_whole_attention_and_divided_sequences(model: Model) -> None:
    subject = model(R1, quantization_config=FP8)
    by_heads, by_requests = (planned(subject, Cut(8, 2, True, by)).ranks[0] for by in (False, True))
    attention = {line.name: line.bytes for line in by_heads.parts}["attention"]
    whole_attention = {line.name: line.bytes for line in by_requests.parts}["attention"]
    assert attention < whole_attention < 8 * attention  # Projections to the latent are on all.
    memory = planned(subject, Cut(8, 2, True, True))
    assert memory.kv_tokens > 4 * planned(subject, Cut(8, 2, True)).kv_tokens


def test_more_memory_never_holds_fewer_tokens(model: Model) -> None:
    subject = model("Qwen/Qwen3-32B")
    small, large = H100, accelerator("h200-sxm-141gb")
    for name in ENGINES:
        for cut in (Cut(1, 1), Cut(2, 1), Cut(4, 2)):
            tokens = [
                plan_memory(
                    subject.spec, subject.weights, device, cut, engine(name), Load()
                ).kv_tokens
                for device in (small, large)
            ]
            assert tokens[0] <= tokens[1]


def test_what_does_not_fit_is_named_with_rank_and_bytes(model: Model) -> None:
    memory = planned(model("meta-llama/Meta-Llama-3.1-405B"), Cut(8, 1))
    assert not memory.fits
    assert memory.lacking(16).startswith("rank 0 lacks ")
    assert "weights 94." in memory.lacking(16)


def test_engines_refuse_cuts(model: Model) -> None:
    spec = model("meta-llama/Llama-4-Maverick-17B-128E-Instruct").spec
    assert engine("sglang").refuses(spec, Cut(16, 1), 8) == "40 heads do not divide by 16"
    assert not engine("penstock").refuses(spec, Cut(16, 1), 8)  # Heads are cut unevenly.
    assert not engine("penstock").refuses(spec, Cut(7, 2), 8)
    with pytest.raises(PenstockError, match="--engine"):
        engine("tgi")


def test_the_default_reserve_of_sglang() -> None:
    load = Load(chunk=8192, sequences=160)
    assert sglang_reserve(Cut(8, 1), load) == 512 * 2**20 + 12288 * 2**20 + 320 * 2**20 + 2**30
    assert sglang_reserve(Cut(1, 1), Load(chunk=2048, sequences=8)) < 4 * GIB


def test_ranks_of_this_machine_share_its_memory(model_file: Path) -> None:
    subject, device = read_subject(str(model_file)), here()
    one, two = (
        plan_memory(subject.spec, subject.weights, device, cut, engine("penstock"), Load(256, 64))
        for cut in (Cut(1, 1), Cut(2, 1))
    )
    assert sum(rank.total for rank in two.ranks) == pytest.approx(device.memory, abs=2)
    assert sum(rank.room for rank in two.ranks) < one.ranks[0].room


def test_a_model_of_windows_holds_what_its_sequences_see(model: Model) -> None:
    memory = planned(model("mistralai/Mistral-7B-v0.1"), Cut(1, 1))
    assert memory.ranks[0].growth == 0
    room, block = memory.ranks[0].room, 16 * 128 * 1024
    assert memory.kv_tokens == room // (block * 4096 // 16) * 4096
    assert memory.concurrency(100_000) == memory.concurrency(4096)


def test_this_machine_is_a_target(model_file: Path) -> None:
    device = here()
    assert isinstance(device, Accelerator)
    assert device.is_cpu
    assert device.memory > 0
    subject = read_subject(str(model_file))
    memory = plan_memory(
        subject.spec, subject.weights, device, Cut(1, 1), engine("penstock"), Load(256, 64)
    )
    assert memory.fits
    assert memory.ranks[0].growth == 30 * 3 * 2 * 64 * 2
