"""Sequences by state (waiting, running, leaving), their slots, and the state transitions."""

from __future__ import annotations

from bisect import insort

from penstock.core import FinishReason, InvalidValueError
from penstock.kv import KvCache, PoolCorruptError
from penstock.scheduler.output_buffer import OutputBuffer
from penstock.scheduler.prefixes import Prefixes
from penstock.scheduler.sequence import NO_SLOT, Sequence


class SequenceTable:
    """All live sequences. `waiting` and `running` are sorted by `Sequence.order`; every sequence
    that is not waiting has a slot.

    A sequence that ends while it is in flight becomes `leaving`: its client is answered at once.
    Slot and blocks are released with the result of the last plan that contains the sequence. Only
    `sweep` removes sequences from `running`, so the other methods that end or preempt a sequence
    are safe in a loop over `running`.
    """

    def __init__(self, slots: int, kv: KvCache, prefixes: Prefixes, outbox: OutputBuffer) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.slots = list(range(slots - 1, -1, -1))
        self.num_slots = slots
        self.preemptions = 0
        self._leaving: list[Sequence] = []
        self._live: dict[int, Sequence] = {}
        self._dirty = False
        self._kv = kv
        self._prefixes = prefixes
        self._outbox = outbox

    def __len__(self) -> int:
        """Number of requests whose answer is not complete."""
        return len(self._live)

    def ids(self) -> list[int]:
        return list(self._live)

    def get(self, request_id: int) -> Sequence | None:
        return self._live.get(request_id)

    def wait(self, seq: Sequence) -> None:
        if seq.request.id in self._live:
            raise InvalidValueError("request id", seq.request.id, "an id that no live request has")
        self._live[seq.request.id] = seq
        insort(self.waiting, seq, key=_by_order)

    def run(self, seq: Sequence) -> None:
        """Give a waiting sequence a slot and make it running. The caller updates `waiting`."""
        seq.slot = self.slots.pop()
        insort(self.running, seq, key=_by_order)

    def preempt(self, seq: Sequence) -> None:
        """Offload the sequence's blocks and move it back to waiting."""
        self.preemptions += 1
        self.wait_again(seq, preempted=True)

    def wait_again(self, seq: Sequence, preempted: bool = False) -> None:
        """Take slot and blocks from a running sequence and move it back to waiting. It keeps its
        tokens; their KV is recomputed, or read from a cache.
        """
        self._vacate(seq, preempted)
        seq.rewind(0)
        seq.prompt_rows.clear()
        insort(self.waiting, seq, key=_by_order)

    def finish(self, seq: Sequence, finish: FinishReason, error: str = "") -> None:
        """End a sequence: emit an output row without tokens, and remove it."""
        self._outbox.end(seq, finish, error)
        self.remove(seq)

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence whose last output row was emitted."""
        del self._live[seq.request.id]
        seq.ended = True
        if seq.slot < 0:
            self.waiting.remove(seq)
            self._prefixes.left(seq)
        elif seq.in_flight:
            self._leaving.append(seq)
            self._dirty = True
        else:
            self._vacate(seq)

    def drop_plan(self, seq: Sequence) -> None:
        """Record that a plan with the sequence is no longer in flight. If it was the last one and
        the sequence has ended, release slot and blocks.
        """
        seq.in_flight -= 1
        if seq.ended and not seq.in_flight:
            self._leaving.remove(seq)
            self._vacate(seq)

    def sweep(self) -> None:
        """Remove from `running` the sequences that ended or were preempted."""
        if self._dirty:
            self.running = [seq for seq in self.running if seq.slot >= 0 and not seq.ended]
            self._dirty = False

    def _vacate(self, seq: Sequence, preempted: bool = False) -> None:
        self._prefixes.left(seq, preempted)
        self._kv.release(seq.table)
        self.slots.append(seq.slot)
        seq.slot = NO_SLOT
        seq.registered = False
        self._dirty = True

    def check(self) -> None:
        """Audit blocks, slots and claims. Raises PoolCorruptError if they are inconsistent."""
        seated = [*self.running, *self._leaving]
        self._kv.check((seq.table for seq in seated), self._prefixes.tiers.tables())
        slots = sorted([*self.slots, *(seq.slot for seq in seated)])
        if slots != list(range(self.num_slots)):
            raise PoolCorruptError(f"slots are lost or taken twice: {slots}")
        if any(seq.slot < 0 for seq in self._prefixes.claimants()):
            raise PoolCorruptError("a sequence that is not running claims to compute a prefix")


def _by_order(seq: Sequence) -> tuple[int, int]:
    return seq.order
