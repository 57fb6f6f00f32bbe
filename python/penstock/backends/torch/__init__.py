"""The torch backend on torch's CPU device, `--device torch`: the reference of `--device cuda`.

Its floors, from the lowest; each imports only floors listed before it:

    kernels     Triton kernels and their references
    shard, checks, device_lost, async_copy    ground that several floors use
    load        weights
    inputs      the columns of a plan on the device
    kv          pools of KV blocks, and tiers
    sampling    slots, and logits to tokens
    ranks       sums and rows between ranks
    layers      the forward pass
    step        a device's stream, CUDA graphs, a step and its result
    startup     compilation, tuning, warm-up, measured memory
    backend     the backend itself
"""

from __future__ import annotations

from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.step.device import Cpu
from penstock.config import EngineConfig
from penstock.core.progress import Report, silent
from penstock.model import ModelInfo


def load(
    config: EngineConfig, info: ModelInfo, rank: tuple[str, str] | None, report: Report = silent
) -> TorchBackend:
    """Errors name the tensor or the flag at fault."""
    return TorchBackend(config, info, rank, Cpu(config.compute.threads), report)
