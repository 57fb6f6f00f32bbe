"""Waits until applied objects are ready, or until it is clear that they will not become ready."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock_ops.deploy.cluster.causes import Stage, causes
from penstock_ops.deploy.cluster.snapshot import Snapshot
from penstock_ops.deploy.cluster.status import is_ready, progress, report

PERIOD = 1.0
PATIENCE = 30.0
"""Seconds for which a lasting cause must persist before waiting ends. Kubelets retry missing
secrets every 20 s.
"""


def wait(
    look: Callable[[], Snapshot],
    say: Callable[[str], object],
    timeout: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> bool:
    """Wait at most `timeout` seconds; returns whether everything became ready. `say` receives lines
    of progress and the final report.
    """
    begun = clock()
    said: list[str] = []
    stage: Stage | None = None
    since: float | None = None
    while True:
        snapshot = look()
        if is_ready(snapshot):
            _say(report(snapshot), said, say)
            return True
        found = causes(snapshot)
        now = clock()
        first = found[0] if found else None
        reached = first.stage if first else None
        if stage != reached:
            stage, since = reached, None
        lasts = False
        if first is not None and first.lasting:
            # A crashing container runs between two crashes. This does not reset the timer, because
            # the stage stays the same.
            since = now if since is None else since
            lasts = now - since >= PATIENCE
        if lasts or now - begun >= timeout:
            if not lasts:
                say(f"not ready within {timeout:g} s")
            for line in report(snapshot):
                say(line)
            return False
        lines = [f"{one.subject}: {one.summary}" for one in found] or progress(snapshot)
        _say(lines, said, say)
        sleep(PERIOD)


def _say(lines: list[str], said: list[str], say: Callable[[str], object]) -> None:
    """Pass only new lines to `say`. Lines that differ only in digits count as equal."""
    for line in lines:
        plain = "".join(letter for letter in line if not letter.isdigit())
        if plain not in said:
            said.append(plain)
            say(line)
