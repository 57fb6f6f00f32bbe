"""The warm-up: it takes what any step may and leaves no trace, compiles the kernels of all steps,
and names the flags where memory runs out.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from penstock.backends.torch import backend as backend_module
from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.kernels import Matrix, Scoring, attend_prefill, decode, experts
from penstock.backends.torch.kernels.grouped import grouped_sizes
from penstock.backends.torch.kernels.prefill import prefill_sizes
from penstock.backends.torch.layers import attention, feed_forward
from penstock.backends.torch.load.weights import HeadWeights, MixtureWeights
from penstock.backends.torch.startup.warm_up import largest, warm_up
from penstock.core import PenstockError
from penstock.model.spec import Attention
from tests.backends.torch.driving import BLOCK, TOKENS, Driver, Part, backend
from tests.backends.torch.ranks.test_ranks import cut
from tests.backends.torch.test_families import PROMPT
from tests.limits import HANG


def run(loaded: TorchBackend, blocks: int) -> list[int]:
    driver = Driver(loaded, blocks)
    driver.register(0)
    found = driver.run(Part(0, PROMPT)).tokens.tolist()
    for _ in range(5):
        found += driver.run(Part(0, found[-1:])).tokens.tolist()
    return found


@pytest.mark.parametrize("family", ["llama", "deepseek2", "gemma3", "gptoss", "llama4moe"])
def test_the_warm_up_leaves_no_trace(family: str) -> None:
    """Only the first block of each KV group is written, which is then a block like the others."""
    with backend(family) as loaded:
        assert isinstance(loaded, TorchBackend)
        expected = run(loaded, 96)
    with backend(family) as loaded:
        assert isinstance(loaded, TorchBackend)
        for pool in loaded._model.pools:
            pool.blocks.fill_(float("nan"))
        warm_up(loaded._model, loaded._on_device, loaded._limits)
        for pool in loaded._model.pools:
            written = [block for block in range(96) if not pool.blocks[block].isnan().all()]
            assert written == [0]
        assert run(loaded, 96) == expected


@pytest.mark.parametrize("family", ["llama", "alternating", "deepseek2"])
def test_the_warm_up_compiles_the_decode_kernels_of_all_steps(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number of splits that a step may have, on a GPU of 132 multiprocessors, has had one."""
    monkeypatch.setattr(decode, "multiprocessors", lambda _: 132)
    # So that the few tokens of a tiny model are worth 8 splits.
    monkeypatch.setattr(decode, "SPLIT_TOKENS", 16)
    seen: set[tuple[object, ...]] = set()

    def noted(q: torch.Tensor, pool: torch.Tensor, tables: torch.Tensor, *more: object) -> None:
        rows, tokens = len(q), tables.shape[1] * BLOCK
        scoring = next((each for each in more if isinstance(each, Scoring)), None)
        window = (scoring.window or scoring.chunk) if scoring else 0
        programs = rows * (pool.shape[1] if scoring else 1)
        seen.add((window, decode.split_count(programs, min(window or tokens, tokens), q.device)))

    for name in ("attend_decode", "attend_latent"):
        compute = getattr(attention, name)

        def call(*words: Any, compute: Any = compute, name: str = name, **more: Any) -> Any:
            own = words if name == "attend_latent" else (words[0], words[1], *words[3:])
            noted(*own)
            return compute(*words, **more)

        monkeypatch.setattr(attention, name, call)
    with backend(family, max_model_len=128, max_num_seqs=64) as loaded:
        assert isinstance(loaded, TorchBackend)
        warm_up(loaded._model, loaded._on_device, loaded._limits)
        compiled, width = set(seen), loaded._on_device.tables(torch.tensor([0]), None)[0].shape[1]
        seen.clear()
        for rows in range(1, 65):
            for blocks in range(1, width + 1):
                for layer in loaded._weights.layers:
                    q = torch.empty(rows, 1, 1)
                    pool = loaded._model.pools[layer.mixer.kv_group].blocks
                    rule = layer.mixer.spec
                    scoring = (
                        [Scoring(1.0, window=rule.window or 0, chunk=rule.chunk or 0)]
                        if isinstance(rule, Attention)
                        else []
                    )
                    noted(q, pool, torch.empty(rows, blocks), *scoring)
        assert seen <= compiled
        assert {splits for _, splits in compiled} == {1, 2, 4, 8}


