"""`penstock deploy apply|diff|status|delete DIR`: flags and output."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock_ops.deploy.cluster.access import connected
from penstock_ops.deploy.cluster.api import Api, ApiError
from penstock_ops.deploy.cluster.causes.probes import window
from penstock_ops.deploy.cluster.changes import (
    applied,
    delete,
    difference,
    live,
    must_be_replaced,
    tried,
)
from penstock_ops.deploy.cluster.manifests import (
    MissingKindError,
    Reference,
    Resolver,
    objects,
)
from penstock_ops.deploy.cluster.snapshot import read
from penstock_ops.deploy.cluster.status import is_ready, report
from penstock_ops.deploy.cluster.waiting import wait
from penstock_ops.deploy.objects import mapping, pods_of

WAIT = 1800
"""Minimum of the default for the timeout of `apply`, in seconds."""
VOLUMES = ("PersistentVolumeClaim", "PersistentVolume")
FIRST_MADE = ("Namespace", "CustomResourceDefinition")
"""Kinds that must exist before other objects pass even a dry run. If a directory has one of them,
its objects are not tried before the apply.
"""


def add_commands(targets: Any) -> None:
    """Add the four commands to the object returned by `add_subparsers`."""
    apply = _command(targets, "apply", "make a cluster have the objects, and wait", run_apply)
    apply.description = (
        "Apply all objects of a directory (server-side), and wait until they are ready. What "
        "prevents that is named, and the status is 1. Objects that the directory does not name "
        "are left alone."
    )
    apply.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help=f"of waiting; default: {WAIT}, or what startup probes and rollouts may take",
    )
    apply.add_argument("--no-wait", action="store_true", help="end when all is applied")
    _force(apply)
    diff = _command(targets, "diff", "what apply would change", run_diff)
    diff.description = "Print what apply would change; the status is 1 where that is anything."
    _force(diff)
    status = _command(targets, "status", "what is ready, and the first cause if not", run_status)
    status.description = (
        "Print what is ready and, if something is not, the first cause: the one that makes the "
        "others. The status is 1 unless all is ready."
    )
    remove = _command(targets, "delete", "remove the objects that the directory names", run_delete)
    remove.description = "Remove what the directory names, and nothing else. Claims are kept."
    remove.add_argument("--claims", action="store_true", help="and the model's volume")


def _command(targets: Any, name: str, help_text: str, run: object) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = targets.add_parser(name, help=help_text)
    parser.add_argument("directory", type=Path, metavar="DIR", help="of manifests, or a file")
    parser.add_argument(
        "-n", "--namespace", default="", help="of the objects; default: of the context"
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="how to reach the cluster; default: as kubectl",
    )
    parser.add_argument("--context", default="", help="of the kubeconfig; default: its current one")
    parser.set_defaults(command=run)
    return parser


def _force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--force-conflicts", action="store_true", help="take over fields that others own"
    )


@contextmanager
def _opened(parsed: argparse.Namespace) -> Iterator[tuple[Api, list[Reference]]]:
    found = objects(parsed.directory)
    with connected(parsed.kubeconfig, parsed.context, parsed.namespace) as cluster:
        resolver = Resolver(cluster.api, cluster.namespace)
        yield cluster.api, [resolver.reference(located) for located in found]


def run_apply(parsed: argparse.Namespace) -> int:
    """Apply the objects and wait until they are ready. Returns 1 if something does not become
    ready. If the API server rejects an object in the dry run, PenstockError is raised before
    anything changes.
    """
    with _opened(parsed) as (api, references):
        if not any(one.kind in FIRST_MADE for one in references):
            for one in references:
                _try(api, one, parsed.force_conflicts)
        for one in references:
            print(f"{one.title}: {applied(api, one, force=parsed.force_conflicts)}", flush=True)
        if parsed.no_wait:
            return 0
        say = functools.partial(print, flush=True)
        timeout = parsed.timeout
        if timeout is None:
            timeout = longest([one.manifest for one in references])
        return 0 if wait(lambda: read(api, references), say, timeout) else 1


def longest(manifests: Sequence[Mapping[str, Any]]) -> float:
    """Seconds to wait for the objects: the longest time that their startup probes and rollout
    deadlines allow, but at least WAIT.
    """
    containers = [each for one in manifests for pod in pods_of(one) for each in pod.containers]
    specs = [mapping(one.get("spec")) for one in manifests]
    rollouts = [int(spec.get("progressDeadlineSeconds") or 0) for spec in specs]
    return float(max([WAIT, *map(window, containers), *rollouts]))


def _try(api: Api, reference: Reference, force: bool) -> dict[str, Any] | None:
    """Dry run of an apply. None for a Job that the apply would replace, because Jobs cannot be
    changed.
    """
    try:
        return tried(api, reference, force=force)
    except ApiError as error:
        if not must_be_replaced(reference, error) or live(api, reference) is None:
            raise
        return None


def run_diff(parsed: argparse.Namespace) -> int:
    with _opened(parsed) as (api, references):
        changed = False
        for one in references:
            after = _try(api, one, parsed.force_conflicts)
            lines = difference(one, live(api, one), after) if after else [f"{one.title}: replaced"]
            changed |= bool(lines)
            for line in lines:
                print(line)
    return 1 if changed else 0


def run_status(parsed: argparse.Namespace) -> int:
    with _opened(parsed) as (api, references):
        snapshot = read(api, references)
    for line in report(snapshot):
        print(line)
    return 0 if is_ready(snapshot) else 1


def run_delete(parsed: argparse.Namespace) -> int:
    """Delete the objects of the directory. Objects whose kind no longer exists in the cluster are
    skipped.
    """
    found = objects(parsed.directory)
    with connected(parsed.kubeconfig, parsed.context, parsed.namespace) as cluster:
        resolver = Resolver(cluster.api, cluster.namespace)
        for located in reversed(found):
            if located.data["kind"] in VOLUMES and not parsed.claims:
                print(f"{located.name}: kept (--claims removes it)")
                continue
            try:
                gone = delete(cluster.api, resolver.reference(located))
            except MissingKindError:
                gone = False
            print(f"{located.name}: {'deleted' if gone else 'not there'}", flush=True)
    return 0
