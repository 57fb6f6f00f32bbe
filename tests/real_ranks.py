"""Engines with real ranks and tiny checkpoints, and executors alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.config import EngineConfig, Raw, resolve
from penstock.core import Allocation
from penstock.core.codec import result_bytes
from penstock.engine import start, startup
from penstock.engine.sizing import KvPlan, plan_layout, size_kv
from penstock.engine.startup import build_executor, read_model
from penstock.executor import Executor
from penstock.executor.ranks import RankLayout
from penstock.model.sharding import plan_grid
from penstock.scheduler import Scheduler

TINY = Path(__file__).parent / "fixtures/tiny"
VOCAB = 256

Settings = Mapping[str, object]


def exact_config(family: str, settings: Settings) -> EngineConfig:
    """In float32, a thread for each rank."""
    everything = {"dtype": "float32", "kv_cache_memory_bytes": "1MiB", "threads": 1, **settings}
    texts = {name: each if isinstance(each, list) else [each] for name, each in everything.items()}
    raw = {name: Raw("test", tuple(map(str, each))) for name, each in texts.items()}
    return resolve(raw, str(TINY / family), family).engine


def kv_groups(executor: Executor) -> int:
    return len(executor.loaded[0].kv_spec.groups)


@contextmanager
def engine(
    family: str, num_blocks: int, **settings: object
) -> Iterator[tuple[Scheduler, Executor]]:
    """With so many blocks: less memory than the least that a flag may ask for."""

    def small(*facts: Any) -> KvPlan:
        plan = size_kv(*facts)
        return replace(plan, blocks=(num_blocks,) * len(plan.blocks))

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
    parallel = config.parallel
    grid = plan_grid(info.spec, parallel.tensor, parallel.pipeline, by_experts=parallel.by_experts)

    def roomy(*facts: Any) -> RankLayout:
        return replace(plan_layout(*facts), result_bytes=result_bytes(2, tokens, VOCAB, 64))

    # A thread for each rank.
    most = config.parallel.most_ranks_on_a_node
    config = replace(config, compute=replace(config.compute, threads=most))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "plan_layout", roomy)
        executor = build_executor(config, info, grid)
    try:
        blocks = size_kv(config, info, executor.loaded).blocks
        # Sequences of these tests give nothing back, in groups with a window neither.
        executor.allocate(Allocation((max(blocks),) * len(blocks)))
        yield executor
    finally:
        executor.close()
