"""The torch backend on torch's CPU device, `--device torch`: the reference of `--device cuda`."""

from __future__ import annotations

from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.device import Cpu
from penstock.config import EngineConfig
from penstock.core.progress import Report, silent
from penstock.model import ModelInfo


def load(
    config: EngineConfig, info: ModelInfo, rank: tuple[str, str] | None, report: Report = silent
) -> TorchBackend:
    """Errors name the tensor or the flag at fault."""
    return TorchBackend(config, info, rank, Cpu(config.compute.threads), report)
