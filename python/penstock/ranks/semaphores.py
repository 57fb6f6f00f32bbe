"""Named semaphores of Ray's compiled graphs, which Ray leaves behind in /dev/shm."""

from __future__ import annotations

import re
from pathlib import Path

MAPS = Path("/proc/self/maps")
MEMORY = Path("/dev/shm")
NAME = re.compile(r"sem\.(?:hdr|obj)(\d+)-(\d+)")
"""The process of Ray that made it, and when, in nanoseconds of the wall clock."""


def forget_graph_semaphores(since: int, maps: Path = MAPS, memory: Path = MEMORY) -> list[str]:
    """Remove the names of a graph's semaphores, to be called when the graph has run once.

    By then they are open where they are needed, and stay so without a name; when the last process
    that has them open ends, however it ends, they are gone. Ours are those that this process has
    open, and what the same processes of Ray made from `since` on (nanoseconds): Ray makes some that
    nobody opens.
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
