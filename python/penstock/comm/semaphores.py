"""Named semaphores of Ray's compiled graphs, which Ray leaves behind in /dev/shm."""

from __future__ import annotations

from pathlib import Path

MAPS = Path("/proc/self/maps")
PREFIXES = ("/dev/shm/sem.hdr", "/dev/shm/sem.obj")


def forget_graph_semaphores(maps: Path = MAPS) -> list[str]:
    """Remove the names of those that this process has open, which keeps them working where they are open.

    A graph opens them before its first execution ends. Afterwards nobody needs their names, and when the last
    process that has them open ends, however it ends, they are gone.
    """
    names = {line.split()[5] for line in maps.read_text().splitlines() if len(line.split()) == 6}
    found = sorted(name for name in names if name.startswith(PREFIXES))
    for name in found:
        Path(name).unlink(missing_ok=True)
    return found
