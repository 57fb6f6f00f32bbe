"""`penstock deploy TARGET PLAN` and `penstock deploy lint PATH`: flags and output."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.core import InvalidValueError, PenstockError
from penstock_ops.deploy.bench import add_bench
from penstock_ops.deploy.chart.write import chart, write_chart
from penstock_ops.deploy.cluster.flags import add_commands
from penstock_ops.deploy.compose import compose
from penstock_ops.deploy.front_flags import add_front, front_of
from penstock_ops.deploy.hosts import slurm, systemd
from penstock_ops.deploy.kubernetes import leftovers, manifests, notes, write
from penstock_ops.deploy.lint import lint
from penstock_ops.deploy.monitoring.flags import add_dashboards
from penstock_ops.deploy.names import check_names
from penstock_ops.deploy.operators.flags import add_operators
from penstock_ops.deploy.plan_file import read_plan
from penstock_ops.deploy.pod_flags import (
    add_choice,
    add_cluster,
    add_volumes,
    chosen,
    cluster_of,
    kv_volume,
    pair_of,
    volume_of,
)
from penstock_ops.deploy.settings import (
    PORT,
    Scaling,
    Settings,
    checked_name,
    name_of,
)
from penstock_ops.deploy.tiers import tiers_of
from penstock_ops.deploy.topology.flags import add_topology, topology_of
from penstock_ops.deploy.verify_job import add_verify
from penstock_ops.deploy.vmware.flags import add_vmware
from penstock_ops.deploy.volumes import Volume

GROUP = "Deploy"
SUMMARY = "files for Kubernetes, Helm, Compose, systemd or Slurm from a plan; apply, check"
DISK = "/var/kv"
"""Directory for the disk tier of a plan, in pods and containers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Manifests from a plan of `penstock plan -o`, and checks of others."
    targets = parser.add_subparsers(metavar="COMMAND", required=True)
    _k8s(targets.add_parser("k8s", help="objects of Kubernetes, a file each"))
    _ray(targets.add_parser("ray", help="the same with clusters of KubeRay"))
    _helm(targets.add_parser("helm", help="the same as a chart of Helm's"))
    _compose(targets.add_parser("compose", help="a Compose file of one host"))
    _host(targets.add_parser("systemd", help="a unit of one host"), run_systemd).add_argument(
        "--program",
        metavar="PATH",
        help="of the engine; default: bin/penstock, bin/vllm or (SGLang) bin/python3 in "
        "/opt/penstock, /opt/vllm, /opt/sglang",
    )
    _host(targets.add_parser("slurm", help="a batch script"), run_slurm)
    add_bench(targets.add_parser("bench", help="a Job that loads the servers in a cluster"))
    add_dashboards(targets.add_parser("dashboards", help="Grafana boards and alert rules"))
    add_vmware(targets.add_parser("vmware", help="VM class, cluster and host checks for ESX"))
    add_operators(targets.add_parser("operators", help="NVIDIA's operators: values, order"))
    add_topology(targets.add_parser("topology", help="NCCL's topology file: make, lint"))
    add_verify(targets.add_parser("verify", help="a Job that checks the nodes of a replica"))
    _lint(targets.add_parser("lint", help="check manifests of any origin"))
    add_commands(targets)


def _k8s(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a Deployment, a LeaderWorkerSet where a replica needs several nodes, or a "
        "StatefulSet where pods keep claims of their own, with "
        "Service, disruption budget and network policy. Nothing is applied."
    )
    _add_objects(parser)
    parser.set_defaults(command=run_k8s, ray=False)


def _ray(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a RayCluster for each replica, whose head serves, with Service, disruption budget "
        "and network policy. Nothing is applied."
    )
    _add_objects(parser)
    parser.set_defaults(command=run_k8s, ray=True)


def _helm(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a chart whose values are the plan's choice. It renders the objects of k8s."
    )
    _add_objects(parser)
    parser.set_defaults(command=run_helm, ray=False)


