"""A backend that answers with the last token of the prompt, again and again.

docs/adding-a-backend.md has the calls and the rules.
"""

from collections.abc import Sequence

from penstock.config import EngineConfig
from penstock.config.machine import available_memory
from penstock.core import KvGroup, KvSpec, Numerics, StepPlan, StepResult, WorkerFacts
from penstock.core.progress import Report
from penstock.model import ModelInfo

LAST_SAMPLED = -1  # in a plan: the token that the slot sampled last


class EchoBackend:
    def __init__(self, block_size: int, layers: int) -> None:
        # One group of layers, and 4 bytes for each token: there are no keys and values.
        group = KvGroup(tuple(range(layers)), block_bytes=4 * block_size)
        self._kv_spec = KvSpec(block_size, (group,))
        self._last: dict[int, int] = {}  # token by slot
        numerics = Numerics(weights=("none",), activations="none", kv="none")
        self.facts = WorkerFacts(bytes(32), numerics, device="echo", threads=1, weights_bytes=0)

    def kv_spec(self) -> KvSpec:
        return self._kv_spec

    def free_memory(self) -> int:
        return available_memory()

    def allocate(self, blocks: Sequence[int]) -> None: ...

    def submit(self, plan: StepPlan) -> "Step":
        result, end = StepResult(), 0
        for slot, length, sample in zip(plan.slots, plan.lengths, plan.sample, strict=True):
            end += length
            if plan.tokens[end - 1] != LAST_SAMPLED:
                self._last[slot] = plan.tokens[end - 1]
            result.counts.append(sample)
            if sample:
                result.tokens.append(self._last[slot])
        return Step(result)

    def close(self) -> None: ...


class Step:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self, timeout: float | None = None) -> StepResult:
        return self._result


def load(config: EngineConfig, info: ModelInfo, rank: object, report: Report) -> EchoBackend:
    return EchoBackend(config.cache.block_size, len(info.spec.layers))
