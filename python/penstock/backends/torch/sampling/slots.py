"""Slots: per-sequence state that persists between steps, on the host and on the device."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from penstock.backends.torch.checks import Limits, distinct
from penstock.backends.torch.inputs import to_device
from penstock.backends.torch.sampling.grammars import Constraint, Grammars
from penstock.backends.torch.sampling.logit_processors import Rules
from penstock.core import Registration, StepPlan
from penstock.core.plan import LAST_SAMPLED, NO_BLOCK
from penstock.core.pooling import Pooling


@dataclass(slots=True)
class Slot:
    """State of a registered sequence on the host."""

    rules: Rules
    logprobs: int | None
    """Number of alternatives whose log-probabilities are returned with each sampled token; None: no
    log-probabilities.
    """
    prompt_logprobs: int | None
    pooling: int
    tables: list[array[int]]
    """Block table per KV group; NO_BLOCK outside the window."""
    whole: list[int]
    """By KV group: index of the first entry of the block table from which on all entries have a
    block.
    """
    plain: bool
    """Whether the sequence needs nothing but tokens sampled from unmodified logits."""
    sampled: bool = False
    """Whether a token of the sequence has been sampled, or will be by a step in flight."""
    pooled: int = 0
    """Number of tokens in the sum for mean pooling, including those of steps in flight."""
    total: Tensor | None = None
    """Sum of these tokens' states after the final norm, on the device."""
    params: Mapping[str, Any] = field(default_factory=dict)
    has_grammar: bool = False
    constraint: Constraint | None = None
    """The sequence's grammar, on the sampling rank."""


@dataclass(slots=True)
class Updates:
    """Changes to the tables on the device that a plan makes."""

    places: array[int] = field(default_factory=lambda: array("i"))
    """Entries to write, as flat indices into the block tables of all slots; `blocks` has their
    values.
    """
    blocks: array[int] = field(default_factory=lambda: array("i"))
    registered: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    """Newly registered slots, with their sampling parameters."""
    plain: bool = True
    """True if all sequences of the plan are plain."""

    def __bool__(self) -> bool:
        """True if anything changes on the device."""
        return bool(self.registered or self.blocks)


