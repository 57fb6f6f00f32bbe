"""The memory of each device as bars of characters."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ops.plan.lines import human
from penstock_ops.plan.memory import Memory, RankMemory
from penstock_ops.plan.tables import alike, span

WIDTH = 60
MOST_BARS = 4
BLOCKS = "█▓▒░·"
ASCII = "#=+-."
"""Characters of a bar's parts, in the order of NAMES."""
NAMES = ("weights", "KV", "activations", "reserve", "free")


def bars(memory: Memory, marks: str) -> list[str]:
    """A bar for all ranks whose memory is equal, with the sizes of the fullest rank. `marks` are
    BLOCKS or ASCII. If more than MOST_BARS ranks differ, only the fullest one has a bar.
    """
    fullest, groups = memory.fullest, alike(memory)
    title = f"Memory{' of each device' if len(memory.ranks) > 1 else ''}, {human(fullest.total)}"
    if len(groups) > 1:
        title += f" (sizes: rank {fullest.rank}, the fullest)"
    shown = groups if len(groups) <= MOST_BARS else [[fullest]]
    heads = [_head(ranks) if len(groups) > 1 else "" for ranks in shown]
    width = max(map(len, heads))
    rows = [
        f"  {head:<{width}}{_bar(ranks[0], marks)}{_lacking(ranks[0])}"
        for head, ranks in zip(heads, shown, strict=True)
    ]
    return [f"{title}:", *rows, *_legend(fullest, marks, width)]


def _head(ranks: list[RankMemory]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {span([rank.rank for rank in ranks])}  "


def parts(rank: RankMemory) -> dict[str, int]:
    """The rank's bytes by the names of NAMES. KV is 0 if weights and engine do not fit."""
    found = dict.fromkeys(NAMES, 0)
    found["weights"] = rank.weights
    found["KV"] = max(rank.room, 0)
    for line in rank.engine:
        found[line.use] += line.bytes
    return found


def _bar(rank: RankMemory, marks: str) -> str:
    """A bar of WIDTH characters. The part that exceeds the device's memory is cut off."""
    text, end = "", 0
    for mark, size in zip(marks, parts(rank).values(), strict=True):
        end += size
        text += mark * (min(round(WIDTH * end / rank.total), WIDTH) - len(text))
    return text


def _lacking(rank: RankMemory) -> str:
    return f" lacks {human(-rank.room)}" if rank.room < 0 else ""


def _legend(rank: RankMemory, marks: str, indent: int) -> Iterator[str]:
    sizes = parts(rank).values()
    words = [
        f"{mark} {name} {human(size)}"
        for mark, name, size in zip(marks, NAMES, sizes, strict=True)
        if size
    ]
    yield from (f"{'':{indent}}  {'  '.join(half)}" for half in (words[:3], words[3:]) if half)
