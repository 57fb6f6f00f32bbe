"""`penstock deploy vmware`: flags and output."""

from __future__ import annotations

import argparse
import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.core import InvalidValueError, PenstockError
from penstock_ops.deploy.emit import dump
from penstock_ops.deploy.operators.flags import add_driver, refuse, write_texts
from penstock_ops.deploy.operators.versions import driver_misfits
from penstock_ops.deploy.plan_file import read_plan
from penstock_ops.deploy.settings import Settings, checked_name, name_of
from penstock_ops.deploy.topology.flags import BUS
from penstock_ops.deploy.topology.layout import Claims, of_node, tree
from penstock_ops.deploy.topology.sysfs import read_machine
from penstock_ops.deploy.topology.writer import write_topology
from penstock_ops.deploy.vmware.checklist import checklist
from penstock_ops.deploy.vmware.cluster import cluster
from penstock_ops.deploy.vmware.host import Machines
from penstock_ops.deploy.vmware.mmio import Mmio, of_bars, of_machine
from penstock_ops.deploy.vmware.service_vm import INTERFACE, network_of, user_data
from penstock_ops.deploy.vmware.vm_class import vm_class
from penstock_ops.deploy.volumes import Volume
from penstock_ops.plan.hardware import accelerator
from penstock_ops.plan.hardware.pci import NodePci, bar_gib, node_pci

KUBERNETES = "v1.32.0---vmware.6-fips-vkr.2"
"""Kubernetes release of source 002, table 3."""
CLUSTER_CLASS, CONTROL_PLANE, CONTAINERS = "builtin-generic-v3.3.0", "guaranteed-large", "500Gi"
"""Those of source 002, example 4."""
QUANTITY = re.compile(r"[1-9][0-9]{0,6}[GT]i")
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,99}")
"""Names of classes and releases, which have dots."""


def add_vmware(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write what a plan needs in virtual machines of VMware ESX that have all devices of their "
        "hosts: VM class, cluster, NCCL's topology, the service VM with Fabric Manager, and a "
        "checklist of the hosts. Nothing is applied."
    )
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.yaml of `penstock plan -o`")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="where the files go"
    )
    parser.add_argument("--namespace", required=True, help="of the Supervisor")
    parser.add_argument("--storage-class", required=True, help="of the cluster's volumes")
    parser.add_argument("--cpus", type=int, required=True, help="of a virtual machine")
    parser.add_argument(
        "--memory", required=True, metavar="SIZE", help="of a virtual machine, such as 1900Gi"
    )
    parser.add_argument("--name", help="of the cluster; default: from the model's")
    parser.add_argument(
        "--node-type", metavar="NAME", help="with its PCI devices; default: the plan's"
    )
    parser.add_argument(
        "--kubernetes",
        default=KUBERNETES,
        metavar="RELEASE",
        help="Kubernetes release of the cluster; default: %(default)s",
    )
    parser.add_argument(
        "--cluster-class",
        default=CLUSTER_CLASS,
        help="ClusterClass of the cluster; default: %(default)s",
    )
    parser.add_argument(
        "--control-plane-class",
        default=CONTROL_PLANE,
        help="VM class of the control plane; default: %(default)s",
    )
    parser.add_argument(
        "--containers",
        default=CONTAINERS,
        metavar="SIZE",
        help="volume of a node for container images; default: %(default)s",
    )
    parser.add_argument(
        "--bar-gib", type=int, metavar="N", help="of a GPU; default: the accelerator's"
    )
    parser.add_argument(
        "--bars-of",
        type=Path,
        metavar="DIR",
        help="sum the BARs of a host in place of it: where its sys is, read under Linux",
    )
    _service_vm(parser)
    parser.set_defaults(command=run_vmware)


