"""From a configuration to a scheduler and an executor that are ready to work."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from penstock.config import EngineConfig, cluster_key, shared_memory_directory
from penstock.config.memory import KvPlan
from penstock.core import InvalidValueError, PenstockError, WorkerFacts
from penstock.engine.admin import KvAdmin
from penstock.engine.card import node_card
from penstock.engine.facts import cache_identity, join_facts
from penstock.engine.report import tier_report
from penstock.engine.sizing import KvSizes, plan_ranks, size_kv
from penstock.engine.tiers import open_tiers
from penstock.executor import Executor
from penstock.kv import BlockPool, PrefixCache
from penstock.kv_tiers import Tiers
from penstock.model import ModelInfo, load_model
from penstock.model.sharding import Grid, plan_grid
from penstock.scheduler import Limits, Scheduler

WORKER = "penstock.worker"
RAY_WORKER = "penstock.worker.actor"
log = logging.getLogger("penstock.engine")


class StageSink(Protocol):
    """Hears of each stage of the start as it ends."""

    def __call__(self, name: str, seconds: float, detail: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Started:
    config: EngineConfig
    info: ModelInfo
    executor: Executor
    scheduler: Scheduler
    admin: KvAdmin
    facts: WorkerFacts
    """Of all ranks together."""
    kv: KvSizes
    cache_identity: bytes

    def close(self) -> None:
        """End the ranks."""
        self.executor.close()


def start(
    config: EngineConfig, on_stage: StageSink, clock: Callable[[], float] = time.monotonic
) -> Started:
    """Load the model and build the rooms around it. PenstockError says what is wrong, and the
    remedy.
    """
    began = time.monotonic()
    info = read_model(config)
    grid = plan_grid(info.spec, config.parallel.tensor, config.parallel.pipeline)
    kv = size_kv(config, info, grid)
    metadata = time.monotonic() - began
    executor = build_executor(config, info, grid, kv.plan)
    try:
        facts = join_facts(executor.facts)
        report(executor.facts, info, grid, metadata, on_stage)
        if kv.plan.notice:
            log.warning("%s", kv.plan.notice)
        identity = cache_identity(facts, info.spec.to_json())
        pool = BlockPool(kv.plan.num_blocks)
        tiers = open_tiers(config, executor, kv, pool, identity, clock)
        prefix = build_prefix(config, pool, identity)
        scheduler = build_scheduler(config, info, kv.plan, pool, prefix, tiers, clock)
        admin = KvAdmin(pool, prefix, tiers, lambda: tier_report(tiers, executor.mover_reports()))
    except BaseException:
        executor.close()
        raise
    return Started(config, info, executor, scheduler, admin, facts, kv, identity)


def build_executor(config: EngineConfig, info: ModelInfo, grid: Grid, kv: KvPlan) -> Executor:
    """Of the kind that the configuration names; returns when its ranks have loaded their parts."""
    if config.parallel.backend == "inline":
        from penstock.executor.inline import InlineExecutor

        return InlineExecutor(WORKER, config, info, kv.num_blocks)
    threads = max(config.compute.threads // config.parallel.most_ranks_on_a_node, 1)
    each = replace(config, compute=replace(config.compute, threads=threads))
    ranks = plan_ranks(config, info, grid, kv)
    if config.parallel.backend == "ray":
        from penstock.executor.ray import RayExecutor

        return RayExecutor(RAY_WORKER, ranks, each, shared_memory_directory())
    if config.parallel.nnodes > 1:
        from penstock.executor.nodes import NodesExecutor

        key, card = cluster_key(config.parallel.token_file), node_card(config, info)
        return NodesExecutor(WORKER, ranks, each, shared_memory_directory(), key, card)
    from penstock.executor.mp import MultiprocExecutor

    return MultiprocExecutor(WORKER, ranks, each, shared_memory_directory())


def report(
    facts: Sequence[WorkerFacts], info: ModelInfo, grid: Grid, metadata: float, on_stage: StageSink
) -> None:
    """The stages of a rank alone; of several ranks a line for each, with what it holds."""
    if len(facts) == 1:
        for name, seconds, detail in facts[0].stages:
            on_stage(name, seconds + metadata, detail)
            metadata = 0.0  # Belongs to the first stage, the reading of the model.
        return
    on_stage("model read", metadata, f"{grid.tp} x {grid.pp} ranks (tensor x pipeline)")
    for rank, own in enumerate(facts):
        name, _, held = grid.describe(rank, info.spec).partition(": ")
        memory = f"{own.weights_bytes / 2**20:.0f} MiB, {own.isa} on {own.threads} threads"
        memory += f" of {own.host}" if own.host else ""
        on_stage(
            f"{name} loaded", sum(seconds for _, seconds, _ in own.stages), f"{held}; {memory}"
        )


def read_model(config: EngineConfig) -> ModelInfo:
    """Metadata of the model, checked against the settings; a malformed file is a PenstockError too."""
    try:
        info = load_model(Path(config.model.path))
    except PenstockError:
        raise
    except ValueError as error:
        raise PenstockError(str(error)) from error
    asked, most = config.model.max_model_len, info.spec.max_position
    if asked and asked > most:
        raise InvalidValueError("--max-model-len", asked, f"at most {most}, the model's own length")
    return info


def build_scheduler(
    config: EngineConfig,
    info: ModelInfo,
    kv: KvPlan,
    pool: BlockPool,
    prefix: PrefixCache | None,
    tiers: Tiers,
    clock: Callable[[], float],
) -> Scheduler:
    limits = Limits(
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        max_model_len=kv.max_model_len,
        max_queue=config.scheduler.max_queue,
        vocab_size=info.spec.vocab,
        eos_token_ids=frozenset(info.tokens.stop),
        stages=config.parallel.pipeline,
    )
    return Scheduler(limits, pool, prefix, config.cache.block_size, clock, tiers)


def build_prefix(config: EngineConfig, pool: BlockPool, identity: bytes) -> PrefixCache | None:
    if not config.cache.prefix_caching and not config.tiers.tiers:
        return None
    from penstock._native import hash_chain, hash_root

    searched = config.cache.prefix_caching
    return PrefixCache(pool, config.cache.block_size, identity, hash_chain, hash_root, searched)