class Slots:
    """State of all slots on the host. `apply` processes plans. If it raises ValueError, the plan's
    slots are unusable until they are registered again.
    """

    def __init__(self, limits: Limits, width: int, grammars: Grammars | None) -> None:
        self._limits = limits
        self._grammars = grammars
        self._width = width
        self._slots: dict[int, Slot | None] = {}

    def __getitem__(self, slot: int) -> Slot:
        found = self._slots.get(slot)
        if found is None:
            reason = "was in a plan that failed" if slot in self._slots else "was never registered"
            raise ValueError(f"slot {slot} {reason}; register it")
        return found

    def apply(self, plan: StepPlan) -> Updates:
        """Apply a checked plan: registrations and block table changes."""
        updates, groups = Updates(), range(len(self._limits.groups))
        written: list[list[int]] = [[] for _ in groups]
        try:
            for registration in plan.registrations:
                slot = self._new(registration, plan.grammars)
                self._slots[registration.slot] = slot
                updates.registered.append((registration.slot, slot.params))
            row = 0
            for i, length in enumerate(plan.lengths):
                slot = self[plan.slots[i]]
                for g in groups:
                    self._blocks(plan, i, g, slot, updates, written[g])
                self._tokens(plan, i, slot, plan.tokens[row])
                updates.plain = updates.plain and slot.plain
                row += length
            for blocks in written:
                distinct("block to be written", blocks)
        except ValueError:
            self.fail(plan)
            raise
        return updates

    def fail(self, plan: StepPlan) -> None:
        """Mark the slots of a failed plan as unusable until they are registered again."""
        for slot in [*plan.slots, *(each.slot for each in plan.registrations)]:
            self._slots[slot] = None

    def _new(self, registration: Registration, grammars: list[bytes]) -> Slot:
        slot = new_slot(registration, len(self._limits.groups), self._limits.vocab)
        if registration.grammar and self._grammars is not None:
            grammar = grammars[registration.grammar - 1]
            ends = slot.params["suppressed"]
            slot.constraint = self._grammars.start(grammar, registration, ends)
        return slot

    def _blocks(
        self, plan: StepPlan, i: int, g: int, slot: Slot, updates: Updates, written: list[int]
    ) -> None:
        """Update a sequence's block table in a KV group. Adds to `written` the blocks to which this
        step writes. Raises ValueError if a block that the step needs is missing.
        """
        size, table, start = self._limits.block_size, slot.tables[g], plan.starts[i]
        entry, offsets = i * len(self._limits.groups) + g, plan.added_offsets
        if plan.kept[entry] != len(table) or offsets[entry] < offsets[entry + 1]:
            self._change(plan, i, g, slot, updates)
        needed = -(-(start + plan.lengths[i]) // size)
        if len(table) < needed:
            reason = f"{len(table)} blocks where {needed} are needed"
            raise ValueError(f"sequence {i}, KV group {g}: {reason}")
        if slot.whole[g]:
            first = self._limits.groups[g].first_seen(start) // size
            if first < slot.whole[g] and NO_BLOCK in table[first:needed]:
                reason = f"no block for a part of {first}..{needed}"
                raise ValueError(f"sequence {i}, KV group {g}: {reason}")
        written.extend(table[start // size : needed])

    def _change(self, plan: StepPlan, i: int, g: int, slot: Slot, updates: Updates) -> None:
        entry, table = i * len(self._limits.groups) + g, slot.tables[g]
        kept = plan.kept[entry]
        added = plan.added[plan.added_offsets[entry] : plan.added_offsets[entry + 1]]
        if not 0 <= kept <= len(table):
            raise ValueError(f"sequence {i}, KV group {g}: keeps {kept} of {len(table)} blocks")
        del table[kept:]
        table.extend(added)
        slot.whole[g] = min(slot.whole[g], kept)
        if NO_BLOCK in added:
            slot.whole[g] = len(table) - added[::-1].index(NO_BLOCK)
        # Entries beyond the longest supported sequence are never read.
        added = added[: max(0, self._width - kept)]
        groups = len(self._limits.groups)
        first = (plan.slots[i] * groups + g) * self._width + kept
        updates.places.extend(range(first, first + len(added)))
        updates.blocks.extend(added)

    def _tokens(self, plan: StepPlan, i: int, slot: Slot, first: int) -> None:
        """Check that the step fits the progress of the sequence, and update the progress. `first`
        is the sequence's first token in the plan.
        """
        if slot.pooling == Pooling.MEAN and slot.pooled != plan.starts[i]:
            raise ValueError(
                f"sequence {i}: a mean over {slot.pooled} tokens goes on at {plan.starts[i]}"
            )
        slot.pooled += plan.lengths[i]
        if first == LAST_SAMPLED:
            if not self._limits.last_sampled:
                raise ValueError("LAST_SAMPLED with several pipeline stages")
            if not slot.sampled:
                raise ValueError(f"slot {plan.slots[i]} has no last token")
        slot.sampled = slot.sampled or bool(plan.sample[i])


def new_slot(registration: Registration, groups: int, vocab: int) -> Slot:
    from penstock._native import decode_sampling

    params = decode_sampling(registration.sampling)
    prompt = registration.prompt_logprobs
    rules = Rules(params, registration.history, registration.prompt_len, vocab)
    only_tokens = params["logprobs"] is None and prompt < 0 and not rules.any
    return Slot(
        rules=rules,
        logprobs=params["logprobs"],  # type: ignore[arg-type]
        prompt_logprobs=None if prompt < 0 else prompt,
        pooling=registration.pooling,
        tables=[array("i") for _ in range(groups)],
        whole=[0] * groups,
        plain=only_tokens and registration.pooling == Pooling.NONE and not registration.grammar,
        params=params,
        has_grammar=registration.grammar != 0,
    )


WORDS = (
    ("temperature", torch.float32),
    ("top_k", torch.int32),
    ("top_p", torch.float32),
    ("min_p", torch.float32),
    ("choice", torch.int32),
)
"""32-bit sampling parameters, each with its type. All are stored as integers, so that one operation
writes them.
"""
WRITTEN = 1 << 20
"""Maximum number of block table entries that are written at once. Bounds the memory of their
indices.
"""


class DeviceSlots:
    """State of all slots on the device: block tables, sampling parameters, and the last sampled
    token.
    """

    def __init__(self, slots: int, width: int, groups: int, device: torch.device) -> None:
        self._device = device
        self.padding = slots
        """Reserved slot for padding rows."""
        slots += 1
        self._tables = torch.zeros(slots, groups, width, dtype=torch.int32, device=device)
        self._words = torch.zeros(len(WORDS), slots, dtype=torch.int32, device=device)
        self._seeds = torch.zeros(slots, dtype=torch.int64, device=device)
        self.last = torch.zeros(slots, dtype=torch.int32, device=device)

    def apply(self, updates: Updates) -> None:
        """Apply a plan's updates, with one copy to the device. Must be called in the order of the
        plans.
        """
        if not updates:
            return
        first = slice(WRITTEN)
        given: list[Sequence[int]] = [updates.places[first], updates.blocks[first]]
        given += _registered(updates)
        at, blocks, slots, low, high, *words = to_device(given, self._device)
        if updates.blocks:
            self._tables.view(-1)[at] = blocks
        del at, blocks
        for start in range(WRITTEN, len(updates.blocks), WRITTEN):
            own = slice(start, start + WRITTEN)
            at, blocks = to_device([updates.places[own], updates.blocks[own]], self._device)
            self._tables.view(-1)[at] = blocks
        if updates.registered:
            self._words[:, slots] = torch.stack(words)
            self._seeds[slots] = (high.long() << 32) | (low.long() & 0xFFFF_FFFF)

    @property
    def entries(self) -> int:
        """Number of entries of all block tables."""
        return int(self._tables.numel())

    def tables(self, slots: Tensor, blocks: int | None) -> Tensor:
        """Block tables [sequences, KV groups, blocks] of the given slots, with the first `blocks`
        entries of each; None: whole tables.
        """
        return self._tables[:, :, :blocks].index_select(0, slots)

    @property
    def sampling(self) -> tuple[Tensor, ...]:
        """Sampling parameters as columns by slot, in the order that `kernels.sample` takes."""
        heat, top_k, top_p, min_p, choice = (
            word.view(kind) for word, (_, kind) in zip(self._words, WORDS, strict=True)
        )
        return heat, top_k, top_p, min_p, self._seeds, choice


def _registered(updates: Updates) -> list[array[int]]:
    """Columns of the newly registered slots: slot, low and high word of the seed, and the
    parameters in WORDS.
    """
    registered = updates.registered
    seeds = [params["seed"] for _, params in registered]
    halves = array("i", struct.pack(f"<{len(seeds)}Q", *seeds))
    columns = [array("i", [slot for slot, _ in registered]), halves[::2], halves[1::2]]
    for name, kind in WORDS:
        values = [params[name] for _, params in registered]
        form = "f" if kind == torch.float32 else "i"
        columns.append(array("i", struct.pack(f"{len(values)}{form}", *values)))
    return columns
