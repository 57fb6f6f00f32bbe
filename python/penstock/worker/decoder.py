"""The native decoder as a worker: one rank's part of the model, or the whole of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.config import EngineConfig
from penstock.core import PenstockError, StepPlan, WorkerFacts
from penstock.model import ModelInfo

if TYPE_CHECKING:
    from penstock._native import Decoder, Ticket


def create(
    config: EngineConfig, info: ModelInfo, num_blocks: int, rank: tuple[str, str] | None = None
) -> Worker:
    """Load the weights and reserve the KV blocks; errors name the tensor, the flag or the size at fault.

    `rank` is the JSON of a `Shard` and of the `Wiring` to the other ranks; None for a model in one piece.
    """
    from penstock._native import Decoder

    options = json.dumps(decoder_options(config, num_blocks))
    try:
        decoder = Decoder(info.spec.to_json(), info.names.to_json(), list(info.paths), options, rank)
    except ValueError as error:
        raise PenstockError(str(error)) from error
    return Worker(decoder)


class Worker:
    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.facts = WorkerFacts(
            fingerprint=decoder.fingerprint,
            numerics=decoder.numerics,
            isa=decoder.isa,
            threads=decoder.threads,
            weights_bytes=decoder.weights_bytes,
            stages=tuple(decoder.stages),
        )

    def submit(self, plan: StepPlan) -> Ticket:
        return self._decoder.submit(plan)

    def close(self) -> None:
        del self._decoder


def decoder_options(config: EngineConfig, num_blocks: int) -> dict[str, object]:
    return {
        "threads": config.compute.threads,
        "max_num_seqs": config.scheduler.max_num_seqs,
        "max_batched_tokens": config.scheduler.max_num_batched_tokens,
        "block_size": config.cache.block_size,
        "num_blocks": num_blocks,
        "kv_dtype": config.kv_dtype,
        "quantization": config.model.quantization,
        "dtype": config.model.dtype,
        "isa": config.compute.isa,
    }
