"""A backend executes the step plans of one rank on one device. See docs/adding-a-backend.md."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from penstock.config import EngineConfig
from penstock.config.devices import DEVICES
from penstock.core import KvSpec, PenstockError, StepPlan, StepResult, WorkerFacts
from penstock.core.progress import Report, silent
from penstock.core.transfer import OpenTiers, Transfer, TransferResult
from penstock.model import ModelInfo

GPU_BACKENDS = DEVICES.keys()
"""Backends with one device per rank, as the table has them."""


def of_torch(backend: str) -> bool:
    """Whether a backend computes with torch. Such a backend has its own all-reduce, so its ranks
    are connected by streams, even on one host, in place of shared memory. It can pass activations
    between pipeline stages as tensors, not only as bytes.
    """
    return backend == "torch" or backend in GPU_BACKENDS


class StepFuture(Protocol):
    """A step that is submitted and whose result is not fetched yet."""

    def result(self, timeout: float | None = None) -> StepResult:
        """Wait for the step. Raises the step's error, and TimeoutError after `timeout` seconds."""


class KvMover(Protocol):
    """Transfers between the KV pools and the tiers of one rank, concurrent with the steps. An
    exception from any method makes the rank unusable. A transfer that fails raises none: its
    TransferResult reports the failure.
    """

    def submit(self, transfer: Transfer, /) -> None:
        """Start a transfer without blocking."""

    def take(self, timeout: float = 0.0, /) -> list[TransferResult]:
        """Results of transfers that ended since the last call; waits at most `timeout` seconds for
        the first.
        """

    def report(self) -> str:
        """State of this rank's tiers as JSON."""

    def close(self, seconds: float, /) -> None:
        """Write pending stores to the tiers, for at most `seconds`."""


class Backend(Protocol):
    """One rank's shard of the model on one device: `load`, then `allocate`, then steps."""

    facts: WorkerFacts

    def kv_spec(self) -> KvSpec:
        """Shape of this rank's KV cache: tokens per block, and the KV groups (layers with the same
        window). The groups are the same on all ranks.
        """

    def free_memory(self) -> int:
        """Bytes that this rank may allocate for KV pools, once its weights are loaded."""

    def allocate(self, blocks: Sequence[int]) -> None:
        """Allocate the KV pools: `blocks` has the number of blocks of each KV group. Called once,
        before any step.
        """

    def submit(self, plan: StepPlan) -> StepFuture:
        """Start a step. ValueError, here or from the future, for an invalid plan; any other error
        makes the backend unusable (ConnectionError if another rank was lost).
        """

    def open_tiers(self, tiers: OpenTiers) -> KvMover:
        """Open the tiers of the configuration. Raises PenstockError, with the reason and the
        remedy, if one cannot be opened.
        """

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
        """Load the weights of this rank. Raises PenstockError, which names the tensor or the flag
        at fault.

        `rank`: this rank's `penstock_decoder::Shard` and `Wiring`, each as JSON; None for the whole
        model on one rank. `report` takes the lines of a `penstock.core.progress.LoadProgress`.
        """


def load_backend(
    config: EngineConfig,
    info: ModelInfo,
    rank: tuple[str, str] | None = None,
    report: Report = silent,
) -> CarryingBackend:
    """Load the backend named by `config.compute.backend`: a device of `penstock.config.devices`, a
    module of this package, or the full name of any other module. PenstockError if there is no such
    module.
    """
    name = config.compute.backend
    own = "accelerator" if name in GPU_BACKENDS else name
    full = name if "." in name else f"penstock.backends.{own}"
    try:
        module = import_module(full)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{full}.".startswith(f"{error.name}."):
            raise  # A dependency of the backend is missing.
        raise PenstockError(f"--device {name}: {error}") from error
    return cast(BackendModule, module).load(config, info, rank, report)
