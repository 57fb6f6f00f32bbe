"""Waiting for what was applied: until it is ready, or a cause holds that time does not mend."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock_ops.deploy.cluster.causes import Stage, causes
from penstock_ops.deploy.cluster.snapshot import Snapshot
from penstock_ops.deploy.cluster.status import is_ready, progress, report

PERIOD = 1.0
PATIENCE = 30.0
"""Seconds for which a lasting cause has to be there: kubelets look every 20 s whether a secret has
come.
"""


def wait(
    look: Callable[[], Snapshot],
    say: Callable[[str], object],
    timeout: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> bool:
    """Whether all became ready. Progress goes to `say` where it changes, at the end the report."""
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
            # A container that crashes runs in between: that is no new beginning.
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
    """Only what is new, numbers aside."""
    for line in lines:
        plain = "".join(letter for letter in line if not letter.isdigit())
        if plain not in said:
            said.append(plain)
            say(line)
