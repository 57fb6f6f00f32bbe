"""Slots: what is kept of a sequence from step to step, on the host and on the device."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from penstock.backends.torch.checks import Limits, distinct
from penstock.backends.torch.grammars import Constraint, Grammars
from penstock.backends.torch.inputs import to_device
from penstock.backends.torch.rules import Rules
from penstock.core import Registration, StepPlan
from penstock.core.plan import LAST_SAMPLED, NO_BLOCK
from penstock.core.pooling import Pooling


@dataclass(slots=True)
class Slot:
    """A registered sequence."""

    rules: Rules
    logprobs: int | None
    """Alternatives of sampled tokens."""
    prompt_logprobs: int | None
    pooling: int
    tables: list[array[int]]
    """Blocks by KV group; NO_BLOCK behind a window."""
    sampled: bool = False
    """Whether a token was sampled, or will have been when the steps in flight are done."""
    pooled: int = 0
    """Tokens that a mean has summed, or will have when the steps in flight are done."""
    total: Tensor | None = None
    """Their sum on the device."""
    params: Mapping[str, Any] = field(default_factory=dict)
    has_grammar: bool = False
    constraint: Constraint | None = None
    """Its grammar, on the rank that draws."""


@dataclass(slots=True)
class Updates:
    """Changes of the device's tables that a plan makes."""

    places: array[int]
    """In the tables of all slots, flat."""
    blocks: array[int]
    registered: list[tuple[int, Mapping[str, Any]]]
    """Slots with their sampling parameters."""


