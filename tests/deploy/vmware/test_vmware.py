"""`penstock deploy vmware`: the chapters 7 to 10.2 of source 002 ("Deploy Distributed LLM Inference
with GPUDirect RDMA over InfiniBand in VMware Private AI") from a plan.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml

from penstock.cli.main import main
from penstock_ops.deploy.topology.lint import lint_topology
from penstock_ops.deploy.topology.sysfs import read_machine
from penstock_ops.deploy.vmware.mmio import of_bars, of_machine
from penstock_ops.plan.hardware.pci import bar_gib
from tests.deploy.conftest import HERE
from tests.deploy.definitions import strict
from tests.deploy.topology.machines import machine

PLAN = "sglang-two-nodes"
FIXTURES = Path(__file__).parents[2] / "fixtures/deploy"
SIZES = ("--cpus", "192", "--memory", "1900Gi")
ASKED = ("--namespace", "deepseek-test", "--storage-class", "xlr8or-cls02-k8s-vsan", *SIZES)
STATIC = (
    *("--service-vm-address", "10.0.0.5/24", "--service-vm-gateway", "10.0.0.1"),
    *("--service-vm-dns", "10.0.0.2,10.0.0.3"),
)
CLUSTER = """
apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata:
  name: deepseek-test-cluster
  namespace: deepseek-test
  labels:
    tkg-cluster-selector: deepseek-test-cluster
spec:
  clusterNetwork:
    pods:
      cidrBlocks:
        - 192.168.156.0/20
    services:
      cidrBlocks:
        - 10.96.0.0/12
    serviceDomain: cluster.local
  topology:
    class: builtin-generic-v3.3.0
    version: v1.32.0---vmware.6-fips-vkr.2
    variables:
      - name: vmClass
        value: guaranteed-large
      - name: storageClass
        value: xlr8or-cls02-k8s-vsan
    controlPlane:
      replicas: 1
      metadata:
        annotations:
          run.tanzu.vmware.com/resolve-os-image: os-name=ubuntu
    workers:
      machineDeployments:
        - class: node-pool
          name: gpu
          replicas: 2
          metadata:
            annotations:
              run.tanzu.vmware.com/resolve-os-image: os-name=ubuntu
          variables:
            overrides:
              - name: vmClass
                value: deepseek-8gpu-8ib
              - name: volumes
                value:
                  - name: containerd
                    mountPath: /var/lib/containerd
                    storageClass: xlr8or-cls02-k8s-vsan
                    capacity: 500Gi
