"""`penstock deploy topology make` and `lint`: flags and output."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from penstock.core import InvalidValueError, PenstockError
from penstock_ops.deploy.topology.expected import of_machine, of_node_type
from penstock_ops.deploy.topology.faults import ERROR, WARNING, Fault, Rule
from penstock_ops.deploy.topology.grammar import NIC
from penstock_ops.deploy.topology.layout import (
    CLAIMS,
    Claims,
    Device,
    Socket,
    linked,
    of_node,
    tree,
)
from penstock_ops.deploy.topology.lint import lint_topology
from penstock_ops.deploy.topology.lspci import parse_lspci
from penstock_ops.deploy.topology.slots import (
    Machine,
    Slot,
    address,
    in_order,
    seated,
    sockets_of,
)
from penstock_ops.deploy.topology.sysfs import read_machine
from penstock_ops.deploy.topology.writer import write_topology
from penstock_ops.plan.hardware.pci import NodePci, PciIds, node_pci, with_pci

SPEEDS = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe", 6: "64.0 GT/s PCIe"}
"""`link_speed` as sysfs has it, by generation of PCI Express."""
WIDTH = 16
"""Lanes of GPUs and adapters on server boards."""
BUS = "0000:04"
"""Bus of the passed devices in the virtual machines of source 002."""
GPU_IDS, NIC_IDS = PciIds("0x030200"), PciIds(f"{NIC}0700")
MOST_LINES = 8


def add_topology(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "NCCL's topology file (NCCL_TOPO_FILE) of a virtual machine, in which NCCL cannot see "
        "which GPU and which adapter share a PCIe bridge."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _make(commands.add_parser("make", help="a file from a node type, a machine or pairs"))
    _lint(commands.add_parser("lint", help="check a file as NCCL reads it"))


def _make(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a file that places GPUs and adapters, and leaves to NCCL what it detects: links, "
        "rates, GPUDirect RDMA. Without --here, --lspci and --pair the devices are those of "
        "--node-type in a virtual machine that has them all."
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--here", action="store_true", help="devices of this machine, from /sys")
    source.add_argument(
        "--lspci", type=Path, metavar="FILE", help="devices from the output of lspci -D -nn -vv"
    )
    source.add_argument(
        "--pair",
        action="append",
        default=[],
        metavar="GPU,NIC[,NAME]",
        help="addresses that share a bridge, in the order of sockets, and the adapter's name such "
        "as mlx5_0; repeatable",
    )
    source.add_argument(
        "--pairs", type=Path, metavar="FILE", help="the same, a pair in each line, # for comments"
    )
    _add_context(parser)
    parser.add_argument(
        "--bus",
        default=BUS,
        help="of the passed devices, with --node-type alone; default: %(default)s",
    )
    parser.add_argument(
        "--sockets",
        type=int,
        default=0,
        metavar="N",
        help="that share the pairs; default: as the machine or node type says",
    )
    parser.add_argument(
        "--pcie", type=int, choices=SPEEDS, help="generation of the slots, with --pair alone"
    )
    parser.add_argument(
        "--state",
        default="",
        metavar="FACT,...",
        help=f"facts of --node-type to state in place of what NCCL detects: {', '.join(CLAIMS)}",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where it goes; default: print it"
    )
    parser.set_defaults(command=run_make)


def _lint(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Name what NCCL refuses, skips or reads in another way, with the line. The status is 1 "
        "when one is an error."
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="an NCCL_TOPO_FILE")
    parser.add_argument("--here", action="store_true", help="compare with this machine, too")
    _add_context(parser)
    parser.set_defaults(command=run_lint)


def _add_context(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--node-type",
        metavar="NAME",
        help="a node type whose PCI devices are known, or the YAML file of one with a member pci",
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="with --here: where sys and proc are, such as a copy of another machine's; "
        "default: %(default)s",
    )


def run_make(parsed: argparse.Namespace) -> int:
    """Write or print the file. PenstockError for devices that nothing pairs."""
    node = node_pci(parsed.node_type) if parsed.node_type else None
    if parsed.sockets < 0:
        raise InvalidValueError("--sockets", parsed.sockets, "1 or more")
    stated = [text for text in parsed.state.split(",") if text]
    sockets, switches = _sockets(parsed, node, named="net" in stated)
    text = write_topology(tree(sockets, _claims(stated, node, switches)))
    if parsed.output:
        parsed.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def _sockets(
    parsed: argparse.Namespace, node: NodePci | None, *, named: bool
) -> tuple[Sequence[Socket], Sequence[Device]]:
    """The sockets, and the NVSwitches in the order of their addresses."""
    if parsed.here or parsed.lspci:
        machine = read_machine(parsed.root) if parsed.here else _of_lspci(parsed.lspci)
        sockets = sockets_of(machine, node, parsed.sockets)
        return sockets if named else [*map(_unnamed, sockets)], machine.switches
    if parsed.pair or parsed.pairs:
        rows = parsed.pair or _rows(parsed.pairs)
        slots = [_slots(row, node, parsed.pcie) for row in rows]
        given = Counter(slot.device.busid for pair in slots for slot in pair)
        if twice := [busid for busid, number in given.items() if number > 1]:
            raise PenstockError(f"{twice[0]} is in two pairs: a device has one place")
        pairs = in_order([gpu for gpu, _ in slots], [nic for _, nic in slots], node)
        numas = [-1] * len(pairs)
        return seated(pairs, numas, Machine(()), node, parsed.sockets), ()
    if node is None:
        raise PenstockError("which devices? give --node-type, --here, --lspci or --pair")
    if not address("--bus", f"{parsed.bus}:00.0").startswith(parsed.bus):
        raise InvalidValueError("--bus", parsed.bus, "a domain and a bus such as 0000:04")
    return of_node(node, parsed.bus, named=named)


def _of_lspci(path: Path) -> Machine:
    try:
        return parse_lspci(read_file(path).decode("utf-8", "replace"))
    except PenstockError as error:
        raise PenstockError(f"{path}: {error}") from None


def _unnamed(socket: Socket) -> Socket:
    """NCCL finds an adapter by its address; a name of one machine would tie the file to it."""
    pairs = (
        replace(pair, nics=tuple(replace(nic, name="") for nic in pair.nics))
        for pair in socket.pairs
    )
    return replace(socket, pairs=tuple(pairs))


def _claims(stated: Sequence[str], node: NodePci | None, switches: Sequence[Device]) -> Claims:
    if wrong := [each for each in stated if each not in CLAIMS]:
        raise InvalidValueError("--state", wrong[0], f"some of {', '.join(CLAIMS)}")
    if not stated:
        return Claims()
    if node is None:
        raise PenstockError("--state states facts of a node type: give --node-type, too")
    nvlink = "nvlink" in stated
    if nvlink and len(switches) != len(node.nvlinks):
        raise PenstockError(
            f"{len(switches)} NVSwitches among the devices; the node type has {len(node.nvlinks)}: "
            "leave nvlink out of --state, and NCCL detects the links"
        )
    return Claims(
        capability=node.capability,
        nvlinks=node.nvlinks if nvlink else (),
        switches=tuple(switches) if nvlink else (),
        gdr="gdr" in stated,
        nic_mbps=node.nic_mbps if "net" in stated else 0,
    )


def _rows(path: Path) -> list[str]:
    lines = read_file(path).decode("utf-8", "replace").splitlines()
    found = [line.partition("#")[0].strip() for line in lines]
    if not any(found):
        raise PenstockError(f"{path}: no pairs: write GPU,NIC in each line")
    return [line for line in found if line]


def _slots(row: str, node: NodePci | None, generation: int | None) -> tuple[Slot, Slot]:
    gpu, *rest = row.split(",")
    if not 1 <= len(rest) <= 2:
        raise InvalidValueError("--pair", row, "GPU,NIC or GPU,NIC,NAME")
    busid, name = address("--pair", rest[0]), rest[1].strip() if len(rest) > 1 else ""
    gpu = address("--pair", gpu)
    if node:
        pair = linked(node, gpu, node.gpu), linked(node, busid, node.nic, name)
    elif generation:
        speed = SPEEDS[generation]
        pair = Device(gpu, GPU_IDS, speed, WIDTH), Device(busid, NIC_IDS, speed, WIDTH, name)
    else:
        raise PenstockError("--pair needs the rate of the slots: give --node-type or --pcie")
    return Slot(pair[0]), Slot(pair[1])


def run_lint(parsed: argparse.Namespace) -> int:
    """Print the faults. Returns 1 if one of them is an error."""
    rules: list[Rule] = []
    if parsed.node_type:
        rules.append(of_node_type(node_pci(parsed.node_type)))
    if parsed.here:
        rules.append(of_machine(read_machine(parsed.root), parsed.root))
    found = lint_topology(read_file(parsed.file), rules)
    for line in report(parsed.file, found):
        print(line)
    errors = sum(fault.severity == ERROR for fault in found)
    warnings = sum(fault.severity == WARNING for fault in found)
    print(f"{errors} errors, {warnings} warnings")
    return 1 if errors else 0


def topology_of(path: Path | None, node: object) -> str:
    """The text of a file for pods on nodes of the type `node`; empty without a file. Prints its
    warnings. PenstockError if it has errors, with the first of them.
    """
    if path is None:
        return ""
    data = read_file(path)
    rules = [of_node_type(node_pci(node))] if isinstance(node, str) and node in with_pci() else []
    found = [fault for fault in lint_topology(data, rules) if fault.severity in (ERROR, WARNING)]
    lines = report(path, found)
    if errors := sum(fault.severity == ERROR for fault in found):
        more = f"; {errors} errors, see `penstock deploy topology lint`" if errors > 1 else ""
        raise PenstockError(f"{lines[0]}{more}")
    for line in lines:
        print(line, file=sys.stderr)
    return data.decode("utf-8")


def report(path: Path, found: Sequence[Fault]) -> list[str]:
    """A line for each fault. Equal ones are one line with the numbers of their lines."""

    def key(fault: Fault) -> tuple[str, str]:
        return fault.severity, fault.text

    order = {each: place for place, each in reversed([*enumerate(map(key, found))])}
    ordered = sorted(found, key=lambda fault: order[key(fault)])
    lines = []
    for (severity, text), group in groupby(ordered, key):
        numbers = [fault.line for fault in group]
        more = [*map(str, numbers[1:MOST_LINES])]
        if len(numbers) > MOST_LINES:
            more.append(f"{len(numbers) - MOST_LINES} more")
        also = f" (also lines {', '.join(more)})" if more else ""
        lines.append(f"{path}:{numbers[0]}: {severity}: {text}{also}")
    return lines


def read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise PenstockError(f"{path}: {error}") from error
