"""The native decoder as a worker: one rank's part of the model, or the whole of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.config import EngineConfig
from penstock.core import PenstockError, StepPlan, WorkerFacts
from penstock.core.transfer import Moved, OpenTiers, Transfer
from penstock.model import ModelInfo
from penstock.worker.tiers import mover_options

if TYPE_CHECKING:
    from penstock._native import Decoder, KvMover, StepFuture


def create(
    config: EngineConfig, info: ModelInfo, num_blocks: int, rank: tuple[str, str] | None = None
) -> Worker:
    """Load the weights and reserve the KV blocks; errors name the tensor, the flag or the size at
    fault.

    `rank` is the JSON of a `Shard` and of the `Wiring` to the other ranks; None for a model in one
    piece.
    """
    from penstock._native import Decoder

    options = json.dumps(decoder_options(config))
    try:
        decoder = Decoder(
            info.spec.to_json(), info.names.to_json(), list(info.paths), options, rank
        )
        _, groups = decoder.kv_spec()
        decoder.allocate([num_blocks] * len(groups))
    except ValueError as error:
        raise PenstockError(str(error)) from error
    return Worker(decoder, lambda tiers: mover_options(config, tiers))


class Worker:
    """`options` gives what the mover is told. Without tiers there is no mover, and nothing to call
    it for.
    """

    def __init__(self, decoder: Decoder, options: Callable[[OpenTiers], dict[str, object]]) -> None:
        self._decoder = decoder
        self._options = options
        self._mover: KvMover
        self._flush_s: float | None = None
        self.facts = WorkerFacts(
            fingerprint=decoder.fingerprint,
            numerics=decoder.numerics,
            isa=decoder.isa,
            threads=decoder.threads,
            weights_bytes=decoder.weights_bytes,
            stages=tuple(decoder.stages),
        )

    def submit(self, plan: StepPlan) -> StepFuture:
        return self._decoder.submit(plan)

    def put(self, carried: bytes) -> None:
        """What the stage before left, for the next plan, where the wiring says that it is carried."""
        self._decoder.put(carried)

    def fetch(self, timeout: float) -> bytes:
        """What the oldest plan left for the stage after, where the wiring says that it is carried."""
        return self._decoder.fetch(timeout)

    def open_tiers(self, tiers: OpenTiers) -> None:
        """PenstockError says which tier cannot be opened, why, and the remedy."""
        from penstock._native import KvMover

        try:
            self._mover = KvMover(self._decoder, json.dumps(self._options(tiers)))
        except ValueError as error:
            raise PenstockError(str(error)) from error
        self._flush_s = tiers.flush_s

    def transfer(self, transfer: Transfer) -> None:
        self._mover.submit(transfer)

    def moved(self, timeout: float) -> list[Moved]:
        return self._mover.take(timeout)

    def mover_report(self) -> str:
        return self._mover.report()

    def close_tiers(self) -> None:
        """Stores under way end, or their time does."""
        assert self._flush_s is not None, "closed before it was opened"
        self._mover.close(self._flush_s)

    def close(self) -> None:
        if self._flush_s is not None:
            self.close_tiers()
            del self._mover
        del self._decoder


def decoder_options(config: EngineConfig) -> dict[str, object]:
    return {
        "threads": config.compute.threads,
        "max_num_seqs": config.scheduler.max_num_seqs,
        "max_batched_tokens": config.scheduler.max_num_batched_tokens,
        "block_size": config.cache.block_size,
        "kv_dtype": config.kv_dtype,
        "quantization": config.model.quantization,
        "dtype": config.model.dtype,
        "isa": config.compute.isa,
    }
