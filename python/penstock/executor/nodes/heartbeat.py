"""Heartbeat of a node's agent in a file. Such a node serves no port, so probes on the node
(`penstock node-health`) read the file.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

PERIOD = 1.0
"""Minimum seconds between two writes."""
_NAME = re.compile(r"penstock-node-(\d+)\.heartbeat")


class Heartbeat:
    """Writes the time of the agent's last `beat`, in seconds since boot: changes of the wall clock
    do not affect it. The agent's loop calls `beat`, so a hanging loop makes the file stale.
    """

    def __init__(self, directory: Path, node: int) -> None:
        """Create or open the file. Raises OSError if that fails, also if it is a link or another
        user's file.
        """
        self._path = directory / f"penstock-node-{node}.heartbeat"
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._path, flags, 0o600)
        self._last = 0.0
        self.beat()

    def beat(self) -> None:
        now = since_boot()
        if now - self._last >= PERIOD:
            os.pwrite(self._file, f"{now:020.3f}".encode(), 0)
            self._last = now

    def close(self) -> None:
        os.close(self._file)
        self._path.unlink(missing_ok=True)


def heartbeats(directory: Path) -> Iterator[tuple[int, float]]:
    """Node number and age in seconds of each heartbeat in `directory`."""
    for path in sorted(directory.iterdir()):
        if found := _NAME.fullmatch(path.name):
            try:
                age = since_boot() - float(path.read_text())
            except (OSError, ValueError):  # Another user's file, or just removed.
                continue
            yield int(found[1]), age


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
