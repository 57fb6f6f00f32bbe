"""The backend of docs/adding-a-backend.md: a model that counts."""

from __future__ import annotations

from penstock.config import EngineConfig
from penstock.config.machine import available_memory
from penstock.core import (
    Allocation,
    KvGroup,
    KvSpec,
    Numerics,
    PenstockError,
    StepPlan,
    StepResult,
    WorkerFacts,
)
from penstock.core.progress import Report
from penstock.core.transfer import OpenTiers
from penstock.model import ModelInfo

LAST_SAMPLED = -1
"""In a plan: the token that the slot sampled last."""


def load(
    config: EngineConfig, info: ModelInfo, rank: tuple[str, str] | None, report: Report
) -> CountingBackend:
    return CountingBackend(config, info)


class CountingBackend:
    def __init__(self, config: EngineConfig, info: ModelInfo) -> None:
        self._block_size = config.cache.block_size
        self._layers = tuple(range(len(info.spec.layers)))
        self._vocab = info.spec.vocab
        self._last: dict[int, int] = {}
        self.facts = WorkerFacts(
            fingerprint=bytes(32),
            numerics=Numerics(weights=("none",), activations="none", kv="none"),
            device="abacus",
            threads=1,
            weights_bytes=0,
        )

    def kv_spec(self) -> KvSpec:
        group = KvGroup(self._layers, block_bytes=4 * self._block_size)
        return KvSpec(self._block_size, (group,))

    def free_memory(self) -> int:
        return available_memory()

    def allocate(self, allocation: Allocation) -> None:
        """A real backend makes `allocation.blocks[g]` blocks for each group `g` here."""

    def submit(self, plan: StepPlan) -> Counted:
        result, end = StepResult(), 0
        for slot, length, sample in zip(plan.slots, plan.lengths, plan.sample, strict=True):
            end += length
            token = plan.tokens[end - 1]
            if token == LAST_SAMPLED:
                token = self._last[slot]
            result.counts.append(sample)
            if sample:
                self._last[slot] = (token + 1) % self._vocab
                result.tokens.append(self._last[slot])
        return Counted(result)

    def open_tiers(self, tiers: OpenTiers) -> object:
        raise PenstockError("--kv-tier: this backend has no tiers")

    def close(self) -> None: ...


class Counted:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self, timeout: float | None = None) -> StepResult:
        return self._result