"""
"""Example 4 of source 002, whose print breaks the node pool over two pages."""

TEXT, NAMED = {"type": "string", "minLength": 1}, {"required": ["name", "value"]}
CLUSTER_RULES = {
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "spec": {
            "required": ["clusterNetwork", "topology"],
            "properties": {
                "topology": {
                    "required": ["class", "version", "controlPlane", "workers", "variables"],
                    "properties": {
                        "class": TEXT,
                        "version": TEXT,
                        "variables": {"type": "array", "items": NAMED},
                        "workers": {
                            "properties": {
                                "machineDeployments": {
                                    "type": "array",
                                    "items": {"required": ["class", "name"]},
                                }
                            }
                        },
                    },
                }
            },
        }
    },
}
"""What Cluster API v1beta1 requires of a Cluster (kubernetes-sigs/cluster-api,
api/v1beta1/cluster_types.go), and the variables that the class of VMware requires.
"""
Files = dict[str, str]
Made = Callable[..., Files]


@pytest.fixture
def made(plan: Callable[[str], Path], tmp_path: Path) -> Made:
    def make(*words: str) -> Files:
        out = tmp_path / "vm"
        asked = ["deploy", "vmware", str(plan(PLAN)), "-o", str(out), *ASKED, *words]
        assert main(asked) == 0
        return {path.name: path.read_text() for path in out.iterdir()}

    return make


def test_the_class_has_the_devices_in_their_order(made: Made) -> None:
    found = yaml.safe_load(made()["vm-class.yaml"])
    definition = json.loads((FIXTURES / "virtualmachineclasses.json").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    open_names = {**schema["properties"], "metadata": {"additionalProperties": True}}
    jsonschema.Draft7Validator(strict({**schema, "properties": open_names})).validate(found)
    devices = found["spec"]["hardware"]["devices"]["dynamicDirectPathIODevices"]
    pairs = [name for number in range(8) for name in (f"GPU{number}", f"NIC{number}")]
    assert [each["customLabel"] for each in devices] == [*pairs, "NVS0", "NVS1", "NVS2", "NVS3"]
    kinds: dict[str, set[tuple[str, str]]] = {"GPU": set(), "NIC": set(), "NVS": set()}
    for each in devices:
        kinds[each["customLabel"][:3]].add((hex(each["vendorID"]), hex(each["deviceID"])))
    assert kinds == {
        "GPU": {("0x10de", "0x2330")},
        "NIC": {("0x15b3", "0x1021")},
        "NVS": {("0x10de", "0x22a3")},
    }
    options = {
        each["key"]: each["value"]["_value"] for each in found["spec"]["configSpec"]["extraConfig"]
    }
    assert options == {
        "pciPassthru.allowP2P": "true",
        "pciPassthru.relaxACSforP2P": "true",
        "pciPassthru.use64bitMMIO": "TRUE",
        "pciPassthru.64bitMMIOSizeGB": "1056",
    }
    assert "64bitMMIOSizeGB: 8 GPUs x 128 GiB of BAR = 1024, + 32" in made()["vm-class.yaml"]
    assert "doubled: 2048" in made()["vm-class.yaml"]


def test_the_cluster_is_that_of_the_source(made: Made) -> None:
    found = yaml.safe_load(made("--name", "deepseek-test-cluster")["cluster.yaml"])
    jsonschema.Draft7Validator(CLUSTER_RULES).validate(found)
    expected = yaml.safe_load(CLUSTER)
    (pool,) = expected["spec"]["topology"]["workers"]["machineDeployments"]
    # The class is named after the cluster.
    pool["variables"]["overrides"][0]["value"] = "deepseek-test-cluster-8gpu"
    assert found == expected


def test_the_topology_is_that_of_the_class(made: Made) -> None:
    found = lint_topology(made()["topology.xml"].encode())
    assert {fault.severity for fault in found} == {"note"}


def test_the_service_vm_has_the_fabric_manager_of_the_driver(made: Made) -> None:
    files = made(*STATIC, "--driver", "570.86.15")
    text = files["service-vm-user-data.yaml"]
    assert text.startswith("#cloud-config\n")
    assert base64.b64decode(files["service-vm-user-data.b64"]).decode() == text
    config = yaml.safe_load(text)
    assert config["runcmd"] == [
        "netplan apply",
        "apt-get update",
        "apt-get install -y nvidia-fabricmanager-570=570.86.15-1",
        "apt-mark hold nvidia-fabricmanager-570",
        "systemctl enable --now nvidia-fabricmanager",
    ]
    (written,) = config["write_files"]
    assert written["permissions"] == "0600"
    interface = yaml.safe_load(written["content"])["network"]["ethernets"]["ens33"]
    assert interface == {
        "dhcp4": False,
        "addresses": ["10.0.0.5/24"],
        "routes": [{"to": "default", "via": "10.0.0.1"}],
        "nameservers": {"addresses": ["10.0.0.2", "10.0.0.3"]},
    }


def test_a_service_vm_with_dhcp(made: Made) -> None:
    config = yaml.safe_load(made()["service-vm-user-data.yaml"])
    assert "write_files" not in config
    assert config["runcmd"][0] == "apt-get update"


def test_each_line_of_the_checklist_has_its_command(made: Made) -> None:
    text = made()["esx-checklist.txt"]
    items = text.split("\n\n", 1)[1].split("\n")
    heads = [line for line in items if line[:1].isdecimal()]
    assert len(heads) == sum(line.startswith("   check: ") for line in items)
    assert len(heads) == sum(line.startswith("   right: ") for line in items)
    for command in (
        "racadm get BIOS.ProcSettings.ProcVirtualization",
        "racadm get BIOS.IntegratedDevices.SriovGlobalEnable",
        "racadm get BIOS.IntegratedDevices.MmioAbove4Gb",
        "racadm get BIOS.SysProfileSettings.SysProfile",
        "racadm get BIOS.ProcSettings.SubNumaCluster",
        "esxcli system settings kernel set -s enableACSDTP2P -v true",
        "esxcli system settings kernel list -o disableACSCheck",
        "esxcli system settings kernel list -o atsSupport",
        "/opt/mellanox/bin/mlxconfig -d mt4129_pciconf7 -y set ATS_ENABLED=true",
        "10de ffff flr false",
    ):
        assert command in text
    assert "Each of the 2 ESX hosts" in text


@pytest.mark.parametrize(
    ("accelerator", "memory", "size"),
    [("h100-sxm-80gb", 80, 1056), ("h200-sxm-141gb", 141, 2080), ("b200-sxm-180gb", 180, 2080)],
)
def test_the_size_of_mmio_by_bars(accelerator: str, memory: int, size: int) -> None:
    """Source 002 prints 1,056 for eight H100, and would have 128 GB for an H200, too, whose BAR is
    twice as large.
    """
    assert of_bars(8, bar_gib(accelerator), memory).size == size


def test_the_size_of_mmio_of_a_machine(tmp_path: Path) -> None:
    root = machine(tmp_path, gpus=2, nics=2, switches=1)
    rows = {
        "0x10de0x030200": [(16 << 20, 0x40200), (128 << 30, 0x14220C), (32 << 20, 0x14220C)],
        "0x15b30x020700": [(32 << 20, 0x14220C)],
        "0x10de0x068000": [(32 << 20, 0x14220C)],
    }
    for folder in (root / "sys/bus/pci/devices").iterdir():
        kind = "".join((folder / name).read_text().strip() for name in ("vendor", "class"))
        lines = [
            f"0x{1 << 40:016x} 0x{(1 << 40) + size - 1:016x} 0x{flags:016x}"
            for size, flags in rows.get(kind, ())
        ]
        (folder / "resource").write_text("\n".join([*lines, " ".join(["0x" + "0" * 16] * 3)]))
    # 256 GiB and five regions of 32 MiB; the regions of 32 bits do not count.
    assert of_machine(read_machine(root), root, 80).size == 257 + 32
    (root / "sys/bus/pci/devices/0000:04:00.0/resource").unlink()
    with pytest.raises(Exception, match=r"GPU 0000:04:00\.0 has no 64-bit BAR"):
        of_machine(read_machine(root), root, 80)


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "Fabric Manager": (
        ("--fabric-manager", "575.57.08-1"),
        "driver 570.148.08 and Fabric Manager 575.57.08-1 differ",
    ),
    "gateway": (
        ("--service-vm-address", "10.0.0.5/24", "--service-vm-gateway", "10.0.1.1"),
        "an address in 10.0.0.0/24",
    ),
    "no gateway": (("--service-vm-address", "10.0.0.5/24"), "such as 10.0.0.1"),
    "address": ((*STATIC, "--service-vm-address", "10.0.0.5"), "such as 10.0.0.5/24"),
    "no address": (("--service-vm-dns", "10.0.0.2"), "--service-vm-address"),
    "memory": (("--memory", "1900"), "such as 1900Gi"),
    "cpus": (("--cpus", "0"), "1 or more"),
    "class": (("--cluster-class", "a b"), "--cluster-class is 'a b'"),
    "BAR": (("--bar-gib", "0"), "give --bar-gib or --bars-of"),
    "node type": (("--node-type", "aws-p5-48xlarge"), "FILE.yaml with a member pci"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words, why = REFUSED[name]
    out = tmp_path / "vm"
    assert main(["deploy", "vmware", str(plan(PLAN)), "-o", str(out), *ASKED, *words]) != 0
    assert why in capsys.readouterr().err
    assert not out.exists()


def test_a_plan_without_a_node_type(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["deploy", "vmware", str(plan(HERE)), "-o", str(tmp_path / "vm"), *ASKED]
    assert main(asked) == 1
    assert "give --node-type" in capsys.readouterr().err
