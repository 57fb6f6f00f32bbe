"""Tables about a model's memory: its uses, and how many sequences fit."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_lab.bench.table import render
from penstock_ops.plan.lines import human
from penstock_ops.plan.memory import Memory, RankMemory


def memory_table(memory: Memory, explain: bool) -> list[str]:
    """Table with the memory of each rank; with `explain`, also the formulas of the rank with the
    least room.
    """
    names = list(dict.fromkeys(line.name for rank in memory.ranks for line in rank.engine))
    rows = []
    for ranks in alike(memory):
        rank = ranks[0]
        own = {line.name: line.bytes for line in rank.engine}
        rows.append(
            [
                span([each.rank for each in ranks]),
                human(rank.weights),
                *(human(own[name]) for name in names),
                human(rank.room) if rank.room > 0 else f"-{human(-rank.room)}",
                f"{max(int(rank.room // rank.growth), 0) if rank.growth else 0:,}",
            ]
        )
    lines = render(["ranks", "weights", *names, "KV", "tokens"], rows)
    lines.append(f"{memory.cut}: {memory.kv_tokens:,} tokens{_imbalance(memory)}")
    return [*lines, *(_explained(memory.fullest) if explain else [])]


def _imbalance(memory: Memory) -> str:
    more = memory.imbalance - 1
    return f"; the largest rank has {more:.1%} more weights than the average" if more > 1e-3 else ""


def concurrency_table(memories: Sequence[tuple[str, Memory]], limit: int) -> list[str]:
    """Table with the number of concurrent sequences that fit, by context length, for each
    KV type.
    """
    contexts = [1 << at for at in range(11, 31) if 1 << at < limit] + [limit]
    rows = [
        [f"{tokens:,}", *(f"{memory.concurrency(tokens):,}" for _, memory in memories)]
        for tokens in contexts
    ]
    return render(["context", *(f"{kind} KV" for kind, _ in memories)], rows)


def alike(memory: Memory) -> list[list[RankMemory]]:
    """Lists of ranks with equal memory."""
    groups: dict[tuple[int, float], list[RankMemory]] = {}
    for rank in memory.ranks:
        groups.setdefault((rank.weights, rank.growth), []).append(rank)
    return list(groups.values())


def span(ranks: list[int]) -> str:
    if ranks == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def _explained(rank: RankMemory) -> list[str]:
    lines = ["", f"rank {rank.rank}, {human(rank.total)}:"]
    lines += [
        f"  {line.name:<14} {human(line.bytes):>12}  = {line.formula}"
        for line in (*rank.parts, *rank.engine)
    ]
    for group in rank.kv.groups:
        seen = "all tokens" if group.window is None else f"the last {group.window} tokens"
        each = group.block_bytes / rank.kv.block_size
        lines.append(
            f"  KV             {each / 1024:>8.2f} KiB  a token, {len(group.layers)} layers that "
            f"see {seen}"
        )
    tokens = int(rank.room // rank.growth) if rank.growth else 0
    lines.append(
        f"  KV pool        {human(rank.room):>12}  = total - weights - the lines above; "
        f"/ {rank.growth:,.0f} B = {tokens:,} tokens"
    )
    return lines
