"""From a configuration to a scheduler and an executor that are ready to work."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.config import EngineConfig
from penstock.core import InvalidValueError, PenstockError, WorkerFacts
from penstock.executor import Executor, InlineExecutor
from penstock.kv import BlockPool, PrefixCache
from penstock.model import ModelInfo, load_model
from penstock.scheduler import Limits, Scheduler

WORKER = "penstock.worker"
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


def start(config: EngineConfig, on_stage: StageSink, clock: Callable[[], float] = time.monotonic) -> Started:
    """Load the model and build the rooms around it. PenstockError says what is wrong, and the remedy."""
    began = time.monotonic()
    info = read_model(config)
    metadata = time.monotonic() - began
    executor = InlineExecutor(WORKER, config, info)
    for name, seconds, detail in executor.facts.stages:
        on_stage(name, seconds + metadata, detail)
        metadata = 0.0  # Belongs to the first stage, the reading of the model.
    if executor.facts.notice:
        log.warning("%s", executor.facts.notice)
    return Started(config, info, executor, build_scheduler(config, info, executor.facts, clock))


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
    config: EngineConfig, info: ModelInfo, facts: WorkerFacts, clock: Callable[[], float]
) -> Scheduler:
    limits = Limits(
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        max_model_len=facts.max_model_len,
        max_queue=config.scheduler.max_queue,
        vocab_size=info.spec.vocab,
        eos_token_ids=frozenset(info.tokens.stop),
    )
    pool = BlockPool(facts.num_blocks)
    block_size = config.cache.block_size
    prefix = _prefix_cache(pool, block_size, facts) if config.cache.prefix_caching else None
    return Scheduler(limits, pool, prefix, block_size, clock)


def _prefix_cache(pool: BlockPool, block_size: int, facts: WorkerFacts) -> PrefixCache:
    from penstock._native import hash_chain, hash_root

    return PrefixCache(pool, block_size, facts.cache_identity, hash_chain, hash_root)