def _add_objects(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.yaml of `penstock plan -o`")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="where the files go"
    )
    parser.add_argument("--image", required=True, help="of the engine, best with its digest")
    parser.add_argument("--name", help="of the objects; default: from the model's")
    model = parser.add_argument_group("model", "one of them")
    model.add_argument("--claim", default="", metavar="NAME", help="a claim that has the weights")
    model.add_argument("--host-path", default="", metavar="DIR", help="a directory of every node")
    model.add_argument(
        "--image-volume",
        default="",
        metavar="IMAGE",
        help="an OCI image or artifact that has the weights, best with its digest",
    )
    model.add_argument(
        "--pull", default="", metavar="ORG/NAME", help="make a claim, and a Job that fills it"
    )
    model.add_argument("--storage-class", default="", help="of the claims that --pull makes")
    model.add_argument(
        "--model-path", default="", metavar="PATH", help="below the volume; default: the volume"
    )
    add_choice(parser)
    add_volumes(parser)
    _add_tiers(parser)
    add_cluster(parser)
    parser.add_argument("--api-key-secret", default="", metavar="SECRET", help="with key api-key")
    parser.add_argument("--interface", default="eth0", help="of pods; default: %(default)s")
    parser.add_argument("--rdma-devices", default="", help="such as mlx5_0,mlx5_1")
    parser.add_argument(
        "--node-selector",
        action="append",
        default=[],
        metavar="LABEL=VALUE",
        help="label that nodes must have; repeatable",
    )
    parser.add_argument("--pod-monitor", action="store_true", help="for the Prometheus operator")
    parser.add_argument("--kustomize", action="store_true", help="and a kustomization.yaml")
    add_front(parser)
    _add_cluster(parser)


def _add_tiers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kv-tier",
        action="append",
        default=[],
        metavar="TIER",
        help="as serve has it: ram:SIZE, disk:PATH,SIZE, a URL; repeatable; default: those of the "
        "plan; of vLLM by LMCache",
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    scale = parser.add_argument_group("autoscaling", "by the plan's requests_waiting and kv_use")
    scale.add_argument("--autoscale-to", type=int, metavar="REPLICAS", help="from the plan's on")
    scale.add_argument(
        "--prometheus",
        default="",
        metavar="URL",
        help="that KEDA asks; default: an autoscaler by custom metrics, without KEDA",
    )
    fabric = parser.add_argument_group("fabric")
    fabric.add_argument(
        "--nic-interfaces",
        default="",
        metavar="NAME,...",
        help="a NicClusterPolicy: the interface of each RDMA resource of the plan",
    )
    fabric.add_argument(
        "--topology-file",
        type=Path,
        metavar="FILE",
        help="of NCCL, for virtual machines: refused where `deploy topology lint` has errors",
    )


def _compose(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write a Compose file: a service for each replica, on one host."
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.yaml of `penstock plan -o`")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where it goes; default: print it"
    )
    parser.add_argument("--image", required=True, help="of the engine, best with its digest")
    parser.add_argument("--name", help="of the services; default: from the model's")
    parser.add_argument("--host-path", required=True, metavar="DIR", help="has the weights")
    parser.add_argument(
        "--model-path", default="", metavar="PATH", help="below it; default: the directory"
    )
    parser.add_argument(
        "--port", type=int, default=PORT, help="of the first replica; default: %(default)s"
    )
    _add_tiers(parser)
    parser.set_defaults(command=run_compose)


def _host(
    parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.yaml of `penstock plan -o`")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where it goes; default: print it"
    )
    parser.add_argument("--model-path", required=True, metavar="PATH", help="the same on all hosts")
    parser.add_argument("--name", help="of the service; default: from the model's")
    _add_tiers(parser)
    parser.set_defaults(command=command)
    return parser


def run_compose(parsed: argparse.Namespace) -> int:
    if not parsed.host_path.startswith("/"):
        raise InvalidValueError("--host-path", parsed.host_path, "an absolute path")
    plan, name = _named(parsed)
    volume = Volume(host_path=parsed.host_path)
    tiers = tiers_of(parsed.kv_tier, plan, DISK)
    settings = Settings(plan, name, parsed.image, volume, parsed.model_path.strip("/"), tiers=tiers)
    return _written(parsed, compose(settings, parsed.port))


