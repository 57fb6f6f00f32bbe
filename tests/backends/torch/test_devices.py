"""Steps on a fake GPU (`fake_cuda.py`): operations have all tensors in one memory, `submit` waits
for the device only where that is meant, and a graph holds all of its work.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock._native import decode_sampling, encode_sampling
from penstock.backends.torch import backend as backend_module
from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.ranks import ranks
from penstock.backends.torch.ranks.group import LibraryGroup
from penstock.backends.torch.ranks.symmetric import LARGEST, SymmetricGroup
from penstock.backends.torch.sampling.logit_processors import Rules
from penstock.backends.torch.step import flash, prompt_graphs
from penstock.backends.torch.step.step import Step
from penstock.core import Allocation, KvSpec, Pooling, StepPlan, StepResult
from penstock.core.plan import LAST_SAMPLED, LATE_MASK, NO_TOKEN
from penstock.engine.sizing import plan_layout
from penstock.engine.startup import read_model
from penstock.model.sharding import plan_grid
from tests.backends.torch import fake_kernels
from tests.backends.torch.driving import Driver, Part, backend, config_of
from tests.backends.torch.fake_cuda import GPU, GRAPHS, FakeCuda, OnGpu, Watch, fake_cuda
from tests.backends.torch.fake_kernels import Kernel
from tests.backends.torch.fake_library import Nccl
from tests.backends.torch.quantised import with_fp8, with_mxfp4
from tests.backends.torch.sampling.test_grammars import Scripted, scripted
from tests.backends.torch.sampling.test_sampling import CHANGED, same
from tests.backends.torch.test_families import PROMPT
from tests.families import FAMILIES
from tests.limits import HANG

__all__ = ["scripted"]
CAPTURE = "step/captures.py:capture_graph"
BEFORE = "step/step.py:settle_before"
TO_STAGE = "ranks/ranks.py:send"
PLANS = "step/flash.py:plan"
MEANT = {
    CAPTURE: "once for each size of a step",
    BEFORE: "rules that read the output, and grammars, take the step before in",
    TO_STAGE: "rows go to the next stage by way of the host",
    PLANS: "FlashInfer's plan goes through pinned memory, which has to be free",
}
"""The waits of `submit`."""
AT_START = {
    "load/uploads.py:memory": "a pinned buffer is written again when its copies have ended",
    "load/recipes.py:check_finite": "one look at all weights",
    "load/feed_forward.py:_experts": "whether scales are too large for the kernels",
    "load/load.py:_rotations": "tables that the host computes",
    "step/device.py:synchronize": "before other streams are used",
    "step/device.py:result": "the end of the warm-up",
    "backend.py:_all_compiled": "whether other ranks have their kernels",
    "step/device.py:release": "before memory is given back",
    CAPTURE: "the largest graphs, ways to measure",
    "startup/tuning.py:seconds_of": "the clock",
    "startup/tuning.py:_milliseconds": "the times of experts from codes and widened",
    PLANS: "as in steps",
}
QUANTISED = ["deepseek2.gguf", "gemma3.gguf", "gpt2.gguf", "gptoss.gguf", "llama3.gguf"]
"""Roles, orders of rows and forms that other checkpoints have not."""


@dataclass
class Gpu:
    """A backend that computes on one."""

    loaded: TorchBackend
    watch: Watch
    kernels: dict[str, Kernel]
    waits: list[str] = field(default_factory=list)
    """Those of all calls of `submit`, by the place that they are meant for."""

    def kv_spec(self) -> KvSpec:
        return self.loaded.kv_spec()

    def submit(self, plan: StepPlan) -> Step:
        self.watch.waits.clear()
        step = self.loaded.submit(plan)
        for wait in self.watch.waits:
            meant = [place for place in wait.places if place in MEANT]
            assert meant, f"{wait.what} at {wait.places[0]}"
            self.waits.append(meant[0])
            # The forward pass of this step is launched by then.
            assert meant[0] != BEFORE or wait.behind > 20
        return step


@contextmanager
def on_gpu(
    model: str,
    rank: tuple[str, str] | None = None,
    capability: tuple[int, int] = (9, 0),
    blocks: int = 96,
    **settings: object,
) -> Iterator[Gpu]:
    with pytest.MonkeyPatch.context() as patch, fake_cuda(capability) as watch:
        kernels = fake_kernels.install(patch)
        # Those of the steps below: each takes as long as two of them.
        patch.setattr(prompt_graphs, "TOKENS", (32, 80))
        config = config_of(model, **settings)
        loaded = TorchBackend(config, read_model(config), rank, FakeCuda(0))
        loaded.allocate(Allocation((blocks,) * len(loaded.kv_spec().groups)))
        assert {wait.places[0] for wait in watch.waits} <= set(AT_START)
        # What no token wrote is read by no token.
        for pool in loaded._model.pools:
            pool.blocks.fill_(torch.nan)
        try:
            yield Gpu(loaded, watch, kernels)
        finally:
            loaded.close()


def steps(driver: Driver) -> list[StepResult]:
    """Prompts, chunks of them beside decodes, behind the blocks of others, scores, drafts, and
    decodes alone.
    """
    for slot, fields in enumerate(({}, {"temperature": 0.9, "top_k": 12, "seed": 7}, {})):
        driver.register(slot, encode_sampling(**fields))
    driver.register(3, encode_sampling(logprobs=3))
    each = [Part(slot, [LAST_SAMPLED]) for slot in range(4)]
    planned: list[tuple[Part, ...]] = [
        (Part(0, PROMPT[:20]),),
        (Part(1, PROMPT[:30], sample=False, score=True), each[0]),
        (each[0], Part(1, PROMPT[30:]), Part(2, PROMPT[:40])),
        (each[1], each[0], each[2]),
        (each[1], each[0], each[2]),
        (Part(3, PROMPT), Part(0, [LAST_SAMPLED, 5, 7], drafts=2)),
        tuple(each),
        (each[2],),
    ]
    found = [driver.run(*parts) for parts in planned]
    for slot in (4, 5):
        driver.register(slot)
        driver.share(slot, 1, 1)
    ragged = (Part(4, PROMPT[16:30]), each[1], Part(5, [9]), Part(2, [5, 7, 9]))
    return [*found, driver.run(*ragged), driver.run(Part(4, [LAST_SAMPLED]), each[2])]


@pytest.mark.parametrize("model", [*FAMILIES, *QUANTISED])
def test_a_family_waits_for_nothing(model: str) -> None:
    with backend(model) as host:
        expected = steps(Driver(host))
    with on_gpu(model) as gpu:
        driver = Driver(gpu)
        found = steps(driver)
        # Before the second step of as many tokens, of 32 and of 80; of as many decodes; and of as
        # many draws behind prompts.
        assert gpu.waits == [CAPTURE] * 4
        for pool, free in zip(gpu.loaded._model.pools, driver.free, strict=True):
            assert pool.blocks[free].isnan().all(), "rows of padding were stored"
        launched = {name for name, kernel in gpu.kernels.items() if kernel.launched}
    assert {"_scan", "_narrow", "_list", "_draw_rows"} < launched
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tokens
        same(ours.logprobs, theirs.logprobs)
        same(ours.prompt_logprobs, theirs.prompt_logprobs)


EXPERTS = ["gptoss", "llama4moe", "qwen2moe", "deepseek3"]


@pytest.mark.parametrize("capability", [(9, 0), (8, 0)], ids=["hopper", "ampere"])
@pytest.mark.parametrize("family", [*EXPERTS, "gemma3"])
def test_bfloat16_waits_for_nothing(family: str, capability: tuple[int, int]) -> None:
    """Experts by torch's grouped product on the one, by a kernel on the other."""
    with on_gpu(family, capability=capability, dtype="auto") as gpu:
        assert len(steps(Driver(gpu))) == 10
        assert gpu.waits == [CAPTURE] * 4
        grouped = gpu.kernels["_grouped"].launched
    assert bool(grouped) == (family in EXPERTS and capability == (8, 0))


