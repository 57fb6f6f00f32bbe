"""Backends execute the step plans of one rank on one device. docs/adding-a-backend.md."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from penstock.config import EngineConfig
from penstock.core import KvSpec, PenstockError, StepPlan, StepResult, WorkerFacts
from penstock.core.progress import Report, silent
from penstock.core.transfer import OpenTiers, Transfer, TransferResult
from penstock.model import ModelInfo

GPU_BACKENDS = frozenset({"cuda"})
"""Backends with one GPU per rank."""
OWN_SUMS = frozenset({"cuda", "torch"})
"""Backends with their own all-reduce. Their ranks get streams in place of shared memory."""
TENSOR_ROWS = frozenset({"cuda", "torch"})
"""Backends that can pass activations between pipeline stages as tensors."""


class StepFuture(Protocol):
    """A step in flight."""

    def result(self, timeout: float | None = None) -> StepResult:
        """Wait for the step. Raises the step's error, and TimeoutError after `timeout` seconds."""


class KvMover(Protocol):
    """Transfers between the KV pools and the tiers of one rank, concurrent with the steps. Any
    exception makes the rank unusable; a failed transfer is reported as a result.
    """

    def submit(self, transfer: Transfer, /) -> None:
        """Start a transfer without blocking."""

    def take(self, timeout: float = 0.0, /) -> list[TransferResult]:
        """Results since the last call; waits at most `timeout` seconds for the first."""

    def report(self) -> str:
        """State of the tiers as JSON."""

    def close(self, seconds: float, /) -> None:
        """Write pending stores, for at most `seconds`."""


class Backend(Protocol):
    """One rank's shard of the model on one device: `load`, then `allocate`, then steps."""

    facts: WorkerFacts

    def kv_spec(self) -> KvSpec:
        """Shape of this rank's KV cache. Groups (by window) are the same on all ranks."""

    def free_memory(self) -> int:
        """Bytes that this rank may allocate after its weights are loaded."""

    def allocate(self, blocks: Sequence[int]) -> None:
        """Allocate the KV pools: the number of blocks per group. Called once, before any step."""

    def submit(self, plan: StepPlan) -> StepFuture:
        """Start a step. ValueError, here or from the future, for an invalid plan; any other error
        makes the backend unusable (ConnectionError if another rank was lost).
        """

    def open_tiers(self, tiers: OpenTiers) -> KvMover:
        """Open the tiers of the configuration. PenstockError with the reason and the remedy."""

    def close(self) -> None:
        """Free the model and the pools."""


class CarryingBackend(Backend, Protocol):
    """A backend that lets the caller connect its pipeline stages (Ray's compiled graphs).

    A residual stream is bytes, or a tensor if the rank's wiring is "tensors".
    """

    def put(self, carried: Any, /) -> None:
        """Pass in the residual stream of the previous stage, for the next plan. For a tensor, the
        device first waits for the work pending on the caller's stream.
        """

    def fetch(self, timeout: float, /) -> Any:
        """Take the residual stream of the oldest plan, for the next stage. A tensor is computed
        once the plan's result is available.
        """


class BackendModule(Protocol):
    def load(
        self, config: EngineConfig, info: ModelInfo, rank: tuple[str, str] | None, report: Report
    ) -> CarryingBackend:
        """Load the weights of this rank. PenstockError names the tensor or the flag at fault.

        `rank` is JSON of `penstock_decoder::Shard` and `Wiring`; None for the whole model.
        `report` takes the lines of a `penstock.core.progress.LoadProgress`.
        """


def load_backend(
    config: EngineConfig,
    info: ModelInfo,
    rank: tuple[str, str] | None = None,
    report: Report = silent,
) -> CarryingBackend:
    """Load the backend named by `config.compute.backend`: a module of this package, or the full
    name of any other module. PenstockError if there is no such module.
    """
    name = config.compute.backend
    full = name if "." in name else f"penstock.backends.{name}"
    try:
        module = import_module(full)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{full}.".startswith(f"{error.name}."):
            raise  # A dependency of the backend is missing.
        raise PenstockError(f"--device {name}: {error}") from error
    return cast(BackendModule, module).load(config, info, rank, report)
