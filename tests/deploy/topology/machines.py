"""Trees of /sys and /proc, written by hand after what Linux has there: a virtual machine of ESX
with all devices on one bus, and a server whose switches pair GPU and adapter.
"""

from __future__ import annotations

from pathlib import Path

CPUINFO = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
GPU = {"class": "0x030200", "vendor": "0x10de", "device": "0x2330"}
NIC = {"class": "0x020700", "vendor": "0x15b3", "device": "0x1021"}
SWITCH = {"class": "0x068000", "vendor": "0x10de", "device": "0x22a3"}
VGA = {"class": "0x030000", "vendor": "0x15ad", "device": "0x0405"}
VMXNET = {"class": "0x020000", "vendor": "0x15ad", "device": "0x07b0"}
BRIDGE = {"class": "0x060400", "vendor": "0x1000", "device": "0xc030"}


def machine(root: Path, *, gpus: int, nics: int, switches: int = 0, nodes: int = 1) -> Path:
    """A virtual machine: GPUs and adapters in turn at 0000:04, the switches behind them, one port
    above all.
    """
    _processors(root, nodes)
    _device(root, "0000:00:0f.0", (), VGA, -1)
    _device(root, "0000:0b:00.0", ("0000:00:16.0",), VMXNET, -1)
    port = ("0000:00:15.0",)
    _device(root, port[0], (), BRIDGE, -1)
    for number in range(max(gpus, nics)):
        if number < gpus:
            _device(root, f"0000:04:{2 * number:02x}.0", port, GPU, -1)
        if number < nics:
            _adapter(root, f"0000:04:{2 * number + 1:02x}.0", port, -1, f"mlx5_{number}")
    for number in range(switches):
        _device(root, f"0000:04:{2 * gpus + number:02x}.0", port, SWITCH, -1)
    return root


def server(root: Path) -> Path:
    """A server with a switch for each pair, whose adapters are named against the order of GPUs."""
    _processors(root, 2)
    for number, bus in enumerate((0x16, 0x38, 0x98, 0xB8)):
        port, down = f"0000:{bus:02x}:00.0", f"0000:{bus + 1:02x}:00.0"
        _device(root, port, (), BRIDGE, number // 2)
        _device(root, down, (port,), BRIDGE, number // 2)
        _device(root, f"0000:{bus + 2:02x}:00.0", (port, down), GPU, number // 2)
        _adapter(root, f"0000:{bus + 3:02x}:00.0", (port, down), number // 2, f"mlx5_{3 - number}")
    return root


def _processors(root: Path, nodes: int) -> None:
    _write(root / "proc/cpuinfo", CPUINFO)
    for number in range(nodes):
        mask = f"{0xFF << (8 * number):08x}"
        _write(root / f"sys/devices/system/node/node{number}/cpumap", mask)


def _adapter(root: Path, busid: str, upstream: tuple[str, ...], numa: int, name: str) -> None:
    folder = _device(root, busid, upstream, NIC, numa)
    (folder / "infiniband" / name).mkdir(parents=True)
    _write(root / "sys/class/infiniband" / name / "ports/1/rate", "400 Gb/sec (4X NDR)")


def _device(
    root: Path, busid: str, upstream: tuple[str, ...], ids: dict[str, str], numa: int
) -> Path:
    folder = root.joinpath("sys/devices/pci0000:00", *upstream, busid)
    given = {
        **ids,
        "subsystem_vendor": ids["vendor"],
        "subsystem_device": "0x0001",
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
        "numa_node": str(numa),
    }
    for name, text in given.items():
        _write(folder / name, text)
    link = root / "sys/bus/pci/devices" / busid
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
