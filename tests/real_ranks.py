"""Engines with real ranks and tiny checkpoints, and executors alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from penstock.config import EngineConfig, Raw, resolve, shared_memory_directory
from penstock.core import Ranks
from penstock.core.codec import result_bytes
from penstock.engine import start, startup
from penstock.engine.sizing import KvSizes, plan_ranks, size_kv
from penstock.engine.startup import RAY_WORKER, WORKER, read_model
from penstock.executor import Executor
from penstock.model.sharding import plan_grid
from penstock.scheduler import Scheduler

TINY = Path(__file__).parent / "fixtures/tiny"
FAMILIES = ("alternating", "biased", "gpt2", "llama", "llama3", "mistral", "qwen2", "qwen3")
VOCAB = 256

Settings = Mapping[str, object]


def exact_config(family: str, settings: Settings) -> EngineConfig:
    """In float32, a thread for each rank."""
    everything = {"dtype": "float32", "kv_cache_memory_bytes": "1MiB", "threads": 1, **settings}
    raw = {name: Raw("test", (str(value),)) for name, value in everything.items()}
    return resolve(raw, str(TINY / family), family).engine


@contextmanager
def engine(
    family: str, num_blocks: int, **settings: object
) -> Iterator[tuple[Scheduler, Executor]]:
    """With so many blocks: less memory than the least that a flag may ask for."""

    def small(*facts: Any) -> KvSizes:
        sizes = size_kv(*facts)
        return replace(sizes, plan=replace(sizes.plan, num_blocks=num_blocks))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "size_kv", small)
        # A clock that stands still, so that runs can be compared as a whole.
        started = start(exact_config(family, settings), lambda *_: None, lambda: 0.0)
    try:
        yield started.scheduler, started.executor
    finally:
        started.close()


@contextmanager
def talkative_ranks(family: str, tokens: int, **settings: object) -> Iterator[Executor]:
    """Ranks with room for the log-probabilities of the whole vocabulary after each of `tokens`
    tokens.
    """
    config = exact_config(family, {**settings, "max_num_batched_tokens": tokens, "max_num_seqs": 2})
    info = read_model(config)
    grid = plan_grid(info.spec, config.parallel.tensor, config.parallel.pipeline)
    kv = size_kv(config, info, grid).plan
    ranks = plan_ranks(config, info, grid, kv)
    executor = _start(config, replace(ranks, result_bytes=result_bytes(2, tokens, VOCAB)))
    try:
        yield executor
    finally:
        executor.close()


def _start(config: EngineConfig, ranks: Ranks) -> Executor:
    each = replace(config, compute=replace(config.compute, threads=1))
    if config.parallel.backend == "inline":
        from penstock.executor.inline import InlineExecutor

        return InlineExecutor(WORKER, each, read_model(each), ranks.num_blocks)
    if config.parallel.backend == "ray":
        from penstock.executor.ray import RayExecutor

        return RayExecutor(RAY_WORKER, ranks, each, shared_memory_directory())
    from penstock.executor.mp import MultiprocExecutor

    return MultiprocExecutor(WORKER, ranks, each, shared_memory_directory())
