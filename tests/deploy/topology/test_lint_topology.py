"""`penstock deploy topology lint`: each fault of a file that NCCL reads, and of one that it does
not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock_ops.deploy.topology.expected import of_machine, of_node_type
from penstock_ops.deploy.topology.lint import lint_topology
from penstock_ops.deploy.topology.sysfs import read_machine
from penstock_ops.plan.hardware.pci import node_pci
from tests.deploy.topology.machines import machine
from tests.deploy.topology.trees import PAIR, PRINTED, repaired

NODE = "dell-xe9680-h100"
FAULTS = {
    "address": ('"0000:04:01.0"', '"000004:01.0"', "error", "write 0000:04:01.0"),
    "short address": ('"0000:04:01.0"', '"04:01.0"', "error", "write 0000:04:01.0"),
    "upper case": ('"0000:04:01.0"', '"0000:AF:01.0"', "error", "write 0000:af:01.0"),
    "no address": (' busid="0000:04:01.0"', "", "error", "<pci> has no busid"),
    "twice": ('"0000:04:01.0"', '"0000:04:00.0"', "error", "is that of line 4, too"),
    "no class": (' class="0x060400"', "", "error", 'a bridge is "0x060400"'),
    "class of a GPU": ('"0x030200"', '"0x060400"', "error", 'a GPU is "0x030200"'),
    "class of a NIC": ('"0x020700"', '"0x0c0300"', "warning", 'InfiniBand is "0x020700"'),
    "numaid": (' numaid="0"', "", "error", "<cpu> has no numaid"),
    "affinity": ('affinity="ff"', 'affinity="0-7"', "error", "words of 8 hex digits"),
    "model": (' modelid="143"', "", "error", "familyid and modelid belong together"),
    "speed": ('"32.0 GT/s PCIe"', '"32GT/s"', "warning", "is read as Gen3 (12 GB/s)"),
    "no speed": (
        '"0x060400" link_speed="32.0 GT/s PCIe"',
        '"0x060400"',
        "warning",
        "has no link_speed",
    ),
    "width": ('link_width="16"', 'link_width="x16"', "error", "write a number, as 16"),
    "number": ('dev="0"', 'dev="one"', "error", "dev 'one' is no number"),
    "capability": (
        'sm="90"',
        'sm="80"',
        "error",
        "sm 80 of device 0x2330, which has 90",
    ),
    "links": (
        '<gpu dev="0" sm="90"/>',
        '<gpu dev="0" sm="90"><nvlink target="0000:04:10.0" count="17" tclass="0x068000"/></gpu>',
        "warning",
        "GPU 0 has 17 NVLinks, sm 90 has 18",
    ),
    "target": (
        '<gpu dev="0" sm="90"/>',
        '<gpu dev="0" sm="90"><nvlink target="0000:04:10.0" count="18" tclass="0x0604"/></gpu>',
        "error",
        'an NVSwitch is "0x068000"',
    ),
    "adapter": ('<net name="mlx5_0"/>', '<net dev="0"/>', "warning", "<net> has no name"),
    "rate": ('name="mlx5_0"', 'name="mlx5_0" speed="-1"', "warning", "is read as 10000"),
    "guid": ('name="mlx5_0"', 'name="mlx5_0" guid="0x1"', "warning", "guid is of one host"),
    "forced": ('sm="90"', 'sm="90" gdr="1"', "note", "claims GPUDirect RDMA"),
    "no affinity": (' affinity="ff"', "", "note", "/sys/devices/system/node/node0/cpumap"),
    "attribute": ('sm="90"', 'sm="90" qdr="1"', "warning", "'qdr'; did you mean gdr?"),
    "element": ("<nic>", "<nic><gid/>", "warning", "NCCL skips <gid> in <nic>"),
}


def test_a_file_without_a_fault() -> None:
    assert lint_topology(PAIR.encode()) == []


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    good, bad, severity, text = FAULTS[name]
    changed = PAIR.replace(good, bad, 1)
    assert changed != PAIR
    (found, *others) = lint_topology(changed.encode())
    assert (found.severity, others) == (severity, [])
    assert text in found.text
    lines = zip(PAIR.splitlines(), changed.splitlines(), strict=True)
    assert found.line in {n for n, (old, new) in enumerate(lines, start=1) if old != new}


def test_devices_that_share_no_bridge() -> None:
    apart = PAIR.replace(
        '      <pci busid="0000:04:01.0"',
        '    </pci>\n    <pci busid="ffff:01:00.0" class="0x060400" link_speed="32.0 GT/s PCIe"'
        ' link_width="16">\n      <pci busid="0000:04:01.0"',
    )
    assert [fault.text for fault in lint_topology(apart.encode())] == [
        "GPU 0000:04:00.0 has no NIC under its bridge: put both into one <pci>",
        "NIC 0000:04:01.0 has no GPU under its bridge: put both into one <pci>",
    ]


def test_a_switch_with_a_bridge_for_each_device() -> None:
    """As a server has them: NCCL's distance is PXB, which is near enough."""
    lines = PAIR.splitlines(keepends=True)
    bridge = lines[2].replace("ffff:00", "ffff:{}").replace("    <", "      <")
    below = [bridge.format("01"), *lines[3:6], "      </pci>\n", bridge.format("02"), *lines[6:11]]
    text = "".join([*lines[:3], *below, "      </pci>\n", *lines[11:]])
    assert lint_topology(text.encode()) == []


