"""Which names of semaphores are ours to remove."""

from pathlib import Path

from penstock.executor.ranks import forget_graph_semaphores


def test_those_that_are_open_here_and_those_made_with_them(tmp_path: Path) -> None:
    memory = tmp_path / "shm"
    memory.mkdir()
    ours = ["sem.hdr17-90", "sem.obj17-90", "sem.hdr17-100", "sem.obj17-250"]
    others = ["sem.hdr17-99", "sem.hdr18-200", "sem.mp-abc", "sem.hdr17-200x", "penstock-1"]
    for name in ours + others:
        (memory / name).touch()
    maps = tmp_path / "maps"
    lines = [
        f"7f00-7f01 rw-s 00000000 00:1a 31    {memory}/sem.hdr17-90",
        f"7f00-7f01 rw-s 00000000 00:1a 31    {memory}/sem.obj17-90",
        f"7f00-7f01 rw-s 00000000 00:1a 32    {memory}/sem.mp-abc",
        f"7f00-7f01 rw-s 00000000 00:1a 33    {memory}/sem.hdr18-200 (deleted)",
        "7f02-7f03 rw-p 00000000 00:00 0",
    ]
    maps.write_text("\n".join(lines))
    assert forget_graph_semaphores(100, maps, memory) == sorted(ours)
    assert sorted(path.name for path in memory.iterdir()) == sorted(others)
    assert forget_graph_semaphores(100, maps, memory) == []
