"""A node as a directory and outputs of commands. All texts are written by hand, in the formats of
sysfs, procfs and the tools; `recorded` has outputs that users have published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock_ops.verify.checks.registry import CHECKS
from penstock_ops.verify.evidence import Absence, Evidence, Snapshot
from penstock_ops.verify.finding import Bound, Finding, Status
from penstock_ops.verify.judging import findings_of, sources_of
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import collect

GPUS = ("0000:19:00.0", "0000:3b:00.0")
NICS = ("0000:1a:00.0", "0000:3c:00.0")
BRIDGES = ("0000:15:01.0", "0000:37:01.0")
NEEDS = Needs(
    plan="plan.yaml",
    model="DeepSeek-R1",
    nodes=2,
    devices=2,
    accelerator="h100-sxm-80gb",
    ranks=2,
    shared_memory=1 << 30,
    fabric_resources={"rdma/hca": 2},
    bounds={
        "storage_gb_per_s": Bound(0.9, 1.5, "GB/s"),
        "tier_disk_gb_per_s": Bound(None, 3.0, "GB/s"),
        "rail_gbit_per_s": Bound(200.0, 400.0, "Gb/s"),
        "all_reduce_us": Bound(50.0, 30.0, "us", is_ceiling=True),
    },
    directories={"weights": "/models", "disk": "/kv"},
    config="/etc/penstock.yaml",
    stores=("redis://kv:6379/0",),
    hosts=("node-1", "kv"),
)
"""Of a plan for two nodes with two GPUs each."""
REDUCTIONS = """\
# Using devices
#  Rank  0 Group  0 Pid    254 on     node-0 device  0 [0000:19:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid    254 on     node-0 device  1 [0000:3b:00] NVIDIA H100 80GB HBM3
#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time\
   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)\
  (GB/s)  (GB/s)
       65536         16384     float     sum      -1    16.38    4.00    4.00      0    16.40\
    4.00    4.00      0
  4294967296    1073741824     float     sum      -1    12780  336.07  336.07      0    12790\
  335.81  335.81      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 170.0
"""
GPU_XML = """\
	<gpu id="0000{bus}">
		<product_name>NVIDIA H100 80GB HBM3</product_name>
		<uuid>GPU-{number}f00aaaa-0000-4000-8000-00000000000{number}</uuid>
		<gpu_recovery_action>None</gpu_recovery_action>
		<clocks_event_reasons>
			<clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
			<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>
			<clocks_event_reason_hw_thermal_slowdown>Not Active\
</clocks_event_reason_hw_thermal_slowdown>
			<clocks_event_reason_hw_power_brake_slowdown>Not Active\
</clocks_event_reason_hw_power_brake_slowdown>
			<clocks_event_reason_sw_thermal_slowdown>Not Active\
</clocks_event_reason_sw_thermal_slowdown>
		</clocks_event_reasons>
		<ecc_mode>
			<current_ecc>Enabled</current_ecc>
			<pending_ecc>Enabled</pending_ecc>
		</ecc_mode>
		<ecc_errors>
			<volatile>
				<sram_correctable>0</sram_correctable>
				<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
				<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
				<dram_correctable>0</dram_correctable>
				<dram_uncorrectable>0</dram_uncorrectable>
			</volatile>
			<aggregate>
				<sram_correctable>0</sram_correctable>
				<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
				<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
				<dram_correctable>0</dram_correctable>
				<dram_uncorrectable>0</dram_uncorrectable>
				<sram_threshold_exceeded>No</sram_threshold_exceeded>
			</aggregate>
		</ecc_errors>
		<remapped_rows>
			<remapped_row_corr>0</remapped_row_corr>
			<remapped_row_unc>2</remapped_row_unc>
			<remapped_row_pending>No</remapped_row_pending>
			<remapped_row_failure>No</remapped_row_failure>
		</remapped_rows>
		<fabric>
			<state>Completed</state>
			<status>Success</status>
		</fabric>
	</gpu>
