"""Input of the diagnosis: the directory's objects as they are in the cluster, their pods, events,
nodes and logs. All is read once; the functions in `causes` only evaluate it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock_ops.deploy.cluster.api import BAD_REQUEST, FORBIDDEN, NOT_FOUND, Api, ApiError
from penstock_ops.deploy.cluster.changes import live
from penstock_ops.deploy.cluster.manifests import Reference
from penstock_ops.deploy.objects import mapping, mappings, pods_of

Object = Mapping[str, Any]
LOG_LINES = 20
RESULTS = 500
"""Maximum number of objects in one page of a list from the API server."""


@dataclass(frozen=True, slots=True)
class Workload:
    """An object of the directory, and the pods that it created."""

    reference: Reference
    live: Object | None
    """The object in the cluster; None if it does not exist there."""
    pods: Sequence[Object] = ()

    @property
    def title(self) -> str:
        return self.reference.title


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the cluster at time `now`, which is this machine's clock. The clocks of the cluster
    are assumed to agree with it.
    """

    now: datetime
    workloads: Sequence[Workload]
    events: Sequence[Object] = ()
    """Events of the namespaces, oldest first."""
    nodes: Sequence[Object] | None = ()
    """None if this user may not read nodes."""
    all_pods: Sequence[Object] | None = ()
    """Pods of all namespaces, to compute free resources; None if this user may not read them."""
    logs: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    """Last log lines by (pod name, container name), for containers that ended or are not ready."""

    def node(self, name: str) -> Object | None:
        found = (one for one in self.nodes or () if one["metadata"]["name"] == name)
        return next(found, None)

    def about(self, found: Object, *reasons: str) -> list[Object]:
        """Events about an object, oldest first; only those with one of `reasons` if any are
        given.
        """
        uid = mapping(found.get("metadata")).get("uid")
        return [
            event
            for event in self.events
            if mapping(event.get("involvedObject")).get("uid") == uid
            and (not reasons or event.get("reason") in reasons)
        ]

    def age(self, time: object) -> float | None:
        """Seconds since a timestamp of the API; None if it is missing or invalid."""
        then = moment(time)
        return None if then is None else max((self.now - then).total_seconds(), 0.0)


def moment(time: object) -> datetime | None:
    """Parse a timestamp of the API; None if it is missing or invalid."""
    try:
        return datetime.fromisoformat(str(time).replace("Z", "+00:00"))
    except ValueError:
        return None


def event_time(event: Object) -> str:
    """Timestamp of the last time that the event occurred; empty if unknown."""
    series = mapping(event.get("series")).get("lastObservedTime")
    found = series or event.get("lastTimestamp") or event.get("eventTime")
    return str(found or mapping(event.get("metadata")).get("creationTimestamp") or "")


def read(api: Api, references: Iterable[Reference]) -> Snapshot:
    """Read a snapshot from the API server."""
    references = list(references)
    spaces = sorted({one.namespace for one in references if one.namespace})
    pods = {space: _all(api, f"/api/v1/namespaces/{space}/pods") or [] for space in spaces}
    workloads = [
        Workload(one, live(api, one), _own(one, pods.get(one.namespace, []))) for one in references
    ]
    events = [
        event for space in spaces for event in _all(api, f"/api/v1/namespaces/{space}/events") or []
    ]
    return Snapshot(
        datetime.now(UTC),
        workloads,
        sorted(events, key=event_time),
        _all(api, "/api/v1/nodes"),
        _all(api, "/api/v1/pods"),
        {key: lines for one in workloads for key, lines in _logs(api, one).items()},
    )


def _all(api: Api, path: str) -> list[Object] | None:
    """All objects of a list, from all its pages; None if this user may not read it."""
    found: list[Object] = []
    query = {"limit": str(RESULTS)}
    while True:
        try:
            page = api.call("GET", path, **query)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            return None
        found += page.get("items") or []
        follow = mapping(page.get("metadata")).get("continue")
        if not follow:
            return found
        query["continue"] = follow


def _own(reference: Reference, pods: Sequence[Object]) -> list[Object]:
    """Pods with the labels of one of the object's pod templates."""
    templates = [pod.labels for pod in pods_of(reference.manifest) if pod.labels]
    if reference.kind == "Pod":
        return [pod for pod in pods if pod["metadata"]["name"] == reference.name]
    return [
        pod
        for pod in pods
        if any(
            labels.items() <= mapping(pod["metadata"].get("labels")).items() for labels in templates
        )
    ]


def _logs(api: Api, workload: Workload) -> dict[tuple[str, str], list[str]]:
    """Last log lines by (pod name, container name), for containers that ended or are not ready. If
    a container has just restarted, the lines of its previous run.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for pod in workload.pods:
        for status in statuses(pod):
            if not _is_of_interest(status):
                continue
            metadata = pod["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
            before = "running" in status["state"] and "terminated" in mapping(
                status.get("lastState")
            )
            query = {"container": str(status["name"]), "tailLines": str(LOG_LINES)}
            query |= {"previous": "true"} if before else {}
            found[metadata["name"], status["name"]] = _lines(api, path, query)
    return found


def _lines(api: Api, path: str, query: Mapping[str, str]) -> list[str]:
    """Lines of a container's log; empty if the container has not started. If the log cannot be
    read, a line with the reason.
    """
    try:
        return [line for line in api.text(path, **query).splitlines() if line.strip()]
    except ApiError as error:
        return [] if error.status in (BAD_REQUEST, NOT_FOUND) else [f"not readable: {error}"]


def statuses(pod: Object) -> list[Object]:
    """Container statuses, with init containers first."""
    status = mapping(pod.get("status"))
    found = mappings(status.get("initContainerStatuses")) + mappings(
        status.get("containerStatuses")
    )
    return [{"state": {}, **one} for one in found]


def _is_of_interest(status: Object) -> bool:
    state, last = status["state"], mapping(status.get("lastState"))
    ended = mapping(state.get("terminated")).get("exitCode", 0) != 0 or "terminated" in last
    return bool(ended or ("running" in state and not status.get("ready")))
