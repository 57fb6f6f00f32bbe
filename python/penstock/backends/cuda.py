"""The torch backend on NVIDIA GPUs, one GPU for each rank. See docs/gpu.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.backends.gpu_start import open_context, rank_of_host, reading_ahead
from penstock.config import EngineConfig
from penstock.core import PenstockError
from penstock.core.progress import Report, silent
from penstock.model import ModelInfo

if TYPE_CHECKING:
    from penstock.backends.torch.backend import TorchBackend


def load(
    config: EngineConfig, info: ModelInfo, rank: tuple[str, str] | None, report: Report = silent
) -> TorchBackend:
    """Load the rank's weights. PenstockError, with the remedy, if torch or a GPU is missing."""
    index = rank_of_host(config, rank)
    with reading_ahead(Path(info.paths[0]), config, rank):
        open_context(index)
        try:
            from penstock.backends.torch.backend import TorchBackend
            from penstock.backends.torch.step.device import Cuda
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise PenstockError(
                "--device cuda needs torch: pip install 'penstock[cuda]' (5.3 GB)"
            ) from error
        device = Cuda(index)
    return TorchBackend(config, info, rank, device, report)
