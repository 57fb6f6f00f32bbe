"""A model without arithmetic that holds the engine to the contract of StepPlan.

Its KV cells remember the token that was computed there, and the next token is a hash of all tokens
that the block tables lead to. So a wrong block, a stale cell or a lost token changes the output;
batching must not. With state slots, the next token also depends on a rolling hash of all tokens,
which the slots hold with its position: a state that is one token off is refused.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate

from penstock.core import LogprobRow, Pooling, StepPlan, StepResult
from penstock.core.plan import (
    LAST_SAMPLED,
    LATE_MASK,
    MAX_PLAN_GRAMMAR_BYTES,
    NO_BLOCK,
    NO_STATE,
)
from penstock.core.transfer import OpenTiers, Transfer, TransferResult
from tests.fakes.contract import ContractBrokenError, require
from tests.fakes.sampling import wants_logprobs
from tests.fakes.tiers import FakeMover


def next_token(context: Sequence[int], vocab: int, state: bytes = b"") -> int:
    """`state`: the state after all tokens, if the model has one; `context` may be a window."""
    digest = hashlib.blake2b(array("i", context).tobytes() + state, digest_size=8).digest()
    return int.from_bytes(digest, "little") % vocab


def next_state(state: bytes, token: int) -> bytes:
    """The state after one more token: a hash of all tokens. No token: empty."""
    return hashlib.blake2b(state + token.to_bytes(4, "little"), digest_size=8).digest()


def state_after(tokens: Iterable[int]) -> bytes:
    return reduce(next_state, tokens, b"")


def pooled_vector(context: Sequence[int]) -> bytes:
    return struct.pack("<2f", sum(context), len(context))


def row_for(context: Sequence[int], token: int) -> LogprobRow:
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


def seen_by_all(windows: Sequence[int | None]) -> int | None:
    """Tokens on which the output depends: those of the widest window; None for all."""
    return None if None in windows else max(window for window in windows if window is not None)


@dataclass
class Slot:
    """What the executor keeps of a sequence."""

    logprobs: bool
    pooling: int
    tables: list[list[int]]
    last: int = LAST_SAMPLED
    usable: bool = True
    pooled: int = 0
    """Tokens that a mean is over."""
    grammar: bool = False
    undrawn: bool = False
    """Whether the row before was not drawn: LAST_SAMPLED stands for nothing then."""


@dataclass(eq=False)
class FakeFuture:
    """A plan that is computed when its result is wanted, after all that were submitted before it:
    as late as an executor may.
    """

    executor: FakeExecutor
    plan: StepPlan
    outcome: StepResult | Exception | None = None

    def result(self, timeout: float | None = None) -> StepResult:
        self.executor.compute_through(self)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome


@dataclass
class Row:
    """One sequence of a plan."""

    index: int
    slot: Slot
    start: int
    length: int
    drafts: int
    at: int
    """First of its tokens in the plan."""
    tables: list[list[int]] = field(default_factory=list)
    source: int = NO_STATE
    written: dict[int, int] = field(default_factory=dict)
    """State slots to write, each with the number of tokens after which."""

    @property
    def end(self) -> int:
        return self.start + self.length


class FakeExecutor:
    """`windows` has an entry for each KV group, `num_blocks` one number for all or one for each.
    Steps in `fail_at` raise instead of computing; others say that they took `step_seconds`. `late`
    tells for each row with a grammar whether its mask is late. `states`: number of state slots; 0
    for a model without sequence state.

    With `named` tiers or `ram_slots`, `mover` moves cells between them and the pool
    (`tests.fakes.tiers`).
    """

    def __init__(
        self,
        *,
        num_blocks: int | Sequence[int],
        block_size: int,
        max_num_seqs: int,
        max_batched_tokens: int,
        windows: Sequence[int | None] = (None,),
        vocab: int = 97,
        fail_at: Sequence[int] = (),
        depth: int = 1,
        named: int = 0,
        ram_slots: int = 0,
        auto: bool = False,
        late: Callable[[], bool] = lambda: False,
        step_seconds: Callable[[StepPlan], float] = lambda plan: 0.0,
        states: int = 0,
    ) -> None:
        self.late = late
        self.states: list[tuple[int, bytes] | None] = [None] * states
        """Position and state in each state slot."""
        self.step_seconds = step_seconds
        self.depth = depth
        self.block_size = block_size
        self.windows = list(windows)
        groups = len(self.windows)
        each = [num_blocks] * groups if isinstance(num_blocks, int) else list(num_blocks)
        self.num_blocks = each
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.vocab = vocab
        self.fail_at = set(fail_at)
        self.pools: list[list[int | None]] = [[None] * (blocks * block_size) for blocks in each]
        self.cells = self.pools[0]
        self.slots: dict[int, Slot] = {}
        self.steps = 0
        self.computed = 0
        self.closed = False
        self.mover = FakeMover(self.pools, block_size, named=named, ram_slots=ram_slots, auto=auto)
        self.opened: OpenTiers | None = None
        self._sees = seen_by_all(windows)
        self._queue: deque[FakeFuture] = deque()

    def submit(self, plan: StepPlan) -> FakeFuture:
        self.steps += 1
        require(plan.step == self.steps, f"step {plan.step} follows {self.steps - 1}")
        require(len(self._queue) < self.depth, f"more than {self.depth} plans are in flight")
        future = FakeFuture(self, plan)
        self._queue.append(future)
        return future

    def compute_through(self, future: FakeFuture) -> None:
        while future.outcome is None:
            oldest = self._queue.popleft()
            oldest.outcome = self._outcome(oldest.plan)

    def open_tiers(self, tiers: OpenTiers) -> None:
        self.opened = tiers

    def transfer(self, transfer: Transfer) -> None:
        self.mover.submit(transfer)

    def moved(self) -> list[TransferResult]:
        return self.mover.take()

    def mover_reports(self) -> tuple[str, ...]:
        return ("{}",)

    def check(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    # A step ---------------------------------------------------------------------------------------

    def _outcome(self, plan: StepPlan) -> StepResult | Exception:
        """Slots of a step that fails are unusable until they are registered again."""
        self._check_columns(plan)
        self._register(plan)
        rows = self._rows(plan)
        if plan.step in self.fail_at:
            failure = "the fake decoder was told to fail"
        elif not all(row.slot.usable for row in rows):
            failure = "a slot is unusable after a failed step"
        else:
            return self._compute(plan, rows)
        for row in rows:
            row.slot.usable = False
            for slot in row.written:
                self.states[slot] = None
        return RuntimeError(failure)

    def _compute(self, plan: StepPlan, rows: list[Row]) -> StepResult:
        for row in rows:
            self._continue_tables(plan, row)
        self._check_writes(rows)
        result = StepResult(seconds=self.step_seconds(plan))
        for row in rows:
            self._sequence(plan, row, result)
        self.computed += len(plan.tokens)
        return result

    def _check_columns(self, plan: StepPlan) -> None:
        n, groups = len(plan.slots), len(self.windows)
        require(n >= 1, "an empty plan")
        columns = (plan.starts, plan.lengths, plan.sample)
        require(all(len(column) == n for column in columns), "columns of different lengths")
        require(len(plan.kept) == n * groups, "kept has an entry for each sequence and group")
        require(len(plan.added_offsets) == n * groups + 1, "added_offsets has n * G + 1 entries")
        require(plan.added_offsets[-1] == len(plan.added), "added_offsets ends with added")
        require(len(set(plan.slots)) == n, "a slot is scheduled twice")
        require(min(plan.lengths) >= 1, "a sequence computes nothing")
        require(sum(plan.lengths) == len(plan.tokens), "as many tokens as the lengths say")
        require(len(plan.tokens) <= self.max_batched_tokens, "the step is over its token budget")
        require(len(plan.targets) in (0, len(plan.tokens)), "targets is empty or as long as tokens")
        require(len(plan.drafts) in (0, n), "drafts is empty or has an entry for each sequence")
        for index, drafts in enumerate(plan.drafts):
            require(0 <= drafts < plan.lengths[index], "drafts follow a token")
            require(not drafts or plan.sample[index] == 1, "drafts without sample")
        self._check_state_columns(plan)

    def _check_state_columns(self, plan: StepPlan) -> None:
        offsets = plan.save_offsets
        if not self.states:
            columns = (plan.state_from, plan.state_to, offsets, plan.save_rows, plan.save_slots)
            require(not any(columns), "state columns of a model without state")
            return
        n = len(plan.slots)
        require(len(plan.state_from) == len(plan.state_to) == n, "a state for each sequence")
        require(len(offsets) == n + 1 and offsets[0] == 0, "save_offsets has n + 1 entries")
        ends = offsets[-1], len(plan.save_rows), len(plan.save_slots)
        require(len(set(ends)) == 1, "saves of different lengths")
        written = [*plan.state_to, *plan.save_slots]
        require(len(set(written)) == len(written), "a state slot is written twice")
        for index, (source, start) in enumerate(zip(plan.state_from, plan.starts, strict=True)):
            require((source == NO_STATE) == (start == 0), "no state at position 0, else one")
            others = written[:index] + written[index + 1 :]
            require(source not in others, f"state slot {source} is read and written")
            rows = list(plan.save_rows[offsets[index] : offsets[index + 1]])
            require(rows == sorted(set(rows)), "saves ascend")
            require(not rows or 0 < rows[0] <= rows[-1] < plan.lengths[index], "a save outside")
        most = len(self.states)
        require(all(0 <= slot < most for slot in written), "a state slot out of range")

    def _register(self, plan: StepPlan) -> None:
        grammars = plan.grammars
        require(sum(map(len, grammars)) <= MAX_PLAN_GRAMMAR_BYTES, "grammars over their budget")
        require(len(set(grammars)) == len(grammars), "a grammar is twice in one plan")
        used = {params.grammar for params in plan.registrations} - {0}
        require(used == set(range(1, len(grammars) + 1)), "grammars and their numbers differ")
        for params in plan.registrations:
            require(0 <= params.slot < self.max_num_seqs, f"slot {params.slot} out of range")
            logprobs = wants_logprobs(params.sampling)
            tables: list[list[int]] = [[] for _ in self.windows]
            grammar = bool(params.grammar)
            self.slots[params.slot] = Slot(logprobs, params.pooling, tables, grammar=grammar)

    def _rows(self, plan: StepPlan) -> list[Row]:
        rows, at = [], 0
        for index, number in enumerate(plan.slots):
            require(number in self.slots, f"slot {number} was never registered")
            drafts = plan.drafts[index] if plan.drafts else 0
            slot, start, length = self.slots[number], plan.starts[index], plan.lengths[index]
            row = Row(index, slot, start, length, drafts, at, slot.tables)
            if self.states:
                saves = slice(plan.save_offsets[index], plan.save_offsets[index + 1])
                row.source = plan.state_from[index]
                row.written = dict(zip(plan.save_slots[saves], plan.save_rows[saves], strict=True))
                row.written[plan.state_to[index]] = length
            rows.append(row)
            at += length
        return rows

    def _continue_tables(self, plan: StepPlan, row: Row) -> None:
        groups = len(self.windows)
        for group, table in enumerate(row.tables):
            entry = row.index * groups + group
            kept = plan.kept[entry]
            require(0 <= kept <= len(table), f"{kept} entries kept of {len(table)}")
            del table[kept:]
            table += plan.added[plan.added_offsets[entry] : plan.added_offsets[entry + 1]]
            require(len(table) * self.block_size >= row.end, "a block table ends too early")
            live = self._live(group, row)
            require(len(set(live)) == len(live), "a block is twice in one table")
            most = self.num_blocks[group]
            require(all(0 <= block < most for block in live), "a block out of range")

    def _live(self, group: int, row: Row) -> list[int]:
        """Blocks that the step may read or write."""
        first = self._first_seen(group, row.start) // self.block_size
        return row.tables[group][first : -(-row.end // self.block_size)]

    def _first_seen(self, group: int, position: int) -> int:
        window = self.windows[group]
        return 0 if window is None else max(position - window + 1, 0)

    def _check_writes(self, rows: list[Row]) -> None:
        for group in range(len(self.windows)):
            owners = [block for row in rows for block in self._live(group, row)]
            written: set[int] = set()
            for row in rows:
                ended = -(-row.end // self.block_size)
                for block in row.tables[group][row.start // self.block_size : ended]:
                    require(
                        owners.count(block) == 1,
                        f"block {block} is written and owned by two sequences",
                    )
                    written.add(block)
            read = {(group, block) for block in set(owners) - written}
            self.mover.check_plan(read, {(group, block) for block in written})

    # One sequence ---------------------------------------------------------------------------------

    def _sequence(self, plan: StepPlan, row: Row, result: StepResult) -> None:
        tokens = list(plan.tokens[row.at : row.at + row.length])
        if tokens[0] == LAST_SAMPLED:
            require(row.slot.last >= 0 or row.slot.undrawn, "the slot has sampled no token")
            tokens[0] = 0 if row.slot.undrawn else row.slot.last
        else:
            row.slot.undrawn = False
        require(all(0 <= token < self.vocab for token in tokens), "a token out of the vocabulary")
        context = self._context(row)
        states = self._consume(row, tokens)
        first = row.start - len(context)
        for offset, token in enumerate(tokens):
            self._write(row, row.start + offset, token)
        context += tokens

        def seen(at: int) -> list[int]:
            return self._seen(context, first, row.start + at)

        targets = plan.targets[row.at : row.at + row.length]
        wanted = [row_for(seen(at), target) for at, target in enumerate(targets) if target >= 0]
        if wanted:
            result.prompt_logprobs[row.index] = wanted
        if row.slot.pooling:
            self._pool(row, seen, result, ends=bool(plan.sample[row.index]))
            return
        if not plan.sample[row.index]:
            result.counts.append(0)
            return
        self._sample(row, tokens, seen, states, result)

    def _consume(self, row: Row, tokens: list[int]) -> list[bytes]:
        """The states after each of the row's tokens, which are written where the plan says; without
        state slots they are empty.
        """
        if not self.states:
            return [b""] * row.length
        tag = (0, b"") if row.source == NO_STATE else self.states[row.source]
        require(tag is not None and tag[0] == row.start, f"{tag} is no state at {row.start}")
        assert tag is not None
        states = list(accumulate(tokens, next_state, initial=tag[1]))[1:]
        for slot, after in row.written.items():
            self.states[slot] = (row.start + after, states[after - 1])
        return states

    def _pool(
        self, row: Row, seen: Callable[[int], list[int]], result: StepResult, *, ends: bool
    ) -> None:
        """A vector of two numbers: the sum of what the last token sees, and how many that are."""
        require(not row.drafts, "drafts of a pooled sequence")
        if row.slot.pooling == Pooling.MEAN:
            require(row.slot.pooled == row.start, "a mean needs every token")
            row.slot.pooled = row.end
        result.counts.append(0)
        if ends:
            result.vectors[row.index] = pooled_vector(seen(row.length - 1))

    def _sample(
        self,
        row: Row,
        tokens: list[int],
        seen: Callable[[int], list[int]],
        states: list[bytes],
        result: StepResult,
    ) -> None:
        """Draw tokens while they confirm the drafts and their masks are there."""
        sampled, logprobs = [], []
        for at in range(row.length - 1 - row.drafts, row.length):
            if row.slot.undrawn or (row.slot.grammar and self.late()):
                break
            token = next_token(seen(at), self.vocab, states[at])
            sampled.append(token)
            logprobs.append(row_for(seen(at), token))
            if at + 1 == row.length or tokens[at + 1] != token:
                break
        if not sampled:
            row.slot.undrawn = True
            result.counts.append(1)
            result.tokens.append(LATE_MASK)
            return
        result.counts.append(len(sampled))
        result.tokens.extend(sampled)
        if row.slot.logprobs:
            result.logprobs[row.index] = logprobs
        row.slot.last = sampled[-1]

    def _seen(self, context: list[int], first: int, position: int) -> list[int]:
        """What a token at `position` sees of `context`, which begins at `first`."""
        begin = 0 if self._sees is None else max(position - self._sees + 1, 0)
        return context[begin - first if begin > first else 0 : position + 1 - first]

    def _context(self, row: Row) -> list[int]:
        """Tokens before the step's, as far as any group sees them. All groups agree."""
        begin = 0 if self._sees is None else max(row.start - self._sees + 1, 0)
        context = []
        for position in range(begin, row.start):
            read = {
                self._read(group, row, position)
                for group in range(len(self.windows))
                if position >= self._first_seen(group, row.start)
            }
            require(len(read) == 1, f"groups have other tokens at {position}: {read}")
            context += read
        return context

    def _cell(self, group: int, row: Row, position: int) -> int:
        block = row.tables[group][position // self.block_size]
        require(block != NO_BLOCK, f"position {position} has no block in group {group}")
        return block * self.block_size + position % self.block_size

    def _write(self, row: Row, position: int, token: int) -> None:
        for group, pool in enumerate(self.pools):
            pool[self._cell(group, row, position)] = token

    def _read(self, group: int, row: Row, position: int) -> int:
        token = self.pools[group][self._cell(group, row, position)]
        if token is None:
            raise ContractBrokenError(f"position {position} is read and was never computed")
        return token