class Slots:
    """The host's side. `apply` takes plans in; a ValueError leaves the plan's slots unusable."""

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
        """Take a checked plan in: registrations, changes of block tables."""
        updates = Updates(array("i"), array("i"), [])
        try:
            for registration in plan.registrations:
                slot = self._new(registration, plan.grammars)
                self._slots[registration.slot] = slot
                updates.registered.append((registration.slot, slot.params))
            row = 0
            for i in range(len(plan.slots)):
                self._sequence(plan, i, row, updates)
                row += plan.lengths[i]
            self._check_written(plan)
        except ValueError:
            self.fail(plan)
            raise
        return updates

    def fail(self, plan: StepPlan) -> None:
        """Make the slots of a failed plan unusable until they are registered again."""
        for slot in [*plan.slots, *(each.slot for each in plan.registrations)]:
            self._slots[slot] = None

    def _new(self, registration: Registration, grammars: list[bytes]) -> Slot:
        slot = new_slot(registration, len(self._limits.groups))
        if registration.grammar and self._grammars is not None:
            grammar = grammars[registration.grammar - 1]
            ends = slot.params["suppressed"]
            slot.constraint = self._grammars.start(grammar, registration, ends)
        return slot

    def _sequence(self, plan: StepPlan, i: int, row: int, updates: Updates) -> None:
        slot, limits = self[plan.slots[i]], self._limits
        groups = len(limits.groups)
        for g, group in enumerate(limits.groups):
            entry = i * groups + g
            kept, table = plan.kept[entry], slot.tables[g]
            added = plan.added[plan.added_offsets[entry] : plan.added_offsets[entry + 1]]
            try:
                if not 0 <= kept <= len(table):
                    raise ValueError(f"keeps {kept} of {len(table)} blocks")
                del table[kept:]
                table.extend(added)
                first = group.first_seen(plan.starts[i]) // limits.block_size
                needed = -(-(plan.starts[i] + plan.lengths[i]) // limits.block_size)
                if len(table) < needed:
                    raise ValueError(f"{len(table)} blocks where {needed} are needed")
                if NO_BLOCK in table[first:needed]:
                    raise ValueError(f"no block for a part of {first}..{needed}")
            except ValueError as error:
                raise ValueError(f"sequence {i}, KV group {g}: {error}") from None
            # Blocks after the longest sequence that this backend computes are not read.
            added = added[: max(0, self._width - kept)]
            start = (plan.slots[i] * groups + g) * self._width + kept
            updates.places.extend(range(start, start + len(added)))
            updates.blocks.extend(added)
        if slot.pooling == Pooling.MEAN and slot.pooled != plan.starts[i]:
            raise ValueError(
                f"sequence {i}: a mean over {slot.pooled} tokens goes on at {plan.starts[i]}"
            )
        slot.pooled += plan.lengths[i]
        if plan.tokens[row] == LAST_SAMPLED:
            if not limits.last_sampled:
                raise ValueError("LAST_SAMPLED with several pipeline stages")
            if not slot.sampled:
                raise ValueError(f"slot {plan.slots[i]} has no last token")
        slot.sampled = slot.sampled or bool(plan.sample[i])

    def _check_written(self, plan: StepPlan) -> None:
        size = self._limits.block_size
        for g in range(len(self._limits.groups)):
            written: list[int] = []
            for i, slot in enumerate(plan.slots):
                start = plan.starts[i]
                end = -(-(start + plan.lengths[i]) // size)
                written.extend(self[slot].tables[g][start // size : end])
            distinct("block to be written", written)


def new_slot(registration: Registration, groups: int) -> Slot:
    from penstock._native import decode_sampling

    params = decode_sampling(registration.sampling)
    prompt = registration.prompt_logprobs
    return Slot(
        rules=Rules(params, registration.history, registration.prompt_len),
        logprobs=params["logprobs"],  # type: ignore[arg-type]
        prompt_logprobs=None if prompt < 0 else prompt,
        pooling=registration.pooling,
        tables=[array("i") for _ in range(groups)],
        params=params,
        has_grammar=registration.grammar != 0,
    )


SAMPLING = (
    ("temperature", torch.float32),
    ("top_k", torch.int32),
    ("top_p", torch.float32),
    ("min_p", torch.float32),
    ("seed", torch.int64),
    ("choice", torch.int32),
)


class DeviceSlots:
    """The device's side: block tables, sampling parameters, and the token sampled last."""

    def __init__(self, slots: int, width: int, groups: int, device: torch.device) -> None:
        self._device = device
        self.padding = slots
        """A slot for rows that belong to no sequence."""
        slots += 1
        self._tables = torch.zeros(slots, groups, width, dtype=torch.int32, device=device)
        self._sampling = {
            name: torch.zeros(slots, dtype=kind, device=device) for name, kind in SAMPLING
        }
        self.last = torch.zeros(slots, dtype=torch.int32, device=device)

    def apply(self, updates: Updates) -> None:
        """In the order of the plans, by one copy to the device."""
        given: list[Sequence[int]] = [updates.places, updates.blocks, *_registered(updates)]
        at, blocks, slots, *words = to_device(given, self._device)
        if updates.blocks:
            self._tables.view(-1)[at.long()] = blocks
        if not updates.registered:
            return
        for name, kind in SAMPLING:
            if kind == torch.int64:
                low, high = words.pop(0), words.pop(0)
                values = (high.long() << 32) | (low.long() & 0xFFFF_FFFF)
            else:
                values = words.pop(0).view(kind)
            self._sampling[name][slots.long()] = values

    def tables(self, slots: Tensor, blocks: int | None) -> Tensor:
        """[sequences, KV groups, blocks], or whole ones."""
        return self._tables[:, :, :blocks].index_select(0, slots)

    @property
    def sampling(self) -> tuple[Tensor, ...]:
        """Parameters by slot, in the order of SAMPLING."""
        return tuple(self._sampling.values())


def _registered(updates: Updates) -> list[array[int]]:
    """Slots and their sampling parameters, columns of the 32-bit words that they are stored as."""
    registered = updates.registered
    columns = [array("i", [slot for slot, _ in registered])]
    for name, kind in SAMPLING:
        values = [params[name] for _, params in registered]
        if kind == torch.int64:
            # 64 bits without a sign, low word first.
            words = array("i", struct.pack(f"<{len(values)}Q", *values))
            columns += [words[::2], words[1::2]]
        else:
            form = "f" if kind == torch.float32 else "i"
            columns.append(array("i", struct.pack(f"{len(values)}{form}", *values)))
    return columns
