"""The torch backend on a device of `penstock.config.devices`, one device for each rank. See
docs/gpu.md.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.backends.gpu_start import open_context, rank_of_host, reading_ahead
from penstock.config import EngineConfig
from penstock.config.devices import DEVICES
from penstock.core import PenstockError
from penstock.core.progress import Report, silent
from penstock.model import ModelInfo

if TYPE_CHECKING:
    from penstock.backends.torch.backend import TorchBackend


def load(
    config: EngineConfig, info: ModelInfo, rank: tuple[str, str] | None, report: Report = silent
) -> TorchBackend:
    """Load the rank's weights. Raises PenstockError, with the remedy, if torch or a device is
    missing.
    """
    kind, index = DEVICES[config.compute.backend], rank_of_host(config, rank)
    with reading_ahead(Path(info.paths[0]), config, rank):
        if kind.context:
            open_context(index)
        needed = "torch"
        try:
            from penstock.backends.torch.backend import TorchBackend
            from penstock.backends.torch.step.device import Accelerated

            if kind.plugin is not None:
                needed = kind.plugin
                import_module(kind.plugin)
        except ModuleNotFoundError as error:
            if error.name != needed:
                raise
            raise PenstockError(f"--device {kind.name} needs {needed}: {kind.install}") from error
        device = Accelerated(kind, index)
    return TorchBackend(config, info, rank, device, report)
