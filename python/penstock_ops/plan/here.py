"""The CPUs of this machine as the hardware to plan for."""

from __future__ import annotations

import platform

from penstock.config.machine import available_memory, cpu_count, cpuinfo
from penstock_ops.plan.hardware import HERE, Accelerator

ISAS = (("avx512_bf16", "AVX-512 BF16"), ("avx512f", "AVX-512"), ("avx2", "AVX2"))
"""CPU flags of /proc/cpuinfo with their instruction sets, best first."""


def here() -> Accelerator:
    """This machine's CPUs and free memory as one accelerator. Its rates are 0, because steps are
    measured instead.
    """
    cores = cpu_count()
    return Accelerator(
        name=HERE,
        title=f"{_field('model name') or platform.machine()}, {cores} cores, {_isa()}",
        memory=available_memory(),
        bandwidth=0.0,
        flops={},
        link=0.0,
        linked=1 << 16,
        per_node=1 << 16,
        resource="",
        network=0.0,
        verified=True,
        source="this machine",
        is_cpu=True,
    )


def _isa() -> str:
    flags = _field("flags").split()
    return next((name for flag, name in ISAS if flag in flags), "portable kernels")


def _field(name: str) -> str:
    return next(iter(cpuinfo(name)), "")
