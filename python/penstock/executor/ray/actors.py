"""Ranks as Ray actors: started, watched and ended together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.config import ray_actor_environment
from penstock.core import PenstockError
from penstock.executor.processes import RankExit
from penstock.executor.ranks.messages import Failed, decode_answer
from penstock.executor.ray.cluster import Cluster
from penstock.executor.ray.placement import Placement, RankPlacement

NOTICE = 5.0
"""Seconds that killed actors get to end."""
START = 120.0
"""Timeout in seconds for actors to start: one process each, on nodes that may be busy."""

SETTLE = 1.0
"""Seconds to wait, after an actor has ended only because it lost a connection, for the end of the
rank that caused the loss. Ray reports a killed process later than the rank's peers notice it.
"""

log = logging.getLogger("penstock.executor")


class Actors:
    """One actor of class `kind` for each rank. `on_exit` is called once, on a thread, when the
    first actor ends. Its argument is the actor that caused the loss, not an actor that only lost
    its connection.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: type,
        placement: Placement,
        on_exit: Callable[[RankExit], None],
    ) -> None:
        self._ray = cluster.ray
        self._on_exit = on_exit
        self._lock = threading.Lock()
        self._over = False
        self._cut_off = False
        self._killed = False
        self.ranks: Sequence[RankPlacement] = placement.ranks
        self.pids: list[int] = []
        environment = ray_actor_environment()
        self.handles = [
            cluster.actor(kind, placement.group, each.bundle, placement.unit, environment)
            for each in placement.ranks
        ]
        self._stays = [
            handle.stay.options(concurrency_group="control").remote() for handle in self.handles
        ]
        self._watcher = threading.Thread(target=self._watch, name="actors", daemon=True)
        self._watcher.start()

    def greet(self) -> None:
        """Wait until all actors have started. Raises PenstockError, which names the first actor
        that has not.
        """
        self.pids = self.get({r: handle.greet.remote() for r, handle in enumerate(self.handles)})

    def everywhere(self, method: str) -> None:
        """Call `method` on all ranks and wait for the results. The calls run concurrently with the
        actors' other calls.
        """
        calls = [
            getattr(handle, method).options(concurrency_group="control") for handle in self.handles
        ]
        self.get({rank: call.remote() for rank, call in enumerate(calls)})

    def get(self, refs: Mapping[int, Any], timeout: float = START) -> list[Any]:
        """Wait for the results of calls, given by rank. Raises PenstockError, which names the first
        rank without a result within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        found = []
        for rank, ref in refs.items():
            try:
                found.append(self._ray.get(ref, timeout=max(deadline - time.monotonic(), 0.0)))
            except self._ray.exceptions.GetTimeoutError as error:
                reason = f"{self.name(rank)} does not answer after {timeout:.0f} s"
                raise PenstockError(
                    f"{reason}: look at `ray status`, and at Ray's logs on its node"
                ) from error
            except self._ray.exceptions.RayError as error:
                raise PenstockError(f"{self.name(rank)}: {error}") from error
        return found

    def name(self, rank: int) -> str:
        where = self.ranks[rank].node.address
        process = f", process {self.pids[rank]}" if self.pids else ""
        return f"rank {rank} (on {where}{process})"

    def cut_off(self, rank: int, reason: str) -> None:
        """Report the loss of a rank whose stream ended after its last answer, without waiting for
        Ray's own report.
        """
        self._cut_off = True
        self._lost(rank, reason)

    def _lost(self, rank: int, reason: str) -> None:
        """Report a loss to `on_exit` if it is the first. Later losses are consequences of the
        first.
        """
        with self._lock:
            if self._over:
                return
            self._over = True
        lost = f"{self.name(rank)} was lost: {reason}"
        self._on_exit(RankExit(rank, lost, time.monotonic()))

    def await_report(self) -> None:
        """Wait, after a failed Ray operation, until `on_exit` has been called for an actor that has
        ended. Call it before killing the actors because of that failure.
        """
        self._watcher.join(2 * SETTLE)

    def kill(self) -> None:
        self._killed = True
        for handle in self.handles:
            self._ray.kill(handle)

    def all_ended(self, timeout: float) -> bool:
        if self._cut_off or not self._await_ends(timeout):
            return False
        self._watcher.join(timeout)
        return True

    def _await_ends(self, timeout: float) -> bool:
        done, _ = self._ray.wait(self._stays, num_returns=len(self._stays), timeout=timeout)
        return len(done) == len(self._stays)

    def end(self, notice: float = NOTICE) -> None:
        """Kill the actors. A kill is safe, because they hold no state."""
        with self._lock:
            self._over = True
        self.kill()
        self._await_ends(max(notice, NOTICE))
        self._watcher.join(NOTICE)

    def _watch(self) -> None:
        waiting, timeout = list(self._stays), None
        first: tuple[int, str] | None = None
        while waiting:
            done, waiting = self._ray.wait(waiting, num_returns=1, timeout=timeout)
            if not done or (self._killed and first is not None):
                break  # An actor that this executor has killed is not a cause.
            reason, derived = self._end(done[0])
            if first is None or not derived:
                first = self._stays.index(done[0]), reason
            if not derived:
                break
            timeout = SETTLE
        assert first is not None
        self._lost(*first)

    def _end(self, stay: Any) -> tuple[str, bool]:
        """The reason why an actor ended, and whether it is a consequence of another rank's loss.
        `stay`: the actor's call of `stay`, which has returned.
        """
        try:
            answer = self._ray.get(stay)
        except self._ray.exceptions.RayError as error:
            return _first_line(error), False
        failed = decode_answer(answer) if answer else None
        if not isinstance(failed, Failed):
            return "it ended", False
        log.error(
            "rank %d failed in step %d:\n%s",
            failed.rank,
            failed.step,
            failed.trace or failed.message,
        )
        where = f" in step {failed.step}" if failed.step else ""
        return f"rank {failed.rank} failed{where}: {failed.message}", failed.derived


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
