"""Start-up: from a configuration to a ready scheduler and executor."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from penstock.config import EngineConfig, KvEventsConfig, cluster_key, shared_memory_directory
from penstock.config.machine import available_memory
from penstock.core import (
    Allocation,
    InvalidValueError,
    KvSpec,
    Loaded,
    PenstockError,
    WorkerFacts,
)
from penstock.core.progress import Report, silent, size
from penstock.engine.admin import KvAdmin
from penstock.engine.config_fingerprint import config_fingerprint
from penstock.engine.facts import cache_identity, join_facts
from penstock.engine.sizing import KvPlan, check_ram_tier, plan_layout, size_kv
from penstock.engine.start_log import memory, model_name, precision
from penstock.engine.tiers import open_tiers
from penstock.executor import Executor
from penstock.kv import BlockHasher, KvCache, KvEvents
from penstock.model import ModelInfo, load_model
from penstock.model.sharding import Grid, plan_grid
from penstock.scheduler import Limits, Scheduler
from penstock.scheduler.limits import AHEAD_SECONDS

log = logging.getLogger("penstock.engine")


class StageSink(Protocol):
    """Function that is called with each start-up stage when it ends."""

    def __call__(self, name: str, seconds: float, detail: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Started:
    config: EngineConfig
    info: ModelInfo
    executor: Executor
    scheduler: Scheduler
    admin: KvAdmin
    facts: WorkerFacts
    """Combined facts of all ranks."""
    kv: KvPlan
    cache_identity: bytes

    def close(self) -> None:
        """Shut the ranks down."""
        self.executor.close()


def start(
    config: EngineConfig,
    on_stage: StageSink,
    clock: Callable[[], float] = time.monotonic,
    *,
    arrivals: bool = True,
    on_progress: Report = silent,
) -> Started:
    """Load the model, size and allocate its KV pools, and build scheduler and executor. Raises
    PenstockError with the cause and the remedy. `arrivals`: whether requests can arrive while
    others are computed. `on_progress` receives progress lines while weights are loaded.
    """
    began = time.monotonic()
    info = read_model(config)
    parallel = config.parallel
    grid = plan_grid(info.spec, parallel.tensor, parallel.pipeline, by_experts=parallel.by_experts)
    metadata = time.monotonic() - began
    executor = build_executor(config, info, grid, on_progress)
    try:
        facts = join_facts([loaded.facts for loaded in executor.loaded])
        report(executor.loaded, info, grid, metadata, on_stage)
        kv = size_kv(config, info, executor.loaded)
        check_ram_tier(config, kv, executor.loaded)
        if kv.notice:
            log.warning("%s", kv.notice)
        began = time.monotonic()
        executor.allocate(Allocation(kv.blocks))
        pool = memory(kv, config.cache, facts, config.tiers)
        detail = f"{pool}; {describe_free(available_memory())}"
        on_stage("memory allocated", time.monotonic() - began, detail)
        identity = cache_identity(facts, info.spec.to_json())
        cache = build_kv_cache(config, kv, executor.loaded[0].kv_spec, identity)
        opened = open_tiers(config, executor.transfers, kv, cache, identity, clock)
        limits = replace(build_limits(config, info, kv, facts), arrivals=arrivals)
        scheduler = Scheduler(limits, cache, clock, opened.tiers)
        admin = KvAdmin(cache, opened, executor.transfers.mover_reports)
    except BaseException:
        executor.close()
        raise
    return Started(config, info, executor, scheduler, admin, facts, kv, identity)


def build_executor(
    config: EngineConfig, info: ModelInfo, grid: Grid, report: Report = silent
) -> Executor:
    """Build the executor that is configured; returns when its ranks have loaded. `report` receives
    progress lines.
    """
    if config.parallel.backend == "inline":
        from penstock.backends import load_backend
        from penstock.executor.inline import InlineExecutor

        return InlineExecutor(load_backend(config, info, report=report))
    threads = max(config.compute.threads // config.parallel.most_ranks_on_a_node, 1)
    each = replace(config, compute=replace(config.compute, threads=threads))
    layout, directory = plan_layout(config, info, grid), shared_memory_directory()
    if config.parallel.backend == "ray":
        from penstock.executor.ray import connect_ray

        return connect_ray(layout, each, directory, report=report)
    if config.parallel.nnodes > 1:
        from penstock.executor.nodes import connect_nodes

        key, shared = cluster_key(config.parallel.token_file), config_fingerprint(config, info)
        return connect_nodes(layout, each, directory, key, shared, report)
    from penstock.executor.mp import connect_processes

    return connect_processes(layout, each, directory, report)


def report(
    loaded: Sequence[Loaded], info: ModelInfo, grid: Grid, metadata: float, on_stage: StageSink
) -> None:
    """Report the loaded model, after a line for each of several ranks. The stages of a rank are
    logged for debugging.
    """
    facts = join_facts([each.facts for each in loaded])
    for rank, each in enumerate(loaded):
        for name, seconds, detail in each.facts.stages:
            log.debug("rank %d: %s %.2f s (%s)", rank, name, seconds, detail)
        if len(loaded) > 1:
            _report_rank(rank, each, info, grid, on_stage)
    seconds = metadata + max(sum(taken for _, taken, _ in each.facts.stages) for each in loaded)
    on_stage(f"{model_name(info.name)} loaded", seconds, precision(facts, grid))


def _report_rank(
    rank: int, loaded: Loaded, info: ModelInfo, grid: Grid, on_stage: StageSink
) -> None:
    own = loaded.facts
    name, _, held = grid.describe(rank, info.spec).partition(": ")
    weights = f"{own.weights_bytes / 2**20:.0f} MiB, {own.device} on {own.threads} threads"
    weights += f" of {own.host}" if own.host else ""
    seconds = sum(seconds for _, seconds, _ in own.stages)
    on_stage(f"{name} loaded", seconds, ", ".join([f"{held}; {weights}", *free(loaded)]))


def free(loaded: Loaded) -> list[str]:
    """Text about the free memory of a rank: GPU memory for KV if the rank has a GPU, and host
    memory if it is on this host.
    """
    own = loaded.facts
    gpu = [f"{size(loaded.free_memory)} of GPU memory free for KV"] if own.own_memory else []
    return gpu if own.host else [*gpu, describe_free(available_memory())]


def describe_free(host: int) -> str:
    return f"{size(host)} of memory free"


def read_model(config: EngineConfig) -> ModelInfo:
    """The model's metadata, checked against the settings. Raises PenstockError for a malformed or
    unreadable file.
    """
    try:
        own = config.model
        info = load_model(Path(own.path), served=own.max_model_len, dummy=own.dummy)
    except PenstockError:
        raise
    except (OSError, ValueError) as error:
        raise PenstockError(str(error)) from error
    asked, most = config.model.max_model_len, info.spec.max_position
    if asked and asked > most:
        raise InvalidValueError("--max-model-len", asked, f"at most {most}, the model's own length")
    return info


def build_limits(config: EngineConfig, info: ModelInfo, kv: KvPlan, facts: WorkerFacts) -> Limits:
    return Limits(
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        max_model_len=kv.max_model_len,
        max_queue=config.scheduler.max_queue,
        vocab_size=info.spec.vocab,
        eos_token_ids=frozenset(info.tokens.stop),
        stages=config.parallel.pipeline,
        by_priority=config.scheduler.policy == "priority",
        pooling=info.pooling,
        max_wait=config.scheduler.max_wait or math.inf,
        # Always plan ahead on a GPU. Otherwise the GPU would be idle between steps, for a few
        # percent of every decode step.
        ahead_seconds=math.inf if facts.own_memory else AHEAD_SECONDS,
    )


def build_kv_cache(config: EngineConfig, kv: KvPlan, spec: KvSpec, identity: bytes) -> KvCache:
    hasher = None
    if config.cache.prefix_caching or config.tiers.tiers:
        from penstock._native import hash_chain, hash_root

        hasher = BlockHasher(spec.block_size, identity, hash_chain, hash_root)
    return KvCache(
        spec.block_size,
        kv.blocks,
        windows=[group.window for group in spec.groups],
        chunked=[group.chunked for group in spec.groups],
        step_tokens=config.scheduler.max_num_batched_tokens,
        hasher=hasher,
        searched=config.cache.prefix_caching,
        events=open_events(config.cache.events) if hasher is not None else None,
    )


def open_events(settings: KvEventsConfig | None) -> KvEvents | None:
    """The publisher of KV events, if configured. Raises PenstockError if it cannot listen on its
    address.
    """
    if settings is None:
        return None
    from penstock._native import KvEventPublisher

    try:
        return KvEventPublisher(
            settings.endpoint,
            settings.replay_endpoint,
            settings.topic,
            settings.buffer_steps,
            settings.hwm,
        )
    except (RuntimeError, ValueError) as error:
        raise PenstockError(f"--kv-events-config: {error}") from error
