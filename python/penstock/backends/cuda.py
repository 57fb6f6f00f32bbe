"""The torch backend on NVIDIA GPUs, one for each rank of a host. docs/gpu.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.config import EngineConfig
from penstock.core import PenstockError
from penstock.core.progress import Report, silent
from penstock.model import ModelInfo

if TYPE_CHECKING:
    from penstock.backends.torch.backend import TorchBackend


def load(
    config: EngineConfig, info: ModelInfo, rank: tuple[str, str] | None, report: Report = silent
) -> TorchBackend:
    """PenstockError where torch or a GPU is missing, with the remedy."""
    try:
        from penstock.backends.torch.backend import TorchBackend
        from penstock.backends.torch.device import Cuda, rank_of_host
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise PenstockError(
            "--device cuda needs torch: pip install 'penstock[cuda]' (5.3 GB)"
        ) from error
    return TorchBackend(config, info, rank, Cuda(rank_of_host(config, rank)), report)