@pytest.mark.parametrize("family", ["llama", "gemma3", "gptoss", "deepseek3"])
def test_the_warm_up_meets_each_tile_of_a_prompt(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a kernel, which would be compiled under load."""
    seen: set[tuple[object, ...]] = set()

    def tiles(q: torch.Tensor, k: torch.Tensor, max_rows: int) -> None:
        sizes = prefill_sizes(q.shape[1] // k.shape[1], 128, 128, 2, max_rows, 227 << 10)
        seen.add(("attention", *sizes.values()))

    def products(places: int, inner: Matrix) -> None:
        seen.add(("experts", *grouped_sizes(places, len(inner.codes), "mxfp4", 2).values()))

    def attend(
        q: torch.Tensor, k: torch.Tensor, *more: Any, max_rows: int, out: torch.Tensor
    ) -> torch.Tensor:
        tiles(q, k, max_rows)
        return attend_prefill(q, k, *more, max_rows=max_rows, out=out)

    def mixture(x: torch.Tensor, indices: torch.Tensor, *more: Any, **rules: Any) -> torch.Tensor:
        products(indices.numel(), more[1])
        return experts(x, indices, *more, **rules)

    monkeypatch.setattr(attention, "attend_prefill", attend)
    monkeypatch.setattr(feed_forward, "experts", mixture)
    with backend(family, max_num_batched_tokens=512) as loaded:
        assert isinstance(loaded, TorchBackend)
        warm_up(loaded._model, loaded._on_device, loaded._limits)
        compiled = set(seen)
        seen.clear()
        for layer in loaded._weights.layers:
            for rows in range(2, loaded._limits.tokens + 1):
                if isinstance(layer.mixer.projections, HeadWeights):
                    own = layer.mixer.projections
                    tiles(torch.empty(1, own.hq, 1), torch.empty(1, own.hk, 1), rows)
                if isinstance(layer.feed_forward, MixtureWeights):
                    products(rows * layer.feed_forward.chosen, layer.feed_forward.inner)
        assert seen <= compiled
        assert len(seen) > 1


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (2, 2)])
def test_ranks_warm_up_together_and_stages_alone(tp: int, pp: int) -> None:
    """All ranks of the last stage, while the stages before do nothing."""
    with cut("llama", tp, pp) as ranks, ThreadPoolExecutor(tp) as pool:
        last = ranks.ranks[-tp:]
        works = [pool.submit(warm_up, x._model, x._on_device, x._limits) for x in last]
        for work in works:
            work.result(HANG)


def test_ranks_of_different_heads_warm_up_with_the_same_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They sum them: other rows of one would hang all."""
    monkeypatch.setattr(decode, "SPLIT_TOKENS", 1)
    monkeypatch.setattr(decode, "multiprocessors", lambda _: 132)
    with backend("llama", max_num_seqs=256) as loaded:
        assert isinstance(loaded, TorchBackend)
        model = loaded._model
        limits = replace(loaded._limits, slots=256, tokens=512)

        def rows(ranks: int, heads: int) -> list[list[int]]:
            layers = [
                replace(
                    layer,
                    mixer=replace(
                        layer.mixer, projections=replace(layer.mixer.projections, hk=heads)
                    ),
                )
                for layer in model.weights.layers
            ]
            own = replace(model, weights=replace(model.weights, layers=tuple(layers)))
            own = replace(own, shard=replace(model.shard, ranks=ranks))
            return largest(own, loaded._on_device, limits)

        assert rows(1, 1) != rows(1, 2)
        assert rows(2, 1) == rows(2, 2)
        alone = [rows(1, heads)[1] for heads in (1, 2)]
        assert all(each in rows(2, 1) for each in alone)


def test_a_warm_up_that_is_out_of_memory_names_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has")

    monkeypatch.setattr(backend_module, "warm_up", full)
    with backend("llama") as loaded:
        assert isinstance(loaded, TorchBackend)
        match = rf"for a step of {TOKENS} tokens: .*3.00 GiB.*--max-num-batched-tokens"
        with pytest.raises(PenstockError, match=match):
            loaded._warm_up()


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_rows_that_are_sent_while_the_next_step_computes_are_counted(
    monkeypatch: pytest.MonkeyPatch, dtype: str, size: int
) -> None:
    with backend("llama", dtype=dtype) as loaded:
        assert isinstance(loaded, TorchBackend)
        monkeypatch.setattr(loaded._device, "free_memory", lambda: 1 << 40)
        free = loaded.free_memory()
        parallel = replace(loaded._config.parallel, ray_overlap_comm=True)
        loaded._config = replace(loaded._config, parallel=parallel)
        hidden = loaded._spec.model.hidden
        assert free - loaded.free_memory() == TOKENS * hidden * size


def test_tables_have_the_positions_that_are_served() -> None:
    """A model of a million positions that serves 64 has tables for 64."""
    served = 64
    with backend("llama", max_model_len=served) as loaded:
        assert isinstance(loaded, TorchBackend)
        assert {len(each.cos) for each in loaded._weights.rotations} == {served}
        tables = loaded._on_device.tables(torch.tensor([0]), None)
        assert [table.shape[1] for table in tables] == [served // BLOCK]
        driver = Driver(loaded)
        driver.register(0)
        driver.run(Part(0, PROMPT[:60], sample=False))
        assert len(driver.run(Part(0, PROMPT[:4])).tokens) == 1
        with pytest.raises(ValueError, match="position"):
            driver.run(Part(0, PROMPT[:1]))
