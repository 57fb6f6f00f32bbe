"""A model without arithmetic that holds the engine to the contract of StepPlan.

Its KV cells remember the token that was computed there, and the next token is a hash of all tokens
that the block table leads to. So a wrong block, a stale cell or a lost token changes the output;
batching must not.
"""

from __future__ import annotations

import hashlib
from array import array

from penstock.core import LogprobRow, SlotParams, StepPlan, StepResult
from penstock.core.transfer import Moved, OpenTiers, Transfer

from tests.fakes.contract import ContractBrokenError, require
from tests.fakes.tiers import FakeMover


def next_token(context: list[int], vocab: int) -> int:
    digest = hashlib.blake2b(array("i", context).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % vocab


def row_for(context: list[int], token: int) -> LogprobRow:
    return (-float(len(context)), token + 1, [(token, -float(len(context)))])


def hash_chain(identity: bytes, parent: bytes | None, tokens: array[int]) -> list[bytes]:
    link, digests = parent or bytes(32), []
    for at in range(0, len(tokens) // 16 * 16, 16):
        unit = hashlib.blake2b(
            link + tokens[at : at + 16].tobytes(), key=identity, digest_size=32
        ).digest()
        link = link[:4] + unit[4:]
        digests.append(link)
    return digests


def hash_root(identity: bytes, adapter: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(adapter + b"/" + salt, key=identity, digest_size=32).digest()


class FakeTicket:
    def __init__(self, result: StepResult | Exception) -> None:
        self._result = result

    def result(self, timeout: float | None = None) -> StepResult:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class FakeExecutor:
    """`fail_at` names a step that raises instead of computing.

    With `named` tiers or `ram_slots`, `mover` moves cells between them and the pool
    (`tests.fakes.tiers`).
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_batched_tokens: int,
        vocab: int = 97,
        fail_at: int = 0,
        depth: int = 1,
        named: int = 0,
        ram_slots: int = 0,
        auto: bool = False,
    ) -> None:
        self.depth = depth
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.vocab = vocab
        self.fail_at = fail_at
        self.cells: list[int | None] = [None] * (num_blocks * block_size)
        self.slots: dict[int, SlotParams] = {}
        self.steps = 0
        self.computed = 0
        self.closed = False
        self.mover = FakeMover(self.cells, block_size, named=named, ram_slots=ram_slots, auto=auto)
        self.opened: OpenTiers | None = None

    def submit(self, plan: StepPlan) -> FakeTicket:
        self.steps += 1
        require(plan.step == self.steps, f"step {plan.step} follows {self.steps - 1}")
        if plan.step == self.fail_at:
            return FakeTicket(RuntimeError("the fake decoder was told to fail"))
        return FakeTicket(self._compute(plan))

    def open_tiers(self, tiers: OpenTiers) -> None:
        self.opened = tiers

    def transfer(self, transfer: Transfer) -> None:
        self.mover.submit(transfer)

    def moved(self) -> list[Moved]:
        return self.mover.take()

    def mover_reports(self) -> tuple[str, ...]:
        return ("{}",)

    def check(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def _compute(self, plan: StepPlan) -> StepResult:
        self._check_columns(plan)
        for params in plan.registrations:
            require(0 <= params.slot < self.max_num_seqs, f"slot {params.slot} out of range")
            self.slots[params.slot] = params
        tables = self._tables(plan)
        self._check_writes(plan, tables)
        result = StepResult()
        at = 0
        for index in range(len(plan.slots)):
            length = plan.lengths[index]
            self._sequence(plan, index, tables[index], at, result)
            at += length
        self.computed += at
        return result

    def _check_columns(self, plan: StepPlan) -> None:
        n = len(plan.slots)
        require(n >= 1, "an empty plan")
        require(
            len(plan.starts) == len(plan.lengths) == len(plan.sample) == n,
            "columns of different lengths",
        )
        require(len(plan.block_offsets) == n + 1, "block_offsets has n + 1 entries")
        require(
            plan.block_offsets[-1] == len(plan.blocks), "block_offsets ends at the number of blocks"
        )
        require(len(set(plan.slots)) == n, "a slot is scheduled twice")
        require(min(plan.lengths) >= 1, "a sequence computes nothing")
        require(sum(plan.lengths) == len(plan.tokens), "as many tokens as the lengths say")
        require(len(plan.tokens) <= self.max_batched_tokens, "the step is over its token budget")
        require(len(plan.targets) in (0, len(plan.tokens)), "targets is empty or as long as tokens")

    def _tables(self, plan: StepPlan) -> list[list[int]]:
        tables = []
        for index in range(len(plan.slots)):
            table = list(plan.blocks[plan.block_offsets[index] : plan.block_offsets[index + 1]])
            end = plan.starts[index] + plan.lengths[index]
            require(
                len(table) == -(-end // self.block_size),
                "the block table covers 0 .. start + length - 1",
            )
            require(len(set(table)) == len(table), "a block is twice in one table")
            require(all(0 <= block < self.num_blocks for block in table), "a block out of range")
            tables.append(table)
        return tables

    def _check_writes(self, plan: StepPlan, tables: list[list[int]]) -> None:
        owners = [block for table in tables for block in table]
        written: set[int] = set()
        for index, table in enumerate(tables):
            for block in table[plan.starts[index] // self.block_size :]:
                require(
                    owners.count(block) == 1, f"block {block} is written and owned by two sequences"
                )
                written.add(block)
        self.mover.check_plan(set(owners) - written, written)

    def _sequence(
        self, plan: StepPlan, index: int, table: list[int], at: int, result: StepResult
    ) -> None:
        start, length, slot = plan.starts[index], plan.lengths[index], plan.slots[index]
        require(slot in self.slots, f"slot {slot} was never registered")
        context = [self._read(table, position) for position in range(start)]
        rows = []
        for offset in range(length):
            token = plan.tokens[at + offset]
            self.cells[self._cell(table, start + offset)] = token
            context.append(token)
            target = plan.targets[at + offset] if plan.targets else -1
            if target >= 0:
                rows.append(row_for(context, target))
        if rows:
            result.prompt_logprobs[index] = rows
        result.counts.append(plan.sample[index])
        if plan.sample[index]:
            token = next_token(context, self.vocab)
            result.tokens.append(token)
            if self.slots[slot].logprobs >= 0:
                result.logprobs[index] = [row_for(context, token)]

    def _cell(self, table: list[int], position: int) -> int:
        return table[position // self.block_size] * self.block_size + position % self.block_size

    def _read(self, table: list[int], position: int) -> int:
        token = self.cells[self._cell(table, position)]
        if token is None:
            raise ContractBrokenError(f"position {position} is read and was never computed")
        return token
