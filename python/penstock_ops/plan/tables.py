"""Tables about a model's memory: the devices it needs, what takes the memory, and how many
sequences fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.core import InvalidValueError
from penstock.model.spec import DecoderSpec
from penstock_lab.bench.table import render
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import ENGINES, Engine, Load
from penstock_ops.plan.hardware import GIB, Accelerator
from penstock_ops.plan.lines import Line, human
from penstock_ops.plan.memory import Memory, RankMemory, plan_memory
from penstock_ops.plan.subject import Subject
from penstock_ops.plan.weights import uniform

KEPT = 10 * GIB
"""Bytes that the table of needed devices leaves free on each device, for the engine."""
MOST_DEVICES = 64


def fit_table(
    subject: Subject, device: Accelerator, tokens: int, weights: Sequence[str], kv: Sequence[str]
) -> list[str]:
    """Table with the fewest devices that hold the model and one sequence of `tokens` tokens, for
    each number type of weights and KV, and for different rules about partitions.
    """
    rows = []
    for name in weights:
        held = subject.weights if name == subject.weights.name else uniform(name)
        asked = replace(subject, weights=held)
        for number in kv:
            found = [
                fewest(asked, device, tokens, number, kind) for kind in ("divides", "tp", "any")
            ]
            rows.append([name, number, *map(_count, found), _why(found[2], tokens)])
    headings = ["weights", "KV", "TP, heads divide", "TP, any cut", "TP x PP"]
    head = f"Fewest devices for one sequence of {tokens:,} tokens, {human(KEPT)} kept free on each:"
    return [head, "", *render([*headings, "fewest, and their fullest rank"], rows)]


def fewest(
    subject: Subject, device: Accelerator, tokens: int, kv: str, kind: str
) -> tuple[int, Memory] | None:
    """The fewest devices that suffice, and their memory; None if MOST_DEVICES do not. `kind`
    restricts partitions: `divides` (one stage, heads divide evenly), `tp` (one stage) or `any`.
    """
    for count in range(1, MOST_DEVICES + 1):
        best: Memory | None = None
        for cut in _cuts(subject.spec, count, kind):
            try:
                memory = plan_memory(subject.spec, subject.weights, device, cut, ROOMY, Load(), kv)
            except InvalidValueError:
                continue
            if not memory.lacking(tokens) and (
                best is None or memory.fullest.room > best.fullest.room
            ):
                best = memory
        if best is not None:
            return count, best
    return None


def _cuts(spec: DecoderSpec, count: int, kind: str) -> Iterator[Cut]:
    if kind == "divides":
        # One stage on a single host of any size. As in vLLM and SGLang, query heads and KV heads
        # must divide evenly.
        if not ENGINES["vllm"].refuses(spec, Cut(count, 1), count):
            yield Cut(count, 1)
        return
    for pp in range(1, count + 1 if kind == "any" else 2):
        if count % pp == 0 and pp <= len(spec.layers):
            yield Cut(count // pp, pp)


def _kept(spec: DecoderSpec, device: Accelerator, cut: Cut, load: Load) -> list[Line]:
    return [
        Line("driver", device.memory - device.usable, "1% of the memory"),
        Line("kept free", KEPT, "activations, graphs, communicators", "free"),
    ]


ROOMY = Engine("", divides=False, by_requests=True, rule=_kept)


def _count(found: tuple[int, Memory] | None) -> str:
    return str(found[0]) if found else f"over {MOST_DEVICES}"


def _why(found: tuple[int, Memory] | None, tokens: int) -> str:
    if found is None:
        return ""
    memory = found[1]
    rank = memory.fullest
    return (
        f"{memory.cut}: {human(rank.weights)} of weights and {human(rank.sequence(tokens))} of KV, "
        f"{human(rank.room - rank.sequence(tokens))} spare"
    )


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
