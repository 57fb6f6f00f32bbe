"""The devices of torch that compute: what each must give, one row for each
(docs/adding-a-backend.md).

A device is the name of `--device`, and of torch's device type. Its streams, events, memory and
properties are those of torch's module for it (`torch.get_device_module`: torch.cuda), with the same
names for every device. The row has what differs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceKind:
    name: str
    unit: str
    """What one of them is called: in messages, and as a resource of Ray."""
    visible: str
    """Environment variable that selects the devices of a process."""
    files: tuple[str, ...]
    """Files below / of which one exists where the driver is installed."""
    process_group: str
    """Class of torch.distributed, or module:class, of the process group between devices."""
    library: str
    """Name of that group's library, as its errors have it."""
    fatal: tuple[str, ...]
    """Substrings of errors after which the process cannot use the device again."""
    passing: tuple[str, ...] = ()
    """Substrings of errors that fail one call only, although `fatal` matches."""
    remedy: str = ""
    """Where the driver writes why a device was lost."""
    install: str = ""
    """What to install where torch, or `plugin`, is missing."""
    plugin: str | None = None
    """Module that registers the device with torch when it is imported."""
    check: str | None = None
    """module:function that takes the torch.device and raises PenstockError if it cannot be used."""
    graph: str | None = None
    """Class of torch's module that records and replays launches."""
    triton: bool = False
    """Triton compiles the kernels for it. Otherwise their references in torch compute."""
    registers: bool = False
    """Any memory of the host can be pinned (cudaHostRegister), not only what torch allocates."""
    context: bool = False
    """The driver's context can be opened before torch is imported (`gpu_start.py`)."""
    symmetric: bool = False
    """Small sums by torch's symmetric memory."""
    flashinfer: bool = False
    gds: bool = False
    """GPUDirect Storage reads into its memory."""


CUDA = DeviceKind(
    name="cuda",
    unit="GPU",
    visible="CUDA_VISIBLE_DEVICES",
    files=("dev/nvidiactl", "dev/dxg"),
    process_group="ProcessGroupNCCL",
    library="NCCL",
    fatal=(
        "CUDA error",
        "CUDA driver error",
        "cuda runtime error",
        "device lost",
        "CUBLAS_STATUS_",
    ),
    passing=("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "invalid configuration argument"),
    remedy=(
        "The driver writes the reason to the kernel's log as an Xid: see `dmesg | grep -i xid`, or "
        "`journalctl -k | grep -i xid` without the rights for that"
    ),
    install="pip install 'penstock[cuda]' (5.3 GB)",
    check="penstock.backends.torch.step.nvidia:check",
    graph="CUDAGraph",
    triton=True,
    registers=True,
    context=True,
    symmetric=True,
    flashinfer=True,
    gds=True,
)
DEVICES: dict[str, DeviceKind] = {kind.name: kind for kind in (CUDA,)}
"""By name. `--device auto` takes the first whose driver and torch are installed."""


def with_feature(feature: str) -> str:
    """Names of the devices with a feature, as an error lists the values of --device."""
    return " or ".join(name for name, kind in DEVICES.items() if getattr(kind, feature))
