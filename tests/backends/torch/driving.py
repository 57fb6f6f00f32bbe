"""Sequences on a backend alone: plans by hand, blocks of each sequence anywhere in the pool."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from penstock.backends import Backend, load_backend
from penstock.config import EngineConfig
from penstock.core import Allocation, LogprobRow, Registration, StepPlan, StepResult
from penstock.core.plan import LAST_SAMPLED
from penstock.engine.startup import read_model
from tests.fakes.sampling import encode
from tests.limits import HANG
from tests.real_ranks import VOCAB, exact_config

BLOCK = 16
TOKENS = 256
SLOTS = 8


def config_of(model: str, **settings: object) -> EngineConfig:
    """In float32 on torch's CPU device, with small blocks."""
    sizes = {
        "device": "torch",
        "block_size": BLOCK,
        "max_num_batched_tokens": TOKENS,
        "max_num_seqs": SLOTS,
    }
    return exact_config(model, {**sizes, **settings})


@contextmanager
def backend(model: str, blocks: int = 96, **settings: object) -> Iterator[Backend]:
    """A backend with so many blocks in each KV group."""
    config = config_of(model, **settings)
    loaded = load_backend(config, read_model(config))
    try:
        loaded.allocate(Allocation((blocks,) * len(loaded.kv_spec().groups)))
        yield loaded
    finally:
        loaded.close()


@dataclass
class Part:
    """What a step computes of a sequence."""

    slot: int
    tokens: Sequence[int]
    sample: bool = True
    drafts: int = 0
    score: bool = False
    """Whether the prompt tokens that follow get log-probabilities of the whole vocabulary."""


@dataclass
class Tracked:
    sampling: bytes
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)
    new: bool = True
    history: tuple[Sequence[int], int] = ((), 0)
    grammar: bytes = b""


class Driver:
    """Makes plans for slots of a backend. Blocks are taken at random."""

    def __init__(self, backend: Backend, blocks: int = 96, seed: int = 0) -> None:
        self.backend = backend
        self.groups = len(backend.kv_spec().groups)
        self.free = [list(range(blocks)) for _ in range(self.groups)]
        shuffler = random.Random(seed)
        for free in self.free:
            shuffler.shuffle(free)
        self.slots: dict[int, Tracked] = {}
        self.step = 0

    def register(
        self,
        slot: int,
        sampling: bytes | None = None,
        history: tuple[Sequence[int], int] = ((), 0),
        grammar: bytes = b"",
    ) -> None:
        """A sequence in `slot`; greedy unless said otherwise."""
        tables: list[list[int]] = [[] for _ in range(self.groups)]
        self.slots[slot] = Tracked(
            sampling or encode(), tables=tables, history=history, grammar=grammar
        )

    def share(self, slot: int, other: int, blocks: int) -> None:
        """Begin `slot` behind the first blocks of another one: a prefix hit."""
        own = self.slots[slot]
        own.tables = [table[:blocks] for table in self.slots[other].tables]
        own.computed = blocks * BLOCK

    def back(self, slot: int, tokens: int) -> None:
        """Take the last tokens of a sequence back."""
        self.slots[slot].computed -= tokens

    def plan(self, *parts: Part) -> StepPlan:
        self.step += 1
        plan = StepPlan(self.step)
        for part in parts:
            own = self.slots[part.slot]
            if own.new:
                wants = VOCAB if part.score else -1
                tokens, prompt = own.history
                plan.grammars.extend([own.grammar] if own.grammar else [])
                plan.registrations.append(
                    Registration(
                        part.slot,
                        own.sampling,
                        wants,
                        history=array("i", tokens),
                        prompt_len=prompt,
                        grammar=len(plan.grammars) if own.grammar else 0,
                    )
                )
            plan.slots.append(part.slot)
            plan.starts.append(own.computed)
            plan.lengths.append(len(part.tokens))
            plan.sample.append(part.sample)
            plan.drafts.append(part.drafts)
            plan.tokens.extend(part.tokens)
            own.computed += len(part.tokens)
            self._tables(plan, own)
            own.new = False
        scored = [part.score for part in parts]
        if any(scored):
            for part in parts:
                following = [*part.tokens[1:], 0] if part.score else [-1] * len(part.tokens)
                plan.targets.extend(following)
        return plan

    def _tables(self, plan: StepPlan, own: Tracked) -> None:
        for group, table in enumerate(own.tables):
            kept = 0 if own.new else len(table)
            while len(table) * BLOCK < own.computed:
                table.append(self.free[group].pop())
            plan.kept.append(kept)
            plan.added.extend(table[kept:])
            plan.added_offsets.append(len(plan.added))

    def run(self, *parts: Part) -> StepResult:
        return self.backend.submit(self.plan(*parts)).result(HANG)

    def greedy(self, slot: int, first: int, count: int) -> list[int]:
        """So many tokens from `first` on, a step each."""
        found = [first]
        while len(found) < count:
            found += self.run(Part(slot, [LAST_SAMPLED])).tokens.tolist()
        return found


def dense(rows: list[LogprobRow]) -> np.ndarray:
    """Log-probabilities by position and token."""
    found = np.full((len(rows), VOCAB), np.nan)
    for position, (_, _, pairs) in enumerate(rows):
        for token, logprob in pairs:
            found[position, token] = logprob
    return found


def is_gguf(model: str) -> bool:
    return model.endswith(".gguf")