def run_systemd(parsed: argparse.Namespace) -> int:
    return _written(parsed, systemd(_bare(parsed, "/var/cache/{name}/kv"), parsed.program))


def run_slurm(parsed: argparse.Namespace) -> int:
    return _written(parsed, slurm(_bare(parsed, "")))


def _written(parsed: argparse.Namespace, text: str) -> int:
    if parsed.output:
        parsed.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def _bare(parsed: argparse.Namespace, disk: str) -> Settings:
    """Settings for a target without Kubernetes. `disk` is the directory for the disk tier of the
    plan; it may contain `{name}`.
    """
    if not parsed.model_path.startswith("/"):
        raise InvalidValueError("--model-path", parsed.model_path, "an absolute path")
    plan, name = _named(parsed)
    tiers = tiers_of(parsed.kv_tier, plan, disk.format(name=name))
    if tiers and plan["engine"] == "vllm":
        raise PenstockError("--kv-tier of vLLM is for pods and Compose, which set its environment")
    return Settings(plan, name, "", Volume(), parsed.model_path, tiers=tiers)


def _named(parsed: argparse.Namespace) -> tuple[Mapping[str, Any], str]:
    check_names(parsed)
    plan = read_plan(parsed.plan)
    return plan, checked_name("--name", parsed.name or name_of(plan["model"]["name"]))


def _lint(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Name what an API server lets pass and pods do not survive, or could do better without."
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="files, directories")
    parser.set_defaults(command=run_lint)


def run_lint(parsed: argparse.Namespace) -> int:
    """Print the findings of `lint`. Returns 1 if one of them is an error."""
    found = lint(parsed.paths)
    for located, finding in found:
        print(f"{located.file}: {located.name}: {finding.severity}: {finding.text}")
    errors = sum(finding.severity == "error" for _, finding in found)
    print(f"{errors} errors, {len(found) - errors} warnings")
    return 1 if errors else 0


def run_k8s(parsed: argparse.Namespace) -> int:
    """Write the manifests; print their file names and what they require. PenstockError for a plan
    that pods cannot serve.
    """
    settings = settings_of(parsed)
    found = manifests(settings)
    written = write(found, parsed.output, kustomize=parsed.kustomize)
    for path in written:
        print(path)
    for note in notes(settings):
        print(f"note: {note}")
    if stale := leftovers(written, parsed.output):
        print(f"note: of an earlier call, remove them or `apply` installs them: {', '.join(stale)}")
    return 0


def run_helm(parsed: argparse.Namespace) -> int:
    settings = settings_of(parsed)
    for path in write_chart(chart(settings), parsed.output):
        print(path)
    for note in notes(settings):
        print(f"note: {note}")
    return 0


def settings_of(parsed: argparse.Namespace) -> Settings:
    plan, name = _named(parsed)
    plan = chosen(parsed, plan)
    return Settings(
        plan,
        name,
        parsed.image,
        volume_of(parsed),
        parsed.model_path.strip("/"),
        parsed.api_key_secret,
        parsed.interface,
        parsed.rdma_devices,
        dict(pair_of("--node-selector", text) for text in parsed.node_selector) or None,
        parsed.pod_monitor,
        front_of(parsed, str(plan["engine"])),
        _scaling(parsed, plan),
        tuple(filter(None, parsed.nic_interfaces.split(","))),
        topology_of(parsed.topology_file, plan["target"].get("node")),
        tiers_of(parsed.kv_tier, plan, DISK),
        kv_volume(parsed),
        cluster_of(parsed),
        parsed.ray,
    )


def _scaling(parsed: argparse.Namespace, plan: Mapping[str, Any]) -> Scaling | None:
    if parsed.autoscale_to is None:
        if parsed.prometheus:
            raise PenstockError("--prometheus is for an autoscaler: give --autoscale-to, too")
        return None
    least = int(plan["choice"]["replicas"])
    if parsed.autoscale_to < least:
        raise InvalidValueError(
            "--autoscale-to", parsed.autoscale_to, f"the plan's {least} replicas, or more"
        )
    return Scaling(parsed.autoscale_to, parsed.prometheus)