"""
XML = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<timestamp>Mon Oct 13 00:25:36 2025</timestamp>
	<driver_version>570.148.08</driver_version>
	<cuda_version>12.8</cuda_version>
	<attached_gpus>2</attached_gpus>
{gpus}</nvidia_smi_log>
"""
MATRIX = (
    "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\tPIX\tSYS\t0-3\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tPIX\t4-7\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPIX\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n"
)
PEERS = " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n\nLegend:\n\n  X    = Self\n"
COPIES = """\
{
  "nvbandwidth": {
    "testcases": [
      {
        "name": "host_to_device_memcpy_ce",
        "status": "Passed",
        "bandwidth_matrix": [
          ["55.21", "54.90"]
        ]
      },
      {
        "name": "device_to_host_memcpy_ce",
        "status": "Passed",
        "bandwidth_matrix": [
          ["55.10", "55.02"]
        ]
      }
    ]
  }
}
"""
BRIDGE = """\
{bus} PCI bridge: Intel Corporation Device 352a (prog-if 00 [Normal decode])
	Capabilities: [148 v1] Access Control Services
		ACSCap:	SrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
		ACSCtl:	SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-

"""
ENDPOINT = """\
{bus} {kind}
	LnkSta:	Speed 32GT/s, Width x16
	Capabilities: [250 v1] Address Translation Service (ATS)
		ATSCap:	Invalidate Queue Depth: 00
		ATSCtl:	Enable+, Smallest Translation Unit: 00

"""
LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max cpu time              unlimited            unlimited            seconds   \n"
    "Max open files            1048576              1048576              files     \n"
    "Max locked memory         unlimited            unlimited            bytes     \n"
    "Max nice priority         0                    0                    \n"
)
KMSG = """\
6,1200,991000000,-;pci 0000:19:00.0: enabling device
 SUBSYSTEM=pci
4,1201,991833114,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.148.08
6,1202,991900000,-;mlx5_core 0000:1a:00.0: firmware version: 28.43.2026
"""
CPUINFO = """\
processor	: 0
model name	: Intel(R) Xeon(R) Platinum 8480C
physical id	: 0
flags		: fpu vme avx512f amx_bf16 amx_tile amx_int8

"""
HOST = (
    '{"shared_memory_bytes": 68719476736.000000, "shared_memory_free_bytes": 68719476736.000000, '
    '"cpus": 8.000000, "cpus_in_mask": 8.000000, "amx_error": 0.000000, '
    '"clock_synchronised": 1.000000, "clock_error_ms": 0.500000}\n'
)
GROWN_SECONDS = "12.000"


