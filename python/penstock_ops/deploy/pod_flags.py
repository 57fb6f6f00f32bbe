"""Flags of `penstock deploy k8s`, `ray` and `helm` for volumes, Services and nodes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from penstock.core import InvalidValueError, PenstockError
from penstock_ops.deploy.settings import Cluster, checked_name
from penstock_ops.deploy.volumes import (
    EPHEMERAL,
    KEPT,
    MODES,
    PLACES,
    KvVolume,
    Volume,
    kv_volume_of,
    nfs_of,
)


def add_volumes(parser: argparse.ArgumentParser) -> None:
    """Flags of the volumes with the weights and with the disk tier."""
    group = parser.add_argument_group("volumes")
    group.add_argument(
        "--nfs",
        default="",
        metavar="SERVER:/PATH",
        help="the weights are on NFS: a PersistentVolume and its claim; with --pull a Job puts "
        "them there",
    )
    group.add_argument(
        "--mount-options",
        default="",
        metavar="OPTIONS",
        help="of NFS, such as nfsvers=3,proto=rdma,port=20049,nconnect=8",
    )
    group.add_argument(
        "--access-mode",
        choices=MODES,
        help="of the claim with the weights; default: RWX, of NFS without --pull ROX",
    )
    group.add_argument(
        "--claim-per-pod",
        nargs="?",
        const=KEPT,
        default="",
        choices=(KEPT, EPHEMERAL),
        help="with --pull: each pod fills a claim of its own, which the next pod finds again "
        "(kept, the default), or which goes with it (ephemeral)",
    )
    group.add_argument(
        "--pull-timeout",
        type=int,
        metavar="SECONDS",
        help="pods wait for --pull; default: for 50 MB/s",
    )
    group.add_argument(
        "--kv-volume",
        default="emptydir",
        metavar="VOLUME",
        help=f"of a disk tier: {PLACES}; default: %(default)s",
    )
    group.add_argument(
        "--kv-storage-class", default="", help="of claims that --kv-volume makes", metavar="CLASS"
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Flags of Services, images, monitoring and nodes."""
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--image-pull-secret",
        action="append",
        default=[],
        metavar="SECRET",
        help="for the registries of the images; repeatable",
    )
    group.add_argument(
        "--service-type",
        choices=("ClusterIP", "LoadBalancer", "NodePort"),
        default="ClusterIP",
        help="of the Service for clients; default: %(default)s",
    )
    group.add_argument(
        "--ip-family",
        choices=("dual", "IPv4", "IPv6"),
        default="dual",
        help="of Services; default: all that the cluster has",
    )
    group.add_argument(
        "--scrape-annotations",
        action="store_true",
        help="prometheus.io annotations, for a Prometheus without the operator",
    )
    group.add_argument(
        "--monitoring-namespace",
        default="monitoring",
        metavar="NAMESPACE",
        help="whose pods may read metrics; default: %(default)s",
    )
    group.add_argument(
        "--any-device",
        action="store_true",
        help="do not select nodes by the product label of the plan's device",
    )


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Flags that override the plan's choice."""
    group = parser.add_argument_group("in place of the plan's choice")
    group.add_argument("--replicas", type=int, metavar="N", help="servers of the model")
    group.add_argument(
        "--max-model-len",
        type=int,
        metavar="TOKENS",
        help="longest sequence; at most the plan's KV tokens",
    )


def volume_of(parsed: argparse.Namespace) -> Volume:
    if parsed.mount_options and not (parsed.nfs or parsed.kv_volume.startswith("nfs:")):
        raise PenstockError("--mount-options are of NFS: give --nfs, or --kv-volume nfs:...")
    if (timeout := parsed.pull_timeout) is not None and not parsed.pull:
        raise PenstockError("--pull-timeout is of --pull")
    if timeout is not None and timeout < 1:
        raise InvalidValueError("--pull-timeout", timeout, "seconds, at least 1")
    nfs = nfs_of("--nfs", parsed.nfs, parsed.mount_options) if parsed.nfs else None
    return Volume(
        claim=parsed.claim,
        host_path=parsed.host_path,
        pull=parsed.pull,
        storage_class=parsed.storage_class,
        image=parsed.image_volume,
        nfs=nfs,
        mode=MODES[parsed.access_mode] if parsed.access_mode else "",
        own=parsed.claim_per_pod,
    )


def kv_volume(parsed: argparse.Namespace) -> KvVolume:
    found = kv_volume_of(parsed.kv_volume, parsed.kv_storage_class, parsed.mount_options)
    if parsed.kv_storage_class and not (found.shared or found.own):
        raise PenstockError("--kv-storage-class is of claims that --kv-volume makes")
    return found


def cluster_of(parsed: argparse.Namespace) -> Cluster:
    namespace = checked_name("--monitoring-namespace", parsed.monitoring_namespace)
    return Cluster(
        pull_secrets=tuple(parsed.image_pull_secret),
        service_type=parsed.service_type,
        ip_family=parsed.ip_family,
        scrape=parsed.scrape_annotations,
        monitoring=namespace,
        any_device=parsed.any_device,
        pull_timeout=parsed.pull_timeout,
    )


def chosen(parsed: argparse.Namespace, plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plan with the choices that flags override."""
    choice = dict(plan["choice"])
    if parsed.replicas is not None:
        if parsed.replicas < 1:
            raise InvalidValueError("--replicas", parsed.replicas, "at least 1")
        choice["replicas"] = parsed.replicas
    if (length := parsed.max_model_len) is not None:
        room = choice.get("kv_tokens")
        if length < 1 or (isinstance(room, int) and length > room):
            raise InvalidValueError(
                "--max-model-len", length, f"1 to the {room} tokens of KV that the plan has"
            )
        choice["max_model_len"] = length
    return {**plan, "choice": choice}


def pair_of(flag: str, text: str) -> tuple[str, str]:
    """The two parts of `NAME=VALUE`."""
    label, equals, value = text.partition("=")
    if not label or not equals:
        raise InvalidValueError(flag, text, "NAME=VALUE")
    return label, value
