"""Containers that run but fail their probes."""

from __future__ import annotations

import re

from penstock_ops.deploy.cluster.causes.cause import Cause, Stage
from penstock_ops.deploy.cluster.causes.containers import (
    end_of,
    killed_by_probe,
    last_end,
    title,
)
from penstock_ops.deploy.cluster.readiness import condition
from penstock_ops.deploy.cluster.snapshot import Object, Snapshot, event_time, statuses
from penstock_ops.deploy.objects import mapping, mappings

KIND = re.compile(r"(Startup|Readiness|Liveness) probe (?:failed|errored)[^:]*: ?(.*)", re.DOTALL)
KILLED = re.compile(r"failed (startup|liveness) probe")


def window(container: Object) -> int:
    """Seconds that a container's startup probe allows, which is twice the planned load time; 0
    without a startup probe.
    """
    probe = mapping(container.get("startupProbe"))
    if not probe:
        return 0
    seconds = int(probe.get("periodSeconds", 10)) * int(probe.get("failureThreshold", 3))
    return seconds + int(probe.get("initialDelaySeconds", 0))


def loading(pod: Object, snapshot: Snapshot) -> str:
    """Text with the time that a container has been starting and its limit; empty if none is
    starting.
    """
    for status, container in _pairs(pod):
        running = mapping(status["state"].get("running"))
        age, bound = snapshot.age(running.get("startedAt")), window(container)
        if running and not status.get("started") and bound and age is not None:
            return (
                f"{title(pod)} has been loading for {age:.0f} s (planned: up to {bound // 2} s; "
                f"its startup probe gives it {bound} s)"
            )
    return ""


def probe(pod: Object, snapshot: Snapshot) -> Cause | None:
    """The cause if a probe killed the last run of a container, or keeps the pod from being ready.
    None while a container is starting within its limit.
    """
    for status, container in _pairs(pod):
        if status.get("ready"):
            continue
        last = last_end(status)
        killing = killed_by_probe(pod, last, snapshot) if last else None
        if killing is not None:
            return _ended(pod, status, container, killing, snapshot)
        if status.get("started") and "running" in status["state"]:
            return _not_ready(pod, status, snapshot)
    return None


def _pairs(pod: Object) -> list[tuple[Object, Object]]:
    """(status, spec) of each container of the pod."""
    named = {one.get("name"): one for one in mappings(mapping(pod.get("spec")).get("containers"))}
    return [(status, named[status["name"]]) for status in statuses(pod) if status["name"] in named]


def _ended(
    pod: Object, status: Object, container: Object, killing: Object, snapshot: Snapshot
) -> Cause:
    found = KILLED.search(str(killing.get("message", "")))
    kind = found[1] if found else "liveness"
    restarts = status.get("restartCount", 0)
    often = f", {restarts} restarts" if restarts else ""
    words = f"container {status['name']} was ended by its {kind} probe{often}"
    remedy = ""
    if kind == "startup":
        bound = window(container)
        words += f": not ready within {bound} s (planned: {bound // 2} s)"
        remedy = "see the log for what it waits for; if it is slow storage, plan with its speed"
    said = _said(pod, kind, snapshot, "")
    log = end_of(snapshot.logs.get((str(pod["metadata"]["name"]), str(status["name"])), ()))
    return Cause(Stage.PROBE, title(pod), words, (*said, *log), remedy)


def _not_ready(pod: Object, status: Object, snapshot: Snapshot) -> Cause | None:
    """The cause if a started container fails its readiness or liveness probe; None otherwise."""
    begun = str(mapping(status["state"]["running"]).get("startedAt") or "")
    for kind in ("liveness", "readiness"):
        if said := _said(pod, kind, snapshot, begun):
            break
    else:
        return None
    # If the pod was never ready, its condition Ready dates from the pod's creation, not from the
    # start of this run. Use the shorter time.
    ages = map(snapshot.age, (condition(pod, "Ready").get("lastTransitionTime"), begun))
    since = min((age for age in ages if age is not None), default=0.0)
    words = f"container {status['name']} has failed its {kind} probe for {since:.0f} s"
    log = end_of(snapshot.logs.get((str(pod["metadata"]["name"]), str(status["name"])), ()))
    return Cause(Stage.PROBE, title(pod), words, (*said, *log), lasting=False)


def _said(pod: Object, kind: str, snapshot: Snapshot, begun: str) -> tuple[str, ...]:
    """The message of the last failure of a `kind` probe since `begun`; empty if the last two
    minutes have none.
    """
    for event in reversed(snapshot.about(pod, "Unhealthy", "ProbeError")):
        found = KIND.search(str(event.get("message", "")))
        time = event_time(event)
        age = snapshot.age(time)
        if found and found[1].lower() == kind and time >= begun and age is not None and age < 120:
            return (f"{kind} probe: {' '.join(found[2].split())[:300]}",)
    return ()
