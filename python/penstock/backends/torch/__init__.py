"""The torch backend on torch's CPU device, `--device torch`: the reference for `--device cuda`.

Its parts, lowest first; each imports only from parts listed before it:

    kernels     Triton kernels and their references
    shard, checks, device_lost, async_copy    shared by several parts
    load        weights
    inputs      the columns of a plan on the device
    kv          pools of KV blocks, and tiers
    sampling    slots, and sampling from logits
    ranks       collectives within a stage, activations between stages
    layers      the forward pass
    step        the device's stream, CUDA graphs, steps and their results
    startup     compilation, tuning, warm-up, memory measurement
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
    """Load the rank's weights into host memory. Errors name the tensor or the flag at fault."""
    return TorchBackend(config, info, rank, Cpu(config.compute.threads), report)
