"""Hits of the RAM tier by capacity: LRU, Penstock's rule, and an infinite tier.

    python benchmarks/kv_eviction.py --trace mooncake_conversation.jsonl \\
        --lengths azure_llm_2023_conv.csv [--before RESULTS.json]

Drives `penstock._native.TierIndex`, the engine's own index: each request looks up its prefix, and
the rest is computed and stored at once, without time passing. Workloads: traces with block hashes;
conversations of many tenants, with turns from a published length trace; the same, mixed with
documents that a job reads in a loop; and documents in a loop that exceeds the tier. `--before` adds
the numbers of an earlier build.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from support import facts

from penstock._native import TierIndex
from penstock_lab.bench.report import drawing
from penstock_lab.bench.report.charts import Axis, Plot, Point, Series
from penstock_lab.bench.traces import read

CAPACITIES = (
    1_000_000,
    1_500_000,
    2_200_000,
    3_000_000,
    4_000_000,
    5_000_000,
    8_000_000,
    15_000_000,
)
US_PER_TOKEN, US_PER_CONTEXT_KTOKEN = 242.9, 97.461
"""Cost of prefill of SmolLM2-135M on two cores, which a cached block saves
(benchmarks/profiles/smollm2-2-cores.json): microseconds for each token, and for each token and
thousand tokens of context before it.
"""
DOCUMENTS, DOCUMENT_BLOCKS, ROUNDS, LOOP_BLOCK = 100, 20, 20, 32
LOOPS = (0.5, 0.75, 0.95)
"""Capacities of the tier to test, relative to the size of the loop of documents."""
RULES = {"LRU": "lru", "Penstock": "auto"}
CHAT_BLOCK, CHATS, TURNS, TENANTS, SYSTEM_BLOCKS, MOST_TOKENS = 128, 60, 6, 64, 8, 8192
"""The workload of conversations: tokens in a block, conversations open at once, mean number of
turns, tenants (with Pareto popularity), blocks in each tenant's system prompt, and tokens after
which a conversation restarts.
"""
CHAT_CAPACITIES = tuple(blocks * CHAT_BLOCK for blocks in (500, 1000, 2000, 4000, 8000))
READ_EVERY, READ_DOCUMENTS, READ_BLOCKS = 4, 150, 40
"""The workload of documents: one is read after this many turns of conversations; number of
documents in the loop; blocks in each document.
"""


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    block_tokens: int
    requests: tuple[tuple[bytes, ...], ...]
    """For each request, the names of the blocks in its prompt."""
    tokens: tuple[int, ...]
    """For each request, the number of tokens in its prompt. The last block of a prompt may be
    partial.
    """

    @property
    def blocks(self) -> int:
        return sum(map(len, self.requests))


@dataclass(slots=True)
class Saved:
    """Cache hits of one workload with one eviction rule and capacity."""

    workload: str
    rule: str
    slots: int
    """Capacity of the tier in blocks; 0 if it is unlimited."""
    tokens_of_tier: int
    blocks: int = 0
    tokens: int = 0
    prefill_us: float = 0.0
    lookup_ns: float = 0.0
    """Nanoseconds of a lookup for each block, including the call from Python."""
    admit_ns: float = 0.0
    evictions: int = 0
    refused: int = 0
    shares: dict[str, float] = field(default_factory=dict)
    """Cached shares (0 to 1) of the workload's blocks, tokens and prefill time."""


def name(block: object) -> bytes:
    return hashlib.blake2b(str(block).encode()).digest()[:32]


def cost_us(at: int, block_tokens: int) -> float:
    """Microseconds to compute the block with index `at` of a prompt. Attention makes later blocks
    slower.
    """
    context = (at + 0.5) * block_tokens / 1000
    return block_tokens * (US_PER_TOKEN + US_PER_CONTEXT_KTOKEN * context)


def from_trace(path: Path) -> Workload:
    arrivals = [arrival for arrival in read(path).arrivals if arrival.hash_ids]
    names = {block: name(block) for arrival in arrivals for block in arrival.hash_ids}
    requests = tuple(tuple(names[block] for block in arrival.hash_ids) for arrival in arrivals)
    tokens = tuple(arrival.input_tokens for arrival in arrivals)
    return Workload(path.stem, arrivals[0].block_tokens, requests, tokens)


