"""`penstock deploy topology make`: from a node type, a machine, lspci, and pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock_ops.deploy.topology.grammar import Element
from penstock_ops.deploy.topology.lint import lint_topology
from penstock_ops.deploy.topology.reader import read_topology
from tests.deploy.topology.machines import machine, server
from tests.deploy.topology.trees import repaired, shape

NODE = "dell-xe9680-h100"
Made = Callable[..., Element]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """`made(*words)`: the tree of a file of which lint has no error and no warning."""

    def make(*words: str) -> Element:
        path = tmp_path / "topology.xml"
        assert main(["deploy", "topology", "make", *words, "-o", str(path)]) == 0
        data = path.read_bytes()
        assert {fault.severity for fault in lint_topology(data)} <= {"note"}
        return read_topology(data).system

    return make


def pairs(system: Element) -> list[list[list[str]]]:
    """Addresses by socket and bridge."""
    return [
        [[device.get("busid") for device in bridge.children] for bridge in cpu.children]
        for cpu in system.children
    ]


def test_the_topology_of_source_002(made: Made) -> None:
    found = made("--node-type", NODE, "--state", "nvlink,gdr,net")
    assert shape(found) == shape(read_topology(repaired().encode()).system)
    assert 1 + len([*found.descendants()]) == 83


def test_what_is_not_stated_is_left_to_nccl(made: Made) -> None:
    found = made("--node-type", NODE)
    assert {each.name for each in found.descendants()} == {"cpu", "pci"}
    assert [len(each.children) for each in found.children] == [4, 4]


def test_the_passed_devices_of_another_bus(made: Made) -> None:
    first = pairs(made("--node-type", NODE, "--bus", "0000:0b"))[0][0]
    assert first == ["0000:0b:00.0", "0000:0b:01.0"]


def test_a_virtual_machine(made: Made, tmp_path: Path) -> None:
    root = machine(tmp_path / "vm", gpus=4, nics=4, nodes=2)
    found = made("--here", "--root", str(root))
    assert pairs(found) == [
        [["0000:04:00.0", "0000:04:01.0"], ["0000:04:02.0", "0000:04:03.0"]],
        [["0000:04:04.0", "0000:04:05.0"], ["0000:04:06.0", "0000:04:07.0"]],
    ]
    assert [cpu.get("affinity") for cpu in found.children] == ["000000ff", "0000ff00"]
    assert found.children[0].get("modelid") == "143"
    bridges = [bridge.get("busid") for cpu in found.children for bridge in cpu.children]
    assert len({*bridges}) == 4
    assert all(each.startswith("ffff:") for each in bridges)


def test_a_virtual_machine_of_a_node_type(made: Made, tmp_path: Path) -> None:
    root = machine(tmp_path / "vm", gpus=8, nics=8, switches=4)
    words = ("--here", "--root", str(root), "--node-type", NODE, "--state", "nvlink")
    found = made(*words)
    assert [cpu.children[0].get("busid") for cpu in found.children] == [
        "0000:16:00.0",
        "0000:98:00.0",
    ]
    (first, *_) = found.every("gpu")
    links = {link.get("target"): link.get("count") for link in first.children}
    assert links == {
        "0000:04:10.0": "4",
        "0000:04:11.0": "5",
        "0000:04:12.0": "5",
        "0000:04:13.0": "4",
    }


def test_a_server_whose_switches_pair(made: Made, tmp_path: Path) -> None:
    found = made("--here", "--root", str(server(tmp_path / "host")), "--state", "")
    assert pairs(found) == [
        [["0000:18:00.0", "0000:19:00.0"], ["0000:3a:00.0", "0000:3b:00.0"]],
        [["0000:9a:00.0", "0000:9b:00.0"], ["0000:ba:00.0", "0000:bb:00.0"]],
    ]
    assert found.children[0].children[0].get("busid") == "0000:16:00.0"


LSPCI = """\
0000:16:00.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (rev b0)
\tControl: I/O- Mem+ BusMaster+
\tNUMA node: 0
\tBus: primary=16, secondary=17, subordinate=19, sec-latency=0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
0000:17:00.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (rev b0)
\tBus: primary=17, secondary=18, subordinate=18, sec-latency=0
0000:17:01.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (rev b0)
\tBus: primary=17, secondary=19, subordinate=19, sec-latency=0
0000:18:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)
\tSubsystem: NVIDIA Corporation Device [10de:16c1]
\tNUMA node: 0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16
0000:19:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 [ConnectX-7] [15b3:1021]
\tSubsystem: Mellanox Technologies Device [15b3:0041]
\tNUMA node: 0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
0000:6a:00.0 Ethernet controller [0200]: Intel Corporation Ethernet Controller E810-C [8086:1592]
"""


def test_lspci(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "lspci.txt"
    path.write_text(LSPCI)
    found = made("--lspci", str(path))
    assert pairs(found) == [[["0000:18:00.0", "0000:19:00.0"]]]
    gpu = found.children[0].children[0].children[0]
    assert gpu.attributes == {
        "busid": "0000:18:00.0",
        "class": "0x030200",
        "vendor": "0x10de",
        "device": "0x2330",
        "subsystem_vendor": "0x10de",
        "subsystem_device": "0x16c1",
        "link_speed": "32.0 GT/s PCIe",
        "link_width": "16",
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no device in this text"),
        ("16:00.0 PCI bridge: Broadcom / LSI (rev b0)\n", "line 1: 16:00.0 has no numbers"),
        (LSPCI.replace("[0302]", "[0604]"), "no GPU among these devices"),
    ],
)
def test_lspci_that_says_too_little(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    path = tmp_path / "lspci.txt"
    path.write_text(text)
    assert main(["deploy", "topology", "make", "--lspci", str(path)]) == 1
    assert why in capsys.readouterr().err


def test_pairs_of_a_file(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "pairs"
    path.write_text("# GPU, adapter\n04:02.0,0000:04:01.0\n\n04:00.0,04:03.0,mlx5_0 # the other\n")
    found = made("--pairs", str(path), "--pcie", "5")
    assert pairs(found) == [[["0000:04:02.0", "0000:04:01.0"], ["0000:04:00.0", "0000:04:03.0"]]]
    (net,) = found.every("net")
    assert net.attributes == {"name": "mlx5_0"}


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing": ((), "give --node-type, --here, --lspci or --pair"),
    "rate": (("--pair", "04:00.0,04:01.0"), "give --node-type or --pcie"),
    "address": (("--pair", "4:0,04:01.0", "--pcie", "5"), "addresses such as 0000:04:00.0"),
    "pair": (("--pair", "04:00.0", "--pcie", "5"), "GPU,NIC or GPU,NIC,NAME"),
    "bus": (("--node-type", NODE, "--bus", "4"), "addresses such as"),
    "fact": (("--node-type", NODE, "--state", "speed"), "some of nvlink, gdr, net"),
    "no facts": (("--pair", "04:00.0,04:01.0", "--pcie", "5", "--state", "gdr"), "--node-type"),
    "node type": (("--node-type", "gcp-a4"), "dell-xe9680-h100, or FILE.yaml"),
    "count": (("--pair", "04:00.0,04:01.0", "--node-type", NODE), "1 GPUs; the node type has 8"),
    "twice": (
        ("--pair", "04:00.0,04:01.0", "--pair", "04:02.0,04:01.0", "--pcie", "5"),
        "0000:04:01.0 is in two pairs",
    ),
    "sockets": (("--pair", "04:00.0,04:01.0", "--pcie", "5", "--sockets", "2"), "1 pairs for 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_devices_that_nothing_pairs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, why = REFUSED[name]
    assert main(["deploy", "topology", "make", *words]) != 0
    assert why in capsys.readouterr().err


def test_a_machine_with_fewer_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = machine(tmp_path, gpus=4, nics=3)
    assert main(["deploy", "topology", "make", "--here", "--root", str(root)]) == 1
    assert "4 GPUs and 3 RDMA adapters on one bus" in capsys.readouterr().err


def test_a_machine_without_sys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "topology", "make", "--here", "--root", str(tmp_path)]) == 1
    assert "--here needs /sys" in capsys.readouterr().err


def test_a_node_type_of_ones_own(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        """
pci:
  source: own
  cpu: {arch: x86_64, vendor: AuthenticAMD, family: 25, model: 17}
  link_speed: 16.0 GT/s PCIe
  link_width: 16
  bridge: {class: '0x060400', vendor: '0x1022', device: '0x1480'}
  gpu: {class: '0x030200', vendor: '0x10de', device: '0x20b2'}
  capability: 80
  nic: {class: '0x020700', vendor: '0x15b3', device: '0x101b'}
  nic_mbps: 200000
  nvswitch: null
  nvlinks: []
  sockets: [[{busid: '0000:01:00.0'}], [{busid: '0000:81:00.0'}]]
"""
    )
    assert [len(cpu.children) for cpu in made("--node-type", str(path)).children] == [1, 1]
    text = path.read_text()
    for right, wrong, why in (
        ("link_width: 16", "link_width: wide", "pci.link_width is 'wide'"),
        ("0000:01:00.0", "01:00.0", "pci.sockets.0.0.busid is '01:00.0'"),
        ("'0x10de'", "NVIDIA", "pci.gpu.vendor is 'NVIDIA'"),
        ("nvlinks: []", "nvlinks: [12]", "pci.nvswitch is missing"),
        ("pci:", "pcie:", "pci is missing"),
    ):
        path.write_text(text.replace(right, wrong, 1))
        assert main(["deploy", "topology", "make", "--node-type", str(path)]) == 1
        assert why in capsys.readouterr().err
