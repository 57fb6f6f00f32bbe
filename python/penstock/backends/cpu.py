"""The native decoder as a backend: one rank on CPU cores."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.backends.cpu_options import decoder_options
from penstock.backends.mover_options import direct_tiers, mover_options
from penstock.backends.watching import watched
from penstock.config import EngineConfig
from penstock.config.machine import available_memory
from penstock.core import (
    Allocation,
    KvGroup,
    KvSpec,
    Numerics,
    PenstockError,
    StepPlan,
    WorkerFacts,
)
from penstock.core.progress import Report, silent
from penstock.core.transfer import OpenTiers
from penstock.model import ModelInfo

if TYPE_CHECKING:
    from penstock._native import Decoder, KvMover, StepFuture


def load(
    config: EngineConfig,
    info: ModelInfo,
    rank: tuple[str, str] | None,
    report: Report = silent,
) -> CpuBackend:
    """Load the rank's weights. Raises PenstockError, which names the tensor or the flag
    at fault.
    """
    from penstock._native import Decoder, ReadCount

    options, count = json.dumps(decoder_options(config)), ReadCount()
    try:
        with watched(count, report):
            decoder = Decoder(
                info.spec.to_json(), info.weights.to_json(), list(info.paths), options, rank, count
            )
    except ValueError as error:
        raise PenstockError(str(error)) from error
    return CpuBackend(decoder, config)


class CpuBackend:
    def __init__(self, decoder: Decoder, config: EngineConfig) -> None:
        self._decoder = decoder
        self._config = config
        self.facts = WorkerFacts(
            fingerprint=decoder.fingerprint,
            numerics=parse_numerics(decoder.numerics),
            device=decoder.isa,
            threads=decoder.threads,
            weights_bytes=decoder.weights_bytes,
            stages=tuple(decoder.stages),
        )

    def kv_spec(self) -> KvSpec:
        block_size, groups = self._decoder.kv_spec()
        found = (
            KvGroup(tuple(layers), size, window, chunked)
            for layers, size, window, chunked in groups
        )
        return KvSpec(block_size, tuple(found))

    def free_memory(self) -> int:
        """Bytes of free memory of this host, divided evenly among the ranks of this host."""
        return available_memory() // self._config.parallel.most_ranks_on_a_node

    def allocate(self, allocation: Allocation) -> None:
        try:
            self._decoder.allocate(allocation.blocks)
        except ValueError as error:
            raise PenstockError(str(error)) from error

    def submit(self, plan: StepPlan) -> StepFuture:
        return self._decoder.submit(plan)

    def put(self, carried: bytes) -> None:
        self._decoder.put(carried)

    def fetch(self, timeout: float) -> bytes:
        return self._decoder.fetch(timeout)

    def open_tiers(self, tiers: OpenTiers) -> KvMover:
        from penstock._native import KvMover

        direct_tiers(self._config, supported=False)
        try:
            return KvMover(self._decoder, json.dumps(mover_options(self._config, tiers)))
        except ValueError as error:
            raise PenstockError(str(error)) from error

    def close(self) -> None:
        del self._decoder


def parse_numerics(text: str) -> Numerics:
    weights, activations, kv = text.split("/")
    forms = tuple(form for form in weights.split("+") if form)
    return Numerics(forms, activations, kv.removeprefix("kv-"))
