"""How long `apply` waits, and for what, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock_ops.deploy.cluster.snapshot import Snapshot
from penstock_ops.deploy.cluster.waiting import wait
from tests.deploy.cluster.made import (
    crashed,
    ended,
    running,
    snapshot,
    unscheduled,
    waiting,
    workload,
)

READY: dict[str, Any] = {
    "metadata": {},
    "spec": {"replicas": 1},
    "status": {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1},
}


def waited(
    look: Callable[[float], Snapshot], timeout: float = 600
) -> tuple[bool, float, list[str]]:
    """What `wait` answers, when, and what it said."""
    now = [0.0]
    said: list[str] = []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    done = wait(lambda: look(now[0]), said.append, timeout, clock=lambda: now[0], sleep=sleep)
    return done, now[0], said


def test_a_crash_loop_ends_the_wait_and_its_cause_is_printed_once() -> None:
    done, after, said = waited(lambda _: snapshot(workload(crashed(ended(1)))))
    assert (done, after) == (False, 30)
    assert sum(line.startswith("cause: ") for line in said) == 1


def test_a_container_that_runs_between_its_crashes_ends_the_wait() -> None:
    def look(now: float) -> Snapshot:
        begun = running(started=False, ago=1, last=ended(1))
        return snapshot(workload(begun if now % 20 < 15 else crashed(ended(1))))

    assert waited(look)[:2] == (False, 55)


def test_a_cause_that_goes_away_in_time_does_not() -> None:
    def look(now: float) -> Snapshot:
        return snapshot(workload(crashed(ended(1))) if now < 25 else workload(live=READY))

    assert waited(look)[:2] == (True, 25)


def test_a_pod_without_a_node_may_get_one() -> None:
    def look(now: float) -> Snapshot:
        return snapshot(workload(unscheduled("...")) if now < 400 else workload(live=READY))

    assert waited(look)[:2] == (True, 400)


def test_the_timeout_names_the_cause_too() -> None:
    done, after, said = waited(lambda _: snapshot(workload(unscheduled("no room"))), timeout=30)
    assert (done, after) == (False, 30)
    assert "not ready within 30 s" in said
    assert "  scheduler: no room" in said


def test_progress_is_said_where_it_changes() -> None:
    def look(now: float) -> Snapshot:
        found = {**waiting("ContainerCreating"), "restartCount": int(now)}
        made = crashed(ended(0))
        made["status"] = {"phase": "Pending", "containerStatuses": [found]}
        return snapshot(workload(made) if now < 50 else workload(live=READY))

    assert waited(look)[2] == [
        "progress: pod tiny-a is pending (ContainerCreating)",
        "Deployment tiny: 1 of 1 ready",
    ]
