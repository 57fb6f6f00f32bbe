"""Judgement of whole nodes: a healthy one, then one fault at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock_ops.verify.checks.registry import CHECKS
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.finding import Status
from penstock_ops.verify.judging import findings_of
from penstock_ops.verify.verdict import Outcome, verdict
from tests.verify.node import GPUS, NEEDS, NICS, Tree, healthy, worst

PCI = "/sys/bus/pci/devices"
PORT = "/sys/class/infiniband/mlx5_0/ports/1"
ROCE = "/sys/class/infiniband/mlx5_2/ports/1"
CPU = "/sys/devices/system/cpu/cpu0/cpufreq"
Fault = Callable[[Tree], object]


def xml(old: str, new: str) -> Fault:
    return lambda tree: tree.command("nvidia-smi", old, new)


def file(path: str, text: str) -> Fault:
    return lambda tree: tree.write(path, f"{text}\n")


def command(name: str, old: str, new: str) -> Fault:
    return lambda tree: tree.command(name, old, new)


def kernel_log(text: str) -> Fault:
    return lambda tree: tree.change("/dev/kmsg", "enabling device", f"enabling device\n{text}")


def xid(text: str) -> Fault:
    def fault(tree: Tree) -> None:
        tree.change(
            "/dev/kmsg", "4,1201,991833114,-;NVRM: loading NVIDIA UNIX", f"4,1201,9,-;{text}"
        )

    return fault


def ports_down(tree: Tree) -> None:
    """Two of three ports are down, where the plan needs two."""
    for number in (0, 1):
        at = f"/sys/class/infiniband/mlx5_{number}/ports/1"
        tree.write(f"{at}/state", "1: DOWN\n")
        tree.write(f"{at}/phys_state", "2: Polling\n")


FAIL, WARN, UNKNOWN = Status.FAIL, Status.WARN, Status.UNKNOWN
FAULTS: dict[str, tuple[str, Status, str, Fault]] = {
    "another type of GPU": ("devices", FAIL, "plan is for", xml("H100 80GB HBM3", "H200")),
    "Fabric Manager of another version, as in source 002": (
        "driver",
        FAIL,
        "575.57.08",
        command("fabric-manager", "570.148.08", "575.57.08"),
    ),
    "library and module differ": (
        "driver",
        FAIL,
        "kernel module 570.124.06",
        lambda tree: tree.change("/proc/driver/nvidia/version", "570.148.08", "570.124.06"),
    ),
    "ECC off": ("ecc", WARN, "ECC is off", xml("current_ecc>Enabled", "current_ecc>Disabled")),
    "uncorrectable errors now": (
        "ecc",
        WARN,
        "3 uncorrectable",
        xml("<dram_uncorrectable>0", "<dram_uncorrectable>3"),
    ),
    "SRAM threshold": ("ecc", FAIL, "SRAM", xml("exceeded>No", "exceeded>Yes")),
    "remap failure": ("row-remapping", FAIL, "not be remapped", xml("failure>No", "failure>Yes")),
    "remap pending": ("row-remapping", FAIL, "awaits a reset", xml("pending>No", "pending>Yes")),
    "rows used up": ("row-remapping", FAIL, "513", xml("row_unc>2", "row_unc>513")),
    "recovery action": ("recovery", FAIL, "Reset", xml("action>None", "action>Reset")),
    "thermal slowdown": (
        "throttling",
        WARN,
        "clocks are lowered",
        xml("hw_thermal_slowdown>Not Active", "hw_thermal_slowdown>Active"),
    ),
    "Xid 79": ("xid", FAIL, "Xid 79", xid("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=a, gone")),
    "Xid 154": (
        "xid",
        FAIL,
        "Xid 154",
        xid(
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 "
            "(GPU Reset Required)"
        ),
    ),
    "NVLink 5 fatal": (
        "xid",
        FAIL,
        "Xid 149",
        xid("NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x1)"),
    ),
    "NVSwitch": (
        "xid",
        FAIL,
        "SXid 20034",
        xid("nvidia-nvswitch3: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
    ),
    "Xid without a meaning here": (
        "xid",
        WARN,
        "Xid 69",
        xid("NVRM: Xid (PCI:0000:3b:00): 69, pid=4, name=python3, Class Error"),
    ),
    "gap in the kernel log": ("xid", UNKNOWN, "records are missing", kernel_log("6,1300,9,-;late")),
    "NVLink down": (
        "nvlink",
        FAIL,
        "17 links",
        command("nvlink", "Link 7: 26.562 GB/s", "Link 7: <inactive>"),
    ),
    "slow NVLink": ("nvlink", WARN, "25.78", command("nvlink", "7: 26.562", "7: 25.781")),
    "fabric not completed": (
        "nvlink-fabric",
        FAIL,
        "In Progress",
        xml("<state>Completed", "<state>In Progress"),
    ),
    "GPUs across CPUs": (
        "gpu-paths",
        WARN,
        "cross a host bridge",
        lambda tree: [tree.command("topology-matrix", "NV18", "SYS") for _ in range(2)],
    ),
    "no NIC near": (
        "gpu-paths",
        WARN,
        "no NIC near",
        lambda tree: [tree.command("topology-matrix", "PIX", "NODE") for _ in range(4)],
    ),
    "no peer reads": ("peer-reads", FAIL, "1 pairs", command("peer-reads", "X\tOK", "X\tCNS")),
    "fewer lanes of the bridge": (
        "pcie",
        WARN,
        "8 lanes",
        file(f"{PCI}/0000:15:01.0/current_link_width", "8"),
    ),
    "older slot": (
        "pcie",
        WARN,
        "16 GT/s",
        file(f"{PCI}/0000:15:01.0/max_link_speed", "16.0 GT/s"),
    ),
    "slow copies": ("copy-rate", WARN, "12.4", command("copy-rate", '"54.90"', '"12.40"')),
    "slow all-reduce of the plan's size": (
        "all-reduce-rate",
        FAIL,
        "65.5 KB over 2 GPUs: 65.54 us",
        command("all-reduce-rate", "16.40    4.00    4.00", "65.54    1.00    1.00"),
    ),
    "wrong values of an all-reduce": (
        "all-reduce-rate",
        FAIL,
        "3 wrong values",
        command("all-reduce-rate", "values : 0 OK", "values : 3 FAILED"),
    ),
    "ACS": (
        "acs",
        WARN,
        "ReqRedir",
        command("lspci", "TransBlk- ReqRedir-", "TransBlk- ReqRedir+"),
    ),
    "IOMMU": ("iommu", WARN, "translates", file("/proc/cmdline", "ro intel_iommu=on")),
    "port down": ("hca", FAIL, "1 ports", ports_down),
    "half rate": ("hca", WARN, "200 Gb/s", file(f"{PORT}/rate", "200 Gb/sec (2X NDR)")),
    "adapters not granted": (
        "hca",
        FAIL,
        "0 device files",
        lambda tree: [tree.remove(f"/dev/infiniband/uverbs{number}") for number in range(3)],
    ),
    "no IPv4 of RoCE": (
        "roce",
        FAIL,
        "no GID",
        file(f"{ROCE}/gids/1", "fe80:0000:0000:0000:0000:0000:0000:0001"),
    ),
    "small MTU": ("roce", WARN, "1,500", file("/sys/class/net/eth2/mtu", "1500")),
    "closed module": (
        "gpudirect",
        WARN,
        "neither",
        lambda tree: tree.change(
            "/proc/driver/nvidia/version", "Open Kernel Module for x86_64", "K"
        ),
    ),
    "slow weights": ("storage", FAIL, "0.4 GB/s", command("read-rate weights", "2.5,", "0.4,")),
    "slower weights than planned": (
        "storage",
        WARN,
        "1.2 GB/s",
        command("read-rate weights", "2.5,", "1.2,"),
    ),
    "slow disk tier": ("storage", WARN, "reads of disk", command("read-rate disk", "3.5", "1.5")),
    "GPU without a NIC on its node": (
        "numa",
        WARN,
        "no NIC on its NUMA node",
        lambda tree: [tree.write(f"{PCI}/{nic}/numa_node", "0\n") for nic in NICS],
    ),
    "GPU of an unknown node": (
        "numa",
        WARN,
        "unknown",
        lambda tree: [tree.write(f"{PCI}/{gpu}/numa_node", "-1\n") for gpu in GPUS],
    ),
    "cpuset of the other socket": (
        "numa",
        WARN,
        "no CPU of its NUMA node 1",
        lambda tree: tree.change("/proc/self/status", "0-7", "0-3"),
    ),
    "locked memory": (
        "limits",
        FAIL,
        "8,388,608",
        lambda tree: tree.change(
            "/proc/self/limits", "memory         unlimited", "memory         8388608  "
        ),
    ),
    "open files": (
        "limits",
        WARN,
        "1,024",
        lambda tree: tree.change("/proc/self/limits", "1048576 ", "1024    "),
    ),
    "small shared memory": (
        "shared-memory",
        FAIL,
        "67,108,864",
        command("host", '_free_bytes": 68719476736', '_free_bytes": 67108864'),
    ),
    "no huge pages": (
        "huge-pages",
        WARN,
        "off",
        file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
    ),
    "slow memory": ("memory-rate", WARN, "100 GB/s", command("memory-rate", "410.", "100.")),
    "CPU quota": ("cpu-quota", WARN, "2 CPUs", command("host", '"cpus": 8', '"cpus": 2')),
    "power saving": ("frequency", WARN, "powersave", file(f"{CPU}/scaling_governor", "powersave")),
    "AMX refused": ("amx", WARN, "refuses", command("host", 'error": 0.0', 'error": 95.0')),
    "clock": (
        "clock",
        WARN,
        "no time service",
        command("host", 'synchronised": 1', 'synchronised": 0'),
    ),
    "clock error": ("clock", WARN, "250 ms", command("host", 'ms": 0.5', 'ms": 250.0')),
    "name not resolved": ("names", FAIL, "not resolved", command("names", "1.200000", "-1.000000")),
    "slow names": ("names", WARN, "5,005", command("names", "1.200000", "5005.000000")),
}


def test_a_healthy_node_holds(tmp_path: Path) -> None:
    findings = healthy(tmp_path).findings()
    assert {
        name: status for name, status in worst(findings).items() if status is not Status.PASS
    } == {}
    assert {finding.check for finding in findings} == {check.name for check in CHECKS}
    assert verdict(findings).outcome is Outcome.HOLDS


@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_is_named_and_nothing_else_blamed(tmp_path: Path, name: str) -> None:
    check, status, words, fault = FAULTS[name]
    tree = healthy(tmp_path)
    fault(tree)
    findings = tree.findings()
    blamed = {key: value for key, value in worst(findings).items() if value is not Status.PASS}
    assert blamed == {check: status}
    found = [finding for finding in findings if finding.status is status]
    assert any(words in f"{each.summary} {each.cause}" for each in found), found
    assert all(each.remedy for each in found)
    expected = Outcome.DOES_NOT_HOLD if status is FAIL else Outcome.HOLDS
    expected = Outcome.NOT_PROVEN if status is UNKNOWN else expected
    result = verdict(findings)
    assert result.outcome is expected
    assert result.cause is None or result.cause.check == check


def test_a_lost_gpu_fails_the_plan(tmp_path: Path) -> None:
    tree = healthy(tmp_path)
    text = tree.commands["nvidia-smi"]
    second = text.index("\t<gpu id=", text.index("</gpu>"))
    tree.commands["nvidia-smi"] = text[:second].replace("gpus>2", "gpus>1") + "</nvidia_smi_log>\n"
    findings = tree.findings()
    found = [each for each in findings if each.check == "devices"]
    assert [each.status for each in found] == [WARN, FAIL]
    assert found[0].device == GPUS[1]
    assert worst(findings)["nvlink"] is Status.SKIPPED


def test_every_missing_source_of_a_plan_is_no_pass(tmp_path: Path) -> None:
    """Without any file or tool, nothing passes, and the verdict is not proven."""
    findings = Tree(tmp_path).findings()
    assert not {each.check for each in findings if each.status is Status.PASS}
    assert verdict(findings).outcome in (Outcome.NOT_PROVEN, Outcome.DOES_NOT_HOLD)
    assert all(each.remedy for each in findings if each.status in (FAIL, WARN, UNKNOWN))


def test_programs_own_xids_and_its_recovery_none_pass(tmp_path: Path) -> None:
    tree = healthy(tmp_path)
    xid("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python3, MMU Fault")(tree)
    assert worst(tree.findings())["xid"] is Status.PASS


def test_in_a_virtual_machine_acs_stays_on_and_ats_counts(tmp_path: Path) -> None:
    tree = healthy(tmp_path)
    tree.change("/proc/cpuinfo", "avx512f", "hypervisor avx512f")
    tree.command("lspci", "TransBlk- ReqRedir-", "TransBlk- ReqRedir+")
    assert worst(tree.findings())["acs"] is Status.PASS
    tree.command("lspci", "Enable+", "Enable-")
    statuses = worst(tree.findings())
    assert statuses["acs"] is WARN
    assert statuses["pcie"] is Status.SKIPPED
    assert statuses["iommu"] is Status.SKIPPED


def test_capabilities_for_root_only_are_skipped(tmp_path: Path) -> None:
    tree = healthy(tmp_path)
    tree.command(
        "lspci", "Capabilities: [148 v1] Access Control Services", "Capabilities: <access denied>"
    )
    (found,) = [each for each in tree.findings() if each.check == "acs"]
    assert (found.status, found.remedy) == (Status.SKIPPED, "run as root, or with the capability")


def test_errors_of_links_count_by_their_growth(tmp_path: Path) -> None:
    tree = healthy(tmp_path)
    before = tree.snapshot()
    tree.write(f"{PORT}/counters/link_downed", "4\n")
    tree.write(f"{ROCE}/counters/symbol_error", "4\n")
    after = tree.snapshot()
    changed = {**before.evidence, "hca-counters.end": after["hca-counters.end"]}
    found = findings_of(CHECKS, Snapshot("node-0", changed), NEEDS)
    bad = [each for each in found if each.check == "hca-errors"]
    assert {(each.device, each.status) for each in bad} == {("mlx5_0/1", FAIL), ("mlx5_2/1", FAIL)}
    assert any("300 errors/h" in each.summary for each in bad)  # 1 in 12 s


def test_a_second_spare_port_is_no_fault(tmp_path: Path) -> None:
    tree = healthy(tmp_path)
    tree.write(f"{PORT}/state", "1: DOWN\n")
    tree.write(f"{PORT}/phys_state", "2: Polling\n")
    assert worst(tree.findings())["hca"] is Status.PASS


def test_throttled_periods_warn(tmp_path: Path) -> None:
    tree = healthy(tmp_path)
    before = tree.snapshot()
    tree.change("/sys/fs/cgroup/cpu.stat", "nr_throttled 0", "nr_throttled 5")
    after = tree.snapshot()["cpu-statistics.end"]
    changed = Snapshot("node-0", {**before.evidence, "cpu-statistics.end": after})
    assert worst(findings_of(CHECKS, changed, NEEDS))["cpu-quota"] is WARN