@pytest.mark.parametrize("capability", [(9, 0), (8, 0)], ids=["hopper", "ampere"])
@pytest.mark.parametrize("form", ["fp8", "mxfp4"])
def test_experts_of_codes_wait_for_nothing(
    form: str, tmp_path: Path, capability: tuple[int, int]
) -> None:
    model = with_fp8("qwen3moe", tmp_path) if form == "fp8" else with_mxfp4(tmp_path)
    with on_gpu(model, capability=capability) as gpu:
        assert len(steps(Driver(gpu))) == 10
        assert gpu.waits == [CAPTURE] * 4
        assert gpu.kernels["_grouped"].launched


def with_rules(backend: Any, fields: dict[str, object]) -> list[list[int]]:
    driver = Driver(backend)
    for slot in range(2):
        text = PROMPT[: 40 + slot]
        sampling = encode_sampling(**{"seed": slot, **fields}) if slot else None
        driver.register(slot, sampling, (text, len(text)))
        driver.run(Part(slot, text))
    each = [Part(slot, [LAST_SAMPLED]) for slot in range(2)]
    found = [driver.run(*each).tokens.tolist() for _ in range(3)]
    found.append(driver.run(Part(1, [LAST_SAMPLED, 5, 206], drafts=2)).tokens.tolist())
    # A plan ahead of the results of those before it.
    driver.back(1, 2)
    ahead = [backend.submit(driver.plan(*each)) for _ in range(3)]
    return found + [step.result(HANG).tokens.tolist() for step in ahead]


