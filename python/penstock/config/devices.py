"""Table of the devices on which torch computes: one row for each, with the properties that a device
must define (docs/adding-a-backend.md).

A device is identified by the value of `--device`, which is also torch's device type. Its streams,
events, memory and properties come from torch's module for the device (`torch.get_device_module`:
torch.cuda), whose names are the same for every device. The row holds the differences.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceKind:
    name: str
    unit: str
    """Name of one device in messages, and as a Ray resource."""
    visible: str
    """Environment variable that limits a process to certain devices."""
    files: tuple[str, ...]
    """Files below /. One of them exists if the driver is installed."""
    process_group: str
    """Class of the process group between devices: a name in torch.distributed, or module:class."""
    library: str
    """Name of that group's library, as it appears in the library's errors."""
    fatal: tuple[str, ...]
    """Substrings of the errors after which the process cannot use the device again."""
    passing: tuple[str, ...] = ()
    """Substrings of errors that fail only one call, although `fatal` matches them."""
    remedy: str = ""
    """Where the driver logs the reason of a lost device."""
    install: str = ""
    """What to install if torch, or `plugin`, is missing."""
    plugin: str | None = None
    """Module that registers the device with torch when it is imported."""
    check: str | None = None
    """module:function that checks a torch.device, and raises PenstockError if it cannot be used."""
    graph: str | None = None
    """Class of torch's module that records launches and replays them (CUDA graph)."""
    triton: bool = False
    """Whether Triton compiles the kernels for the device. If not, their torch references are
    used.
    """
    registers: bool = False
    """Whether any host memory can be pinned (cudaHostRegister), and not only memory allocated by
    torch.
    """
    context: bool = False
    """Whether the driver's context can be opened before torch is imported (`gpu_start.py`)."""
    symmetric: bool = False
    """Whether small sums can use torch's symmetric memory."""
    flashinfer: bool = False
    gds: bool = False
    """Whether GPUDirect Storage can read into the device's memory."""


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
"""The devices by name. `--device auto` selects the first one whose driver and torch are
installed.
"""


def with_feature(feature: str) -> str:
    """Names of the devices with a feature, formatted as values of --device for an error."""
    return " or ".join(name for name, kind in DEVICES.items() if getattr(kind, feature))
