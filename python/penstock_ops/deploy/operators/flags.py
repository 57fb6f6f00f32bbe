"""`penstock deploy operators`: flags and output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from penstock.core import PenstockError
from penstock_ops.deploy.emit import dump
from penstock_ops.deploy.kinds.nic_cluster_policy import policy
from penstock_ops.deploy.operators.values import POLICY, operator_files
from penstock_ops.deploy.operators.versions import PUBLISHED, Misfit, Versions, misfits
from penstock_ops.deploy.plan_file import read_plan

LABELS = {"app.kubernetes.io/managed-by": "penstock-deploy"}


def add_operators(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write values for the Helm charts of NVIDIA's network and GPU operator, a "
        "NicClusterPolicy, and the commands that install them in their order. Nothing is applied."
    )
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.yaml of `penstock plan -o`")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="where the files go"
    )
    parser.add_argument(
        "--nic-interfaces",
        default="",
        metavar="NAME,...",
        help="a NicClusterPolicy: the interface of each RDMA resource of the plan",
    )
    _add_versions(parser)
    parser.set_defaults(command=run_operators)


def _add_versions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("versions", "which are checked for what fits together")
    for flag, default, what in (
        ("--kubernetes", PUBLISHED.kubernetes, "the cluster"),
        ("--network-operator", PUBLISHED.network_operator, "the network operator"),
        ("--gpu-operator", PUBLISHED.gpu_operator, "the GPU operator"),
    ):
        help_ = f"of {what}; default: %(default)s"
        group.add_argument(flag, default=default, metavar="VERSION", help=help_)
    add_driver(group)


def add_driver(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--driver",
        default=PUBLISHED.driver,
        metavar="VERSION",
        help="of the GPU driver; default: %(default)s",
    )
    group.add_argument(
        "--fabric-manager",
        default="",
        metavar="VERSION",
        help="where the NVSwitches are; default: the driver's",
    )


def refuse(found: Iterable[Misfit]) -> None:
    """Print warnings. PenstockError for the first error."""
    for misfit in found:
        if misfit.severity == "error":
            raise PenstockError(misfit.text)
        print(f"warning: {misfit.text}", file=sys.stderr)


def run_operators(parsed: argparse.Namespace) -> int:
    """Write the files; print their names."""
    versions = Versions(
        parsed.kubernetes,
        parsed.network_operator,
        parsed.gpu_operator,
        parsed.driver,
        parsed.fabric_manager or parsed.driver,
    )
    refuse(misfits(versions))
    plan = read_plan(parsed.plan)
    interfaces = [*filter(None, parsed.nic_interfaces.split(","))]
    files = dict(operator_files(versions, policy=bool(interfaces)))
    if interfaces:
        files[POLICY] = dump(policy(LABELS, plan, interfaces, versions.network_operator))
    write_texts(files, parsed.output)
    return 0


def write_texts(files: dict[str, str], folder: Path) -> None:
    """Write files into a folder; print their names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = folder / name
            path.write_text(text, encoding="utf-8")
            print(path)
    except OSError as error:
        raise PenstockError(f"{error.filename}: {error.strerror}") from error