def test_comments_of_a_file_that_nccl_does_not_read() -> None:
    text = PAIR.replace("  <cpu", "  <!-- <cpu>\n -->\n\t<cpu")
    assert [(fault.line, fault.text[:20]) for fault in lint_topology(text.encode())] == [
        (4, "NCCL ends reading at"),
        (4, "a tab between tags: "),
    ]
    hostile = b"<!--" * 100_000
    assert lint_topology(hostile)[0].severity == "error"


def test_sockets_that_share_what_they_may_not() -> None:
    first = PAIR[PAIR.index("  <cpu") : PAIR.index("</system>")]
    second = first.replace("ffff:00", "ffff:01").replace("0000:04", "0000:05")
    second = second.replace('dev="0"', 'dev="1"').replace("mlx5_0", "mlx5_1")
    both = PAIR.replace("</system>", f"{second}</system>")
    assert [fault.text for fault in lint_topology(both.encode())] == [
        "numaid 0 is given 2 times: each <cpu> has its own",
        "numaid 0 is given 2 times: each <cpu> has its own",
        "affinity shares CPUs with line 2: each socket has its own",
    ]


@pytest.mark.parametrize("text", ['<system version="1">\n</system>\n', "", "nothing"])
def test_a_file_without_devices(text: str) -> None:
    found = lint_topology(text.encode())
    assert found[0].severity == "error"


def test_the_faults_of_the_printed_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "topology", "lint", str(PRINTED), "--node-type", NODE]) == 1
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{PRINTED}:22: error: busid '000004:03.0' is no address: write 0000:04:03.0"
    for text in (
        "NCCL ends reading at column 3: 'a' between tags",
        "has no <cpu: its tag begins late (also lines 77)",
        "<pci> is broken over lines: write each tag in one line (also lines 5, 13, ",
        "<gpu> of line 7 has no end",
        "<net> without <nic> around it: NCCL skips it (also lines 24, 120)",
        "</apu>: write </gpu> (also lines 131)",
        "has no <net: its tag begins late",
        'class 0x020000 of a NIC: the node type has InfiniBand, "0x020700"',
        "guid is of one host",
        "<net> has no attribute 'adr'; did you mean gdr? (also lines 43, 83)",
        "<net> has no attribute 'qdr'; did you mean gdr? (also lines 120)",
        "<net> has no attribute 'quid'; did you mean guid?",
    ):
        assert any(text in line for line in lines), text


def test_the_repaired_file_is_that_of_its_node_type() -> None:
    found = lint_topology(repaired().encode(), [of_node_type(node_pci(NODE))])
    assert {fault.severity for fault in found} == {"note"}


def test_a_file_of_another_node_type() -> None:
    rule = of_node_type(node_pci(NODE))
    texts = [fault.text for fault in lint_topology(PAIR.encode(), [rule])]
    assert [text.partition(";")[0] for text in texts] == ["1 GPUs", "1 NICs", "1 sockets"]


def test_a_file_of_another_machine(tmp_path: Path) -> None:
    root = machine(tmp_path, gpus=2, nics=2)
    text = PAIR.replace("0000:04:01.0", "0000:05:01.0").replace('"mlx5_0"', '"mlx5_9"')
    found = lint_topology(text.encode(), [of_machine(read_machine(root), root)])
    assert [fault.text.partition(":  ")[0] for fault in found] == [
        "GPU 0000:04:02.0 of this machine is missing: NCCL puts it far from others",
        "this machine has no device 0000:05:01.0",
        "mlx5_9 is not in /sys/class/infiniband: see ibv_devices",
        "NIC 0000:04:01.0 mlx5_0 of this machine is missing: NCCL puts it far from others",
        "NIC 0000:04:03.0 mlx5_1 of this machine is missing: NCCL puts it far from others",
    ]


def test_processors_that_the_machine_does_not_have(tmp_path: Path) -> None:
    root = machine(tmp_path, gpus=1, nics=1)
    rules = [of_machine(read_machine(root), root)]
    (found,) = lint_topology(PAIR.replace('"ff"', '"1ff"').encode(), rules)
    assert "CPUs that this machine does not have" in found.text


def test_a_topology_file_that_no_volume_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(
        """
apiVersion: v1
kind: Pod
metadata: {name: engine}
spec:
  enableServiceLinks: false
  volumes: [{name: topology, configMap: {name: vm}}]
  containers:
    - name: engine
      image: engine:1
      volumeMounts: [{name: topology, mountPath: /etc/nccl}]
      env: [{name: NCCL_TOPO_FILE, value: /etc/nccl/topology.xml}]
"""
    )
    main(["deploy", "lint", str(path)])
    assert "NCCL_TOPO_FILE" not in capsys.readouterr().out
    path.write_text(path.read_text().replace("mountPath: /etc/nccl", "mountPath: /etc/nc"))
    main(["deploy", "lint", str(path)])
    assert "NCCL_TOPO_FILE=/etc/nccl/topology.xml: no volume" in capsys.readouterr().out


def test_a_rate_that_is_not_the_ports(tmp_path: Path) -> None:
    root = machine(tmp_path, gpus=1, nics=1)
    rules = [of_machine(read_machine(root), root)]
    right, wrong = (
        PAIR.replace('"mlx5_0"', f'"mlx5_0" speed="{speed}"').encode() for speed in (400000, 200000)
    )
    assert lint_topology(right, rules) == []
    (found,) = lint_topology(wrong, rules)
    assert "whose port has 400 Gb/s" in found.text


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_file_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path if kind == "folder" else tmp_path / "none.xml"
    assert main(["deploy", "topology", "lint", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
