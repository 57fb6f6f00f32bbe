"""Removal of the named semaphores that Ray's compiled graphs leave behind in /dev/shm."""

from __future__ import annotations

import re
from pathlib import Path

MAPS = Path("/proc/self/maps")
MEMORY = Path("/dev/shm")
NAME = re.compile(r"sem\.(?:hdr|obj)(\d+)-(\d+)")
"""Name of such a semaphore: id of the Ray process that created it, and the wall-clock time of the
creation in nanoseconds.
"""


def forget_graph_semaphores(since: int, maps: Path = MAPS, memory: Path = MEMORY) -> list[str]:
    """Unlink the semaphores of a compiled graph, once the graph has run; returns their names.

    Processes that have such a semaphore open can still use it; the kernel frees it when the last of
    them ends. This function removes the semaphores that this process has open. It also removes
    those that the same Ray processes created since `since` (nanoseconds), because this process has
    not opened all of them.
    """
    parts = [line.split() for line in maps.read_text().splitlines()]
    opened = {
        Path(each[5]).name for each in parts if len(each) == 6 and each[5].startswith(f"{memory}/")
    }
    makers = {found[1] for name in opened if (found := NAME.fullmatch(name))}
    ours = []
    for path in memory.iterdir():
        found = NAME.fullmatch(path.name)
        if found and (path.name in opened or (found[1] in makers and int(found[2]) >= since)):
            path.unlink(missing_ok=True)
            ours.append(path.name)
    return sorted(ours)
