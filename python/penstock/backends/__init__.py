"""A backend executes the step plans of one rank on one device. See docs/adding-a-backend.md."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, cast

from penstock.config import EngineConfig
from penstock.config.devices import DEVICES
from penstock.core import Allocation, KvSpec, PenstockError, StepPlan, StepResult, WorkerFacts
from penstock.core.progress import Report, silent
from penstock.core.transfer import OpenTiers, Transfer, TransferResult
from penstock.model import ModelInfo
from penstock.model.dummy import dummy_weights

GPU_BACKENDS = DEVICES.keys()
"""Backends with one device per rank, from the table of devices."""


def of_torch(backend: str) -> bool:
    """Whether a backend computes with torch. Such a backend has its own all-reduce, so its ranks
    are connected by streams, even on one host, in place of shared memory. Such a backend can pass
    activations between pipeline stages as tensors, not only as bytes.
    """
    return backend == "torch" or backend in GPU_BACKENDS


class StepFuture(Protocol):
    """A submitted step whose result has not been fetched."""

    def result(self, timeout: float | None = None) -> StepResult:
        """Wait for the step. Raises the step's error, and TimeoutError after `timeout` seconds."""


class KvMover(Protocol):
    """Transfers between the KV pools and the tiers of one rank, concurrent with the steps. An
    exception from any method makes the rank unusable. A failed transfer raises no exception: its
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
        """Shape of this rank's KV cache: tokens per block, the KV groups (layers with the same
        window), and the sequence state. The groups are the same on all ranks.
        """

    def free_memory(self) -> int:
        """Bytes that this rank may allocate for its pools, once its weights are loaded."""

    def allocate(self, allocation: Allocation) -> None:
        """Allocate the KV pools and state slots. Called once, before any step."""

    def submit(self, plan: StepPlan) -> StepFuture:
        """Start a step. An invalid plan raises ValueError, here or from the future. Any other error
        makes the backend unusable (ConnectionError if another rank was lost).
        """

    def open_tiers(self, tiers: OpenTiers) -> KvMover:
        """Open the tiers of the configuration. Raises PenstockError, with the reason and the
        remedy, if one cannot be opened.
        """

    def close(self) -> None:
        """Free the model and the pools."""


class CarryingBackend(Backend, Protocol):
    """A backend that lets its caller connect the pipeline stages (Ray's compiled graphs).

    The residual stream (hidden states between stages) is bytes, or a tensor if the rank's wiring is
    "tensors".
    """

    def put(self, carried: Any, /) -> None:
        """Pass in the previous stage's hidden states for the next plan. If they are a tensor, the
        device first waits for the work pending on the caller's stream.
        """

    def fetch(self, timeout: float, /) -> Any:
        """Take the hidden states of the oldest plan, for the next stage. If they are a tensor, it
        is computed once the plan's result is available.
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
    module of this package, or the full name of any other module. Raises PenstockError if there is
    no such module.
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
    load = cast(BackendModule, module).load
    if not config.model.dummy:
        return load(config, info, rank, report)
    with dummy_weights(info, config.model.seed or 0) as random:
        return load(config, random, rank, report)