def conversations(path: Path, documents: bool) -> Workload:
    """A workload of turns in many conversations. Context and output length of each turn come from a
    row of a length trace. With `documents`, a job reads documents in a loop at the same time.
    """
    rng = random.Random(1)
    with path.open() as file:
        rows = [
            (int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)
        ]
    chats: list[list[int]] = []
    requests: list[tuple[bytes, ...]] = []
    for born, (context, output) in enumerate(rows):
        if len(chats) < CHATS or rng.random() < 1 / TURNS:
            tenant = min(int(rng.paretovariate(1.0)) - 1, TENANTS - 1)
            chats.append([born, tenant, 0])
            if len(chats) > CHATS:
                chats[rng.randrange(CHATS)] = chats.pop()
            chat = chats[-1]
        else:
            chat = rng.choice(chats)
        chat[2] += context
        system = (name(f"tenant {chat[1]}/{at}") for at in range(SYSTEM_BLOCKS))
        turns = (name(f"chat {chat[0]}/{at}") for at in range(chat[2] // CHAT_BLOCK))
        requests.append((*system, *turns))
        chat[2] += output
        if chat[2] > MOST_TOKENS:
            chat[0], chat[2] = len(rows) + born, 0
        if documents and born % READ_EVERY == 0:
            document = born // READ_EVERY % READ_DOCUMENTS
            requests.append(tuple(name(f"read {document}/{at}") for at in range(READ_BLOCKS)))
    stem = f"{path.stem} {'and documents' if documents else 'conversations'}"
    tokens = tuple(len(request) * CHAT_BLOCK for request in requests)
    return Workload(stem, CHAT_BLOCK, tuple(requests), tokens)


def loop() -> Workload:
    documents = [
        tuple(name(f"{document}/{at}") for at in range(DOCUMENT_BLOCKS))
        for document in range(DOCUMENTS)
    ]
    requests = tuple(documents * ROUNDS)
    return Workload("loop", LOOP_BLOCK, requests, (DOCUMENT_BLOCKS * LOOP_BLOCK,) * len(requests))


def serve(index: TierIndex, request: Sequence[bytes]) -> tuple[int, int, int]:
    """Look up a request in the tier and store its other blocks. Returns the number of blocks found,
    and the nanoseconds of the lookup and of storing.
    """
    began = time.perf_counter_ns()
    found = len(index.lookup(request))
    looked = time.perf_counter_ns()
    rest = request[found:]
    answers = index.admit(rest, request[found - 1] if found else None)
    index.commit([digest for digest, slot in zip(rest, answers, strict=True) if slot >= 0])
    return found, looked - began, time.perf_counter_ns() - looked


def add(saved: Saved, workload: Workload, request: int, found: int, costs: Sequence[float]) -> None:
    saved.blocks += found
    saved.tokens += min(found * workload.block_tokens, workload.tokens[request])
    saved.prefill_us += sum(costs[:found])


def replay(workload: Workload, rule: str, slots: int) -> Saved:
    index = TierIndex(slots, rule=RULES[rule])
    costs = all_costs(workload)
    saved = Saved(workload.name, rule, slots, slots * workload.block_tokens)
    looking = keeping = 0
    for at, request in enumerate(workload.requests):
        found, look_ns, keep_ns = serve(index, request)
        looking, keeping = looking + look_ns, keeping + keep_ns
        add(saved, workload, at, found, costs)
    stats = index.stats()
    saved.evictions, saved.refused = stats["evictions"], stats["refused"]
    saved.lookup_ns = looking / workload.blocks
    saved.admit_ns = keeping / max(1, workload.blocks - saved.blocks)
    index.check()
    return saved


def endless(workload: Workload) -> Saved:
    """Hits of an infinite cache, counted in plain Python without the tier's index."""
    seen: set[bytes] = set()
    costs = all_costs(workload)
    saved = Saved(workload.name, "infinite", 0, 0)
    for at, request in enumerate(workload.requests):
        found = next((at for at, digest in enumerate(request) if digest not in seen), len(request))
        add(saved, workload, at, found, costs)
        seen.update(request)
    return saved


def all_costs(workload: Workload) -> list[float]:
    longest = max(map(len, workload.requests))
    return [cost_us(at, workload.block_tokens) for at in range(longest)]


def shares(workload: Workload, saved: Iterable[Saved]) -> Iterator[Saved]:
    costs = all_costs(workload)
    whole_us = sum(sum(costs[: len(request)]) for request in workload.requests)
    for one in saved:
        one.shares = {
            "blocks": one.blocks / workload.blocks,
            "tokens": one.tokens / sum(workload.tokens),
            "prefill": one.prefill_us / whole_us,
        }
        yield one


def measure(workload: Workload, capacities: Iterable[int]) -> list[Saved]:
    """Cache hits of a workload: first of an infinite cache, then for each capacity and eviction
    rule.
    """
    found = [endless(workload)]
    for capacity in capacities:
        for rule in RULES:
            saved = replay(workload, rule, capacity // workload.block_tokens)
            found.append(saved)
            print(
                workload.name,
                rule,
                f"{capacity:,}",
                f"{saved.blocks / workload.blocks:.4f}",
                flush=True,
            )
    return list(shares(workload, found))


def measure_loop(workload: Workload) -> list[Saved]:
    size = DOCUMENTS * DOCUMENT_BLOCKS
    found = [replay(workload, rule, round(share * size)) for share in LOOPS for rule in RULES]
    return list(shares(workload, [endless(workload), *found]))


COLUMNS = (
    "tier",
    "rule",
    "blocks found",
    "tokens saved",
    "prefill time saved",
    "of infinite",
    "against LRU",
)


def rows(found: Sequence[Saved]) -> list[list[str]]:
    lru = {one.slots: one.shares["blocks"] for one in found if one.rule == "LRU"}
    most = next(one.shares["blocks"] for one in found if one.rule == "infinite")
    ordered = sorted(found, key=lambda one: (one.slots or sys.maxsize, one.rule))
    return [
        [
            f"{one.tokens_of_tier:,} tokens" if one.slots else "infinite",
            one.rule if one.slots else "",
            *(f"{one.shares[what]:.3f}" for what in ("blocks", "tokens", "prefill")),
            f"{one.shares['blocks'] / most:.0%}",
            ratio(one.shares["blocks"], lru.get(one.slots)),
        ]
        for one in ordered
    ]


def ratio(ours: float, lru: float | None) -> str:
    if lru is None:
        return ""
    return f"{ours / lru:.3f}" if lru else "LRU has none"


PROSE = (
    "Each request looks its prefix up; what is not found is computed and kept at once. A block is",
    "found when all before it are. Prefill time is that of the modelled SmolLM2 profile, in which",
    "a token costs more, the more is before it. `Penstock` is `TierIndex` as the engine uses it,",
    "`LRU` the same index under that rule, `before` the rule of an earlier build on the same",
    "requests, `infinite` a set in plain Python.",
)


def lines(about: dict[str, Any], results: dict[str, list[Saved]]) -> list[str]:
    said = ["# What is kept when the tier is full", "", *facts.fact_lines(about), "", *PROSE]
    for workload, found in results.items():
        said += ["", f"## {workload}", "", *facts.table(COLUMNS, rows(found))]
    return [*said, "", *costs_said([one for found in results.values() for one in found])]


def costs_said(found: Sequence[Saved]) -> list[str]:
    cells = [
        (
            f"{one.workload}, {one.slots:,} slots",
            one.rule,
            f"{one.lookup_ns:,.0f}",
            f"{one.admit_ns:,.0f}",
            f"{one.evictions:,}",
            f"{one.refused:,}",
        )
        for one in found
        if one.slots
    ]
    columns = ("index", "rule", "lookup ns", "admit and commit ns", "evictions", "refused")
    return [
        "## What the index costs",
        "",
        "For one block, the call from Python included.",
        f"Load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors.",
        "",
        *facts.table(columns, cells),
    ]


def charts(results: dict[str, list[Saved]]) -> list[Plot]:
    plots = []
    for workload, found in results.items():
        most = next(one.shares["blocks"] for one in found if one.rule == "infinite")
        sizes = sorted({millions(one.tokens_of_tier) for one in found if one.slots})
        kept = {
            rule: [
                Point(millions(one.tokens_of_tier), one.shares["blocks"])
                for one in found
                if one.rule == rule
            ]
            for rule in (*RULES, "before")
            if any(one.rule == rule for one in found)
        }
        kept["infinite"] = [Point(size, most) for size in (sizes[0], sizes[-1])]
        series = tuple(Series(rule, style, tuple(kept[rule])) for style, rule in enumerate(kept))
        title = f"Blocks found again, {workload}"
        tier = Axis("Tier", "million tokens", log=True, ticks=tuple(sizes))
        share = Axis("Blocks found", "", log=False, zero=True)
        plots.append(Plot(workload, title, title, tier, share, series))
    return plots


def add_before(results: dict[str, list[Saved]], earlier: dict[str, list[dict[str, Any]]]) -> None:
    for workload, found in results.items():
        rows = [row for row in earlier.get(workload, []) if row["rule"] == "Penstock"]
        found += [Saved(**{**row, "rule": "before"}) for row in rows]


def millions(tokens: int) -> float:
    return round(tokens / 1e6, 3)


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument(
        "--trace", type=Path, action="append", default=[], help="with hash_ids; repeatable"
    )
    parser.add_argument("--lengths", type=Path, help="ContextTokens and GeneratedTokens of turns")
    parser.add_argument("--before", type=Path, help="results of an earlier build")
    parsed: argparse.Namespace = parser.parse_args()
    results: dict[str, list[Saved]] = {}
    for path in parsed.trace:
        workload = from_trace(path)
        results[workload.name] = measure(workload, CAPACITIES)
    for documents in (False, True) if parsed.lengths else ():
        workload = conversations(parsed.lengths, documents)
        results[workload.name] = measure(workload, CHAT_CAPACITIES)
    results["loop"] = measure_loop(loop())
    if parsed.before:
        add_before(results, json.loads(parsed.before.read_text())["results"])
    about = facts.gather(parsed.peers, [], sys.argv)
    stem = facts.stem("kv-eviction", parsed.results)
    data = {
        **about,
        "results": {key: list(map(asdict, own)) for key, own in results.items()},
    }
    facts.write(stem, lines(about, results), data)
    print("wrote", *drawing.write(drawing.draw(charts(results)), stem).values())


if __name__ == "__main__":
    main()
