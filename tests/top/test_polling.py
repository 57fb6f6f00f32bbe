from __future__ import annotations

import threading
import time

from penstock_ops.top.history import Reading, Replica
from penstock_ops.top.polling import Poller, Snapshot
from penstock_ops.top.reading import Target
from tests.limits import HANG

FAST = 0.01


class Reader:
    """Answers each target as the test says; those of `held` not before the test ends."""

    def __init__(self, replicas: tuple[str, ...] = ()) -> None:
        self.replicas = replicas
        self.held = "http://held"
        self.release = threading.Event()
        self.asked: list[Target] = []

    def __call__(self, target: Target) -> Reading:
        self.asked.append(target)
        if target.base == self.held:
            self.release.wait(HANG)
        gateway = target.base == "http://g"
        found = [Replica(name, "a", "ready") for name in self.replicas] if gateway else []
        at = time.monotonic()
        return Reading(at, "ready", is_gateway=gateway, replicas=tuple(found))


def poller(reader: Reader, *names: str) -> Poller:
    return Poller({name: Target(f"http://{name}", "key") for name in names}, FAST, reader)


def test_a_slow_address_keeps_no_other_waiting() -> None:
    reader = Reader()
    polling = poller(reader, "held", "quick")
    polling.start()
    try:
        seen = polling.wait(lambda seen: twice(seen, "quick"), HANG)
        assert twice(seen, "quick")
        assert "held" not in seen.histories
        assert "held" in seen.waiting_since
    finally:
        polling.stop()
        reader.release.set()


def twice(seen: Snapshot, name: str) -> bool:
    return name in seen.histories and seen.histories[name].previous is not None


def test_replicas_are_followed_without_the_key_while_they_are_listed() -> None:
    reader = Reader(("r1:1", "r2:1", "not an address"))
    polling = poller(reader, "g")
    polling.start()
    try:
        assert twice(polling.wait(lambda seen: twice(seen, "r1:1"), HANG), "r1:1")
        assert {target.key for target in reader.asked if target.base == "http://r1:1"} == {None}
        assert {target.key for target in reader.asked if target.base == "http://g"} == {"key"}
        reader.replicas = ("r2:1",)
        gone = polling.wait(lambda seen: "r1:1" not in seen.histories, HANG)
        assert "r1:1" not in gone.histories
        assert "r2:1" in polling.wait(lambda seen: twice(seen, "r2:1"), HANG).histories
    finally:
        polling.stop()


def test_after_the_stop_nothing_is_read() -> None:
    reader = Reader()
    polling = poller(reader, "a")
    polling.start()
    polling.wait(lambda seen: twice(seen, "a"), HANG)
    polling.stop()
    threads = [one for one in threading.enumerate() if one.name.endswith("(_loop)")]
    for thread in threads:
        thread.join(HANG)
    asked = len(reader.asked)
    time.sleep(10 * FAST)
    assert len(reader.asked) == asked