@dataclass(slots=True)
class Tree:
    """Files below `root`, and texts of commands by source name. A command that has no text is not
    installed.
    """

    root: Path
    commands: dict[str, str] = field(default_factory=dict)

    def write(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def remove(self, path: str) -> None:
        (self.root / path.lstrip("/")).unlink()

    def change(self, path: str, old: str, new: str) -> None:
        target = self.root / path.lstrip("/")
        text = target.read_text()
        assert old in text
        target.write_text(text.replace(old, new, 1))

    def command(self, name: str, old: str, new: str) -> None:
        assert old in self.commands[name]
        self.commands[name] = self.commands[name].replace(old, new, 1)

    def snapshot(self, needs: Needs = NEEDS) -> Snapshot:
        """The node with `GROWN_SECONDS` between both readings of counters."""
        sources = sources_of(CHECKS, needs)
        by_words = {
            getattr(each, "command", getattr(each, "words", None)): each.name for each in sources
        }

        def run(words: tuple[str, ...], _seconds: float) -> Evidence:
            name = by_words[words]
            if name in self.commands:
                return Evidence(text=self.commands[name])
            return Evidence(absence=Absence.MISSING, detail=f"no program {words[0]}")

        node = collect("node-0", sources, self.root, run)
        timed = {
            name: replace(evidence, text=GROWN_SECONDS) if name.endswith(".end") else evidence
            for name, evidence in node.evidence.items()
        }
        return Snapshot("node-0", timed)

    def findings(self, needs: Needs = NEEDS) -> list[Finding]:
        return findings_of(CHECKS, self.snapshot(needs), needs)


def worst(findings: list[Finding]) -> Mapping[str, Status]:
    """The worst status of each check."""
    order = (Status.SKIPPED, Status.PASS, Status.WARN, Status.UNKNOWN, Status.FAIL)
    found: dict[str, Status] = {}
    for finding in findings:
        known = found.get(finding.check, Status.SKIPPED)
        found[finding.check] = max(known, finding.status, key=order.index)
    return found


def healthy(root: Path) -> Tree:
    """A bare-metal node with two H100, two InfiniBand adapters and one of RoCE, without a fault."""
    tree = Tree(root)
    for number in (0, 1):
        _pci(tree, number)
        _adapter(tree, f"mlx5_{number}", number, "400 Gb/sec (4X NDR)", "InfiniBand")
    _adapter(tree, "mlx5_2", 2, "400 Gb/sec (4X NDR)", "Ethernet")
    _roce(tree, "mlx5_2")
    for cpu in range(2):
        at = f"/sys/devices/system/cpu/cpu{cpu}/cpufreq"
        tree.write(f"{at}/scaling_governor", "performance\n")
        tree.write(f"{at}/scaling_driver", "acpi-cpufreq\n")
    for path, text in FILES.items():
        tree.write(path, text)
    gpus = "".join(GPU_XML.format(bus=bus, number=number) for number, bus in enumerate(GPUS))
    tree.commands |= COMMANDS | {"nvidia-smi": XML.format(gpus=gpus)}
    return tree


FILES = {
    "/proc/self/limits": LIMITS,
    "/proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-7\n",
    "/proc/cpuinfo": CPUINFO,
    "/proc/cmdline": "BOOT_IMAGE=/vmlinuz ro intel_iommu=on iommu=pt\n",
    "/proc/sys/kernel/osrelease": "6.8.0-31-generic\n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
    "570.148.08  Release Build  (dvs-builder@host)\nGCC version:  gcc 12\n",
    "/dev/kmsg": KMSG,
    "/sys/devices/system/node/node0/cpulist": "0-3\n",
    "/sys/devices/system/node/node1/cpulist": "4-7\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "/sys/kernel/iommu_groups/0/type": "identity\n",
    "/sys/fs/cgroup/cpu.stat": "usage_usec 100\nnr_periods 10\nnr_throttled 0\nthrottled_usec 0\n",
}
COMMANDS = {
    "nvlink": "".join(
        f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-{number}f00aaaa-0000-4000-8000-"
        f"00000000000{number})\n" + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
        for number in (0, 1)
    ),
    "fabric-manager": "Fabric Manager version is : 570.148.08\n",
    "topology-matrix": MATRIX,
    "peer-reads": PEERS,
    "copy-rate": COPIES,
    "all-reduce-rate": REDUCTIONS,
    "lspci": "".join(BRIDGE.format(bus=bus) for bus in BRIDGES)
    + "".join(ENDPOINT.format(bus=bus, kind="3D controller: NVIDIA GH100") for bus in GPUS)
    + "".join(ENDPOINT.format(bus=bus, kind="Infiniband controller: MT2910") for bus in NICS),
    "host": HOST,
    "memory-rate": '{"gb_per_s": 410.000000, "threads": 8.000000, "bytes": 268435456.000000}\n',
    "read-rate weights": '{"gb_per_s": 2.5, "bytes": 25000000000.0, "is_direct": 1.0}\n',
    "read-rate disk": '{"gb_per_s": 3.500000, "bytes": 35000000000.0, "is_direct": 1.000000}\n',
    "store 0": '{"store_gb_per_s": 1.100000, "load_gb_per_s": 1.200000}\n',
    "names": '{"node-1": 3.100000, "kv": 1.200000}\n',
}


def _pci(tree: Tree, number: int) -> None:
    """A bridge with a GPU and a NIC below it."""
    root = f"/sys/devices/pci0000:{BRIDGES[number][5:7]}/{BRIDGES[number]}"
    devices = {
        BRIDGES[number]: (root, "0x060400", "0x8086"),
        GPUS[number]: (f"{root}/{GPUS[number]}", "0x030200", "0x10de"),
        NICS[number]: (f"{root}/{NICS[number]}", "0x020700", "0x15b3"),
    }
    for bus, (path, kind, vendor) in devices.items():
        values = {
            "class": kind,
            "vendor": vendor,
            "numa_node": str(number),
            "current_link_speed": "32.0 GT/s PCIe",
            "max_link_speed": "32.0 GT/s PCIe",
            "current_link_width": "16",
            "max_link_width": "16",
        }
        for name, value in values.items():
            tree.write(f"{path}/{name}", f"{value}\n")
        link = tree.root / "sys/bus/pci/devices" / bus
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(tree.root / path.lstrip("/"))


def _adapter(tree: Tree, name: str, number: int, rate: str, layer: str) -> None:
    at = f"/sys/class/infiniband/{name}/ports/1"
    tree.write(f"{at}/state", "4: ACTIVE\n")
    tree.write(f"{at}/phys_state", "5: LinkUp\n")
    tree.write(f"{at}/rate", f"{rate}\n")
    tree.write(f"{at}/link_layer", f"{layer}\n")
    for counter in ("link_downed", "symbol_error", "link_error_recovery", "port_rcv_data"):
        tree.write(f"{at}/counters/{counter}", "3\n")
    tree.write(f"{at}/hw_counters/rnr_nak_retry_err", "0\n")
    tree.write(f"/dev/infiniband/uverbs{number}", "")


def _roce(tree: Tree, name: str) -> None:
    at = f"/sys/class/infiniband/{name}/ports/1"
    for index, kind in ((0, "IB/RoCE v1"), (1, "RoCE v2")):
        tree.write(f"{at}/gid_attrs/types/{index}", f"{kind}\n")
        tree.write(f"{at}/gid_attrs/ndevs/{index}", "eth2\n")
        tree.write(f"{at}/gids/{index}", "0000:0000:0000:0000:0000:ffff:0a00:0005\n")
    tree.write("/sys/class/net/eth2/mtu", "9000\n")
