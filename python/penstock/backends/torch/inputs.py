"""Device inputs of a plan: int32 columns, with the sequences of one row (decodes) before those of
several rows (prompts, drafts).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from penstock.backends.torch.kernels import Spans
from penstock.backends.torch.load.weights import MixerWeights
from penstock.backends.torch.runtime import accelerated
from penstock.core import StepPlan


class Attending(Protocol):
    """Attention planned for one step (`step/flash.py`)."""

    def attend(self, mixer: MixerWeights, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Inputs:
    """Tensors of one step on the device, int32. Sequences are in the order that
    `order_of` returns.
    """

    tokens: Tensor
    """[rows] Token ids. For LAST_SAMPLED, `find_rows` reads the last token of the slot."""
    positions: Tensor
    """[rows] Position of each row's token in its sequence."""
    sequences: Tensor
    """[rows] Index of each row's sequence."""
    slots: Tensor
    """[sequences] Slot of each sequence."""
    starts: Tensor
    """[sequences] Position of the sequence's first row in this step."""
    lengths: Tensor
    """[sequences] Number of tokens of each sequence up to now, including this step's."""
    offsets: Tensor
    """[sequences + 1] Cumulative row counts (indptr)."""
    decodes: int
    """Number of one-row sequences, which come first. An upper bound if `spans` has the exact count
    on the device.
    """
    spans: Spans | None
    """Row ranges of the sequences with several rows; None if all sequences have one row."""
    most_rows: int
    """Rows of the sequence with the most rows in this step."""
    blocks: int | None
    """Number of block table entries to read; None: the whole table width."""
    planned: Attending | None = None
    """FlashInfer's attention plan, which replaces the Triton kernels; None without FlashInfer."""


def order_of(plan: StepPlan) -> list[int]:
    """Indices of the plan's sequences, one-row sequences first."""
    count = range(len(plan.slots))
    if len(plan.tokens) == len(count):
        return list(count)
    return [i for i in count if plan.lengths[i] == 1] + [i for i in count if plan.lengths[i] != 1]


def first_rows(plan: StepPlan, order: Sequence[int]) -> list[int]:
    """For each sequence, by its index in the plan: its first row on the device, where sequences are
    in `order`.
    """
    if len(plan.tokens) == len(order):
        return list(order)
    firsts, at = [0] * len(order), 0
    for i in order:
        firsts[i] = at
        at += plan.lengths[i]
    return firsts


def pack(plan: StepPlan, order: Sequence[int], block_size: int, device: torch.device) -> Inputs:
    """The device inputs of a plan that `checks.check` has accepted."""
    firsts = first_rows(plan, range(len(order)))
    lengths = array("i", (plan.lengths[i] for i in order))
    starts = array("i", (plan.starts[i] for i in order))
    tokens = plan.tokens
    if list(order) != list(range(len(order))):
        tokens = array("i")
        for i in order:
            tokens += plan.tokens[firsts[i] : firsts[i] + plan.lengths[i]]
    columns = [tokens, array("i", (plan.slots[i] for i in order)), starts, lengths]
    packed = to_device(columns, device)
    ends = torch.cumsum(packed[3], 0, dtype=torch.int32)
    offsets = torch.nn.functional.pad(ends, (1, 0))
    sequences = _repeat(packed[3], len(tokens))
    decodes = sum(length == 1 for length in lengths)
    own = torch.arange(len(tokens), dtype=torch.int32, device=device)
    positions = packed[2][sequences] + own - offsets[sequences]
    return Inputs(
        tokens=packed[0],
        positions=positions,
        sequences=sequences,
        slots=packed[1],
        starts=packed[2],
        lengths=packed[2] + packed[3],
        offsets=offsets,
        decodes=decodes,
        spans=None if decodes == len(lengths) else Spans(offsets[decodes:]),
        most_rows=max(lengths),
        blocks=max(-(-(s + n) // block_size) for s, n in zip(starts, lengths, strict=True)),
    )


def _repeat(counts: Tensor, total: int) -> Tensor:
    index = torch.arange(len(counts), dtype=torch.int32, device=counts.device)
    return torch.repeat_interleave(index, counts, output_size=total)


def to_device(columns: Sequence[Sequence[int]], device: torch.device) -> list[Tensor]:
    """Copy int32 columns to the device, by one asynchronous copy (`upload`)."""
    joined = array("i")
    for column in columns:
        joined.extend(column)
    sizes = [len(column) for column in columns]
    if not joined:
        return [torch.empty(0, dtype=torch.int32, device=device) for _ in columns]
    return list(upload(torch.frombuffer(joined, dtype=torch.int32), device).split(sizes))


def upload(host: Tensor, device: torch.device) -> Tensor:
    """Asynchronous copy to the device, ordered after previously launched work. Unlike
    `torch.tensor`, it does not wait for that work.
    """
    return _pinned(host, device).to(device, non_blocking=True, copy=True)


def write(numbers: array[int], target: Tensor) -> None:
    """Write int32 numbers to a device tensor, asynchronously as in `upload`."""
    host = _pinned(torch.frombuffer(numbers, dtype=torch.int32), target.device)
    target.copy_(host, non_blocking=True)


def _pinned(host: Tensor, device: torch.device) -> Tensor:
    """Copy `host` to pinned memory, from which a copy to `device` is asynchronous. torch does not
    reuse the pinned memory before that copy has ended.
    """
    return host.pin_memory() if accelerated(device) else host