@pytest.mark.parametrize("fields", [*CHANGED, {"logprobs": 4}], ids="-".join)
def test_a_draw_with_rules_waits_for_the_step_before_it_alone(fields: dict[str, object]) -> None:
    """And only where it reads that step's token."""
    with backend("llama") as host:
        expected = with_rules(host, fields)
    with on_gpu("llama") as gpu:
        assert with_rules(gpu, fields) == expected
        reads = Rules(decode_sampling(encode_sampling(**fields)), (), 0, 64).needs_history
        # A prompt of as many tokens as the one before, a second decode; two plans made ahead.
        assert sorted(gpu.waits) == [CAPTURE, CAPTURE, *[BEFORE] * (2 * reads)]


def test_masks_of_grammars_wait_for_the_step_before_alone(
    scripted: list[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks that are there, that are late, and of a grammar that has ended."""
    with on_gpu("llama") as gpu:
        driver = Driver(gpu)
        for slot, grammar in enumerate((b"scripted", b"scripted", b"")):
            driver.register(slot, grammar=grammar)
            driver.run(Part(slot, PROMPT[: 20 + slot]))
        each = [Part(slot, [LAST_SAMPLED]) for slot in range(3)]
        ahead = [gpu.submit(driver.plan(*each)) for _ in range(3)]
        assert gpu.waits == [CAPTURE, CAPTURE, BEFORE, BEFORE]
        result = ahead[-1].result(HANG)
        for token, own in zip(result.tokens, scripted, strict=False):
            assert token in own.allowed(own.output[:-1])
        scripted[0].late = True
        monkeypatch.setattr(scripted[1], "mask", lambda *_: NO_TOKEN)
        late = gpu.submit(driver.plan(*each)).result(HANG)
        assert late.tokens[:2].tolist() == [LATE_MASK, NO_TOKEN]
        assert len(gpu.waits) == 4


@pytest.mark.parametrize("pooling", [Pooling.LAST, Pooling.MEAN])
def test_vectors_wait_for_nothing(pooling: Pooling) -> None:
    def vector(loaded: Any) -> np.ndarray:
        driver = Driver(loaded)
        driver.register(0)
        plans = [driver.plan(Part(0, each, False)) for each in (PROMPT[:20], PROMPT[20:50])]
        plans.append(driver.plan(Part(0, PROMPT[50:])))
        plans[0].registrations[0] = replace(plans[0].registrations[0], pooling=pooling)
        (*_, last) = [loaded.submit(plan) for plan in plans]
        return np.frombuffer(last.result(HANG).vectors[0], dtype="<f4")

    with backend("qwen3") as host:
        expected = vector(host)
    with on_gpu("qwen3") as gpu:
        assert np.abs(vector(gpu) - expected).max() < 1e-5
        assert gpu.waits == [CAPTURE]


def shards(family: str, tp: int, pp: int, **settings: object) -> Sequence[str]:
    sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp, **settings}
    config = config_of(family, **sizes)
    info = read_model(config)
    grid = plan_grid(info.spec, tp, pp, by_experts=config.parallel.by_experts)
    return plan_layout(config, info, grid).shards


@pytest.mark.parametrize("small", [False, True], ids=["nccl", "symmetric"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {}),
        ("gptoss", {}),
        ("deepseek3", {}),
        ("qwen3moe", {"enable_expert_parallel": "true"}),
        ("qwen2moe", {"enable_expert_parallel": "true", "dtype": "auto"}),
    ],
)
def test_a_rank_of_several_waits_for_nothing(
    family: str,
    settings: dict[str, object],
    rank: int,
    small: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def opened(_wiring: Any, shard: Any, device: torch.device, **_: Any) -> Any:
        group: Any = LibraryGroup(Nccl(), shard.rank, shard.ranks)
        if small:
            buffer = torch.zeros(LARGEST, dtype=torch.uint8, device=device)
            group = SymmetricGroup(group, buffer, "ranks")
            monkeypatch.setattr(
                "penstock.backends.torch.ranks.symmetric.unregister", lambda _: None
            )
        return ranks.Ranks(group), None

    def closed(_group: LibraryGroup) -> None:
        # The collector is off in a server, and what was there at the start it never sees.
        left.extend(graph() for graph in GRAPHS)

    left: list[object] = []
    monkeypatch.setattr(LibraryGroup, "close", closed)
    monkeypatch.setattr(backend_module, "open_ranks", opened)
    shard = shards(family, 2, 1, **settings)[rank]
    with on_gpu(family, (shard, json.dumps(backend_module.ALONE)), **settings) as gpu:
        driver = Driver(gpu)
        driver.register(0)
        driver.register(1, encode_sampling(logprobs=2))
        gpu.submit(driver.plan(Part(0, PROMPT[:20]), Part(1, PROMPT, score=True)))
        for slots in ([0], [0], [0, 1]):
            gpu.submit(driver.plan(*(Part(slot, [LAST_SAMPLED]) for slot in slots)))
        # That of two rows, of which one wants more.
        assert gpu.waits == [CAPTURE]
    assert left
    assert set(left) == {None}, "NCCL waits for the graphs that have its operations"


@pytest.mark.parametrize("kind", ["carried", "tensors"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_waits_for_its_rows_alone(stage: int, kind: str) -> None:
    way = {"kind": kind}
    ends = {"before": way if stage else None, "after": None if stage else way}
    wiring = {"group": None, "patience_s": HANG, **ends}
    with on_gpu("llama", (shards("llama", 1, 2)[stage], json.dumps(wiring))) as gpu:
        driver = Driver(gpu)
        driver.register(0)
        hidden = gpu.loaded._spec.model.hidden
        for tokens in (PROMPT[:20], [5]):
            rows = torch.ones(len(tokens), hidden)
            if stage:
                given: Any = rows.numpy().tobytes()
                gpu.loaded.put(given if kind == "carried" else rows.to(GPU))
            step = gpu.submit(driver.plan(Part(0, tokens)))
            if stage == 0:
                sent = gpu.loaded.fetch(HANG)
                assert isinstance(sent, bytes if kind == "carried" else OnGpu)
            assert len(step.result(HANG).tokens) == stage
        assert gpu.waits == [TO_STAGE] * (2 if stage == 0 and kind == "carried" else 0)


class Wrapper:
    """FlashInfer's, which reads plans on the host and has the blocks on the GPU."""

    def __init__(self, workspace: Tensor, *_: str, backend: str, **staying: Any) -> None:
        buffers = [each for each in staying.values() if isinstance(each, Tensor)]
        assert all(isinstance(each, OnGpu) for each in (workspace, *buffers))
        self.planned = False

    def plan(
        self, rows: Tensor, pages: Tensor, blocks: Tensor, last: Tensor, *_: int, **__: Any
    ) -> None:
        assert isinstance(blocks, OnGpu)
        assert not any(isinstance(each, OnGpu) for each in (rows, pages, last))
        assert len(blocks) == pages[-1]
        self.planned = True

    def run(self, q: Tensor, pools: tuple[Tensor, Tensor]) -> Tensor:
        assert self.planned
        assert all(isinstance(each, OnGpu) for each in (q, *pools))
        return torch.zeros_like(q)


@pytest.mark.parametrize("family", ["alternating", "qwen3moe"])
def test_plans_of_flashinfer_wait_for_those_before(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash, "refusal", lambda *_: "")
    module = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Wrapper)
    monkeypatch.setattr(flash, "module", lambda: module)
    monkeypatch.setattr(flash, "WORKSPACE", 1 << 20)
    with on_gpu(family, device="cuda", attention_backend="flashinfer") as gpu:
        steps(Driver(gpu))
        # All graphs were captured before the rank was ready.
        assert set(gpu.waits) == {PLANS}
        assert not gpu.kernels["_attend_decode"].launched
