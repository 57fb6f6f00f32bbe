"""Polls all addresses concurrently, one thread for each, so that a slow address does not delay
others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.core import InvalidValueError
from penstock_ops.top.history import History, Reading, Replica
from penstock_ops.top.reading import Target, base_of, read

MOST_REPLICAS = 64
"""Maximum number of replicas whose own pages are read. For the others, the gateway's numbers are
shown.
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The data at one time. `waiting_since`: start time of the poll that has not ended."""

    histories: Mapping[str, History]
    waiting_since: Mapping[str, float]


class Poller:
    """Polls each address every `interval` seconds until `stop`. Replicas listed by gateways are
    polled too, without an API key.
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        interval: float,
        read: Callable[[Target], Reading] = read,
    ) -> None:
        self._given = dict(targets)
        self._interval = interval
        self._read = read
        self._changed = threading.Condition()
        self._histories: dict[str, History] = {}
        self._waiting_since: dict[str, float] = {}
        self._followed: set[str] = set()
        self._ended = False

    def start(self) -> None:
        for name, target in self._given.items():
            self._follow(name, target)

    def stop(self) -> None:
        """Start no further polls. Polls in progress end with their threads."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def seen(self) -> Snapshot:
        with self._changed:
            return Snapshot(dict(self._histories), dict(self._waiting_since))

    def wait(self, done: Callable[[Snapshot], bool], seconds: float) -> Snapshot:
        """Wait until `done` returns true, or for `seconds`; returns the data at that time."""
        with self._changed:
            self._changed.wait_for(lambda: done(self.seen()), seconds)
            return self.seen()

    def _follow(self, name: str, target: Target) -> None:
        self._followed.add(name)
        loop = threading.Thread(target=self._loop, args=(name, target), daemon=True)
        loop.start()

    def _loop(self, name: str, target: Target) -> None:
        while self._begin(name):
            began = time.monotonic()
            self._end(name, self._read(target))
            self._pause(began + self._interval - time.monotonic())

    def _begin(self, name: str) -> bool:
        """Whether another poll is due."""
        with self._changed:
            if self._ended or not self._is_wanted(name):
                self._followed.discard(name)
                self._histories.pop(name, None)
                return False
            self._waiting_since[name] = time.monotonic()
            return True

    def _end(self, name: str, reading: Reading) -> None:
        with self._changed:
            del self._waiting_since[name]
            self._histories[name] = self._histories.get(name, History()).followed_by(reading)
            for replica in reading.replicas if name in self._given else ():
                self._follow_replica(replica)
            self._changed.notify_all()

    def _follow_replica(self, replica: Replica) -> None:
        if replica.address in self._followed or self._ended:
            return
        if len(self._followed) >= len(self._given) + MOST_REPLICAS:
            return
        try:
            self._follow(replica.address, Target(base_of(replica.address)))
        except InvalidValueError:
            return

    def _is_wanted(self, name: str) -> bool:
        if name in self._given:
            return True
        known = (self._histories[given].latest for given in self._given if given in self._histories)
        return any(
            name == replica.address for latest in known if latest for replica in latest.replicas
        )

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended, max(seconds, 0.0))
