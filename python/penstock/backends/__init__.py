"""Backends: computation of plans on one device, by one rank. docs/adding-a-backend.md."""

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
"""Those whose ranks have a GPU each."""
OWN_SUMS = frozenset({"cuda", "torch"})
"""Backends whose ranks sum without shared memory: they get streams."""
TENSOR_ROWS = frozenset({"cuda", "torch"})
"""Backends that give and take the rows between stages as tensors, where they are asked to."""


class StepFuture(Protocol):
    """A step in flight."""

    def result(self, timeout: float | None = None) -> StepResult:
        """Wait for the step. Raises the step's error, and TimeoutError after `timeout` seconds."""


class KvMover(Protocol):
    """Transfers between the KV pools and the tiers of one rank, beside the steps. Any error makes
    the rank unusable; a transfer that fails is a result.
    """

    def submit(self, transfer: Transfer, /) -> None:
        """Start a transfer. Never waits."""

    def take(self, timeout: float = 0.0, /) -> list[TransferResult]:
        """Results since the last call; waits at most `timeout` seconds for the first."""

    def report(self) -> str:
        """State of the tiers as JSON."""

    def close(self, seconds: float, /) -> None:
        """Write pending stores, for at most `seconds`."""


class Backend(Protocol):
    """One rank's part of the model on one device: `load`, then `allocate`, then steps."""

    facts: WorkerFacts

    def kv_spec(self) -> KvSpec:
        """Shape of this rank's KV. Groups (by window) are the same on all ranks."""

    def free_memory(self) -> int:
        """Bytes that this rank may allocate, now that its weights are loaded."""

    def allocate(self, blocks: Sequence[int]) -> None:
        """Make the KV pools, one count of blocks for each group. Called once, before any step."""

    def submit(self, plan: StepPlan) -> StepFuture:
        """Start a step. ValueError, here or from the future, for a plan that cannot be computed;
        any other error makes the backend unusable, ConnectionError where another rank was lost.
        """

    def open_tiers(self, tiers: OpenTiers) -> KvMover:
        """Open the tiers of the configuration. PenstockError with the reason and the remedy."""

    def close(self) -> None:
        """Free the model and the pools."""


class CarryingBackend(Backend, Protocol):
    """A backend whose pipeline stages can be joined by the caller (Ray's compiled graphs).

    A residual stream is bytes, or a tensor where the rank's wiring says "tensors".
    """

    def put(self, carried: Any, /) -> None:
        """Hand in the residual stream of the previous stage, for the next plan. The device waits
        for what the caller's stream has to do for a tensor.
        """

    def fetch(self, timeout: float, /) -> Any:
        """Take the residual stream of the oldest plan, for the next stage; once the plan's result
        is there, a tensor is computed.
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
    """Load the backend that `config.compute.backend` names: a module of this package, or the full
    name of another one. PenstockError when there is none.
    """
    name = config.compute.backend
    full = name if "." in name else f"penstock.backends.{name}"
    try:
        module = import_module(full)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{full}.".startswith(f"{error.name}."):
            raise  # A module that the backend needs.
        raise PenstockError(f"--device {name}: {error}") from error
    return cast(BackendModule, module).load(config, info, rank, report)
