"""File with the heartbeat of a node's agent. A node other than 0 serves no port, so its health
probe (`penstock node-health`) reads this file.
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
    """Writes the time of the agent's last `beat` in seconds since boot, which changes of the wall
    clock do not affect. The agent's loop calls `beat`, so the file becomes stale if the loop hangs.
    """

    def __init__(self, directory: Path, node: int) -> None:
        """Create or open the file. Raises OSError on failure, also if the file is a link or belongs
        to another user.
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
    """Node number and age in seconds of each heartbeat file in `directory`."""
    for path in sorted(directory.iterdir()):
        if found := _NAME.fullmatch(path.name):
            try:
                age = since_boot() - float(path.read_text())
            except (OSError, ValueError):  # The file belongs to another user, or was just removed.
                continue
            yield int(found[1]), age


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