def _service_vm(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("service VM")
    group.add_argument(
        "--service-vm-address",
        default="",
        metavar="ADDRESS/PREFIX",
        help="static, of one host's; default: DHCP",
    )
    group.add_argument(
        "--service-vm-gateway", default="", metavar="ADDRESS", help="its default route"
    )
    group.add_argument(
        "--service-vm-dns", default="", metavar="ADDRESS,...", help="its name servers"
    )
    group.add_argument(
        "--service-vm-interface",
        default=INTERFACE,
        metavar="NAME",
        help="its network interface; default: %(default)s",
    )
    add_driver(group)


def run_vmware(parsed: argparse.Namespace) -> int:
    """Write the files; print their names and the MMIO rule. PenstockError for a plan whose nodes'
    PCI devices or BARs are not known.
    """
    fabric_manager = parsed.fabric_manager or parsed.driver
    refuse(driver_misfits(parsed.driver, fabric_manager))
    plan = read_plan(parsed.plan)
    node = _node(parsed, plan)
    mmio = _mmio(parsed, plan, node)
    machines = _machines(parsed, plan, node, mmio)
    network = network_of(
        parsed.service_vm_address,
        parsed.service_vm_gateway,
        parsed.service_vm_dns,
        checked_name("--service-vm-interface", parsed.service_vm_interface),
    )
    data = user_data(network, fabric_manager)
    sockets, _ = of_node(node, BUS, named=False)
    files = {
        "vm-class.yaml": f"# 64bitMMIOSizeGB: {mmio.rule}.\n# {mmio.other_rule}\n"
        + dump(vm_class(machines)),
        "cluster.yaml": dump(cluster(machines)),
        "topology.xml": write_topology(tree(sockets, Claims())),
        "service-vm-user-data.yaml": data,
        "service-vm-user-data.b64": base64.b64encode(data.encode()).decode() + "\n",
        "esx-checklist.txt": checklist(machines),
    }
    write_texts(files, parsed.output)
    print(f"note: MMIO of {mmio.size} GB: {mmio.rule}")
    print(f"note: in the Supervisor: kubectl -n {machines.namespace} apply -f vm-class.yaml")
    print("note: `penstock deploy operators` has the network and GPU operator for the cluster")
    return 0


def _node(parsed: argparse.Namespace, plan: Mapping[str, Any]) -> NodePci:
    word = parsed.node_type or plan["target"].get("node")
    if not isinstance(word, str):
        raise PenstockError("the plan is for no node type: give --node-type")
    node = node_pci(word)
    if (count := plan["target"]["per_node"]) != node.pairs:
        raise PenstockError(f"the plan's nodes have {count} devices, the node type {node.pairs}")
    return node


def _mmio(parsed: argparse.Namespace, plan: Mapping[str, Any], node: NodePci) -> Mmio:
    name = str(plan["target"].get("accelerator", ""))
    memory = round(accelerator(name).memory / 2**30)
    if parsed.bars_of:
        return of_machine(read_machine(parsed.bars_of), parsed.bars_of, memory)
    bar = bar_gib(name) if parsed.bar_gib is None else parsed.bar_gib
    if bar < 1:
        raise PenstockError(f"the BAR of {name} is not known: give --bar-gib or --bars-of")
    return of_bars(node.pairs, bar, memory)


def _machines(
    parsed: argparse.Namespace, plan: Mapping[str, Any], node: NodePci, mmio: Mmio
) -> Machines:
    for flag, size in (("--memory", parsed.memory), ("--containers", parsed.containers)):
        if not QUANTITY.fullmatch(size):
            raise InvalidValueError(flag, size, "a size such as 1900Gi")
    if parsed.cpus < 1:
        raise InvalidValueError("--cpus", parsed.cpus, "1 or more")
    for flag in ("storage_class", "cluster_class", "control_plane_class", "kubernetes"):
        if not WORD.fullmatch(text := getattr(parsed, flag)):
            name = f"--{flag.replace('_', '-')}"
            raise InvalidValueError(name, text, "a name of letters, digits, dots and hyphens")
    name = checked_name("--name", parsed.name or name_of(plan["model"]["name"]))
    nodes = Settings(plan, name, "", Volume(), "").nodes
    return Machines(
        name=name,
        namespace=checked_name("--namespace", parsed.namespace),
        storage_class=parsed.storage_class,
        count=nodes * int(plan["choice"]["replicas"]),
        cpus=parsed.cpus,
        memory=parsed.memory,
        node=node,
        mmio_gib=mmio.size,
        kubernetes=parsed.kubernetes,
        cluster_class=parsed.cluster_class,
        control_plane_class=parsed.control_plane_class,
        containers=parsed.containers,
    )
