"""Inputs of each row of a step: its token, and the place in the KV pool where its keys and values
are stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import ceiling, jit_with_varying, launches, tl

_ROWS = 128


def find_rows(
    tokens: Tensor,
    positions: Tensor,
    sequences: Tensor,
    slots: Tensor,
    lengths: Tensor,
    last: Tensor,
    tables: Tensor,
    size: int,
) -> tuple[Tensor, Tensor]:
    """Token [rows] of each row, and its place in each KV group's pool [groups, rows], both int32.

    A negative token (LAST_SAMPLED) is replaced by `last[slot]` of the row's slot. A place is block
    * `size` + offset in the block, for the block in `tables` [sequences, groups, blocks] at the
    row's position; -1 if the sequence's length is 0. `slots` and `lengths` are indexed by sequence,
    `tokens`, `positions` and `sequences` by row.
    """
    compute = find_rows_triton if launches(tokens) else find_rows_reference
    return compute(tokens, positions, sequences, slots, lengths, last, tables, size)


def find_rows_reference(
    tokens: Tensor,
    positions: Tensor,
    sequences: Tensor,
    slots: Tensor,
    lengths: Tensor,
    last: Tensor,
    tables: Tensor,
    size: int,
) -> tuple[Tensor, Tensor]:
    of = sequences.long()
    found = torch.where(tokens < 0, last[slots.long()[of]].clamp(min=0), tokens)
    at = positions.long()
    places = tables[of, :, at // size].mT.contiguous() * size + positions % size
    return found, torch.where(lengths[of] > 0, places, -1)


def find_rows_triton(
    tokens: Tensor,
    positions: Tensor,
    sequences: Tensor,
    slots: Tensor,
    lengths: Tensor,
    last: Tensor,
    tables: Tensor,
    size: int,
) -> tuple[Tensor, Tensor]:
    rows, groups = len(tokens), tables.shape[1]
    found = torch.empty(rows, dtype=torch.int32, device=tokens.device)
    places = torch.empty(groups, rows, dtype=torch.int32, device=tokens.device)
    if rows:
        _find_rows[(ceiling(rows, _ROWS),)](
            *(tokens, positions, sequences, slots, lengths, last, tables, found, places),
            *(tables.stride(0), tables.stride(1), rows),
            GROUPS=groups,
            SIZE=size,
            BLOCK=_ROWS,
            num_warps=4,
        )
    return found, places


@jit_with_varying(
    "tokens", "positions", "sequences", "slots", "lengths", "stride_table", "stride_group", "rows"
)
def _find_rows(
    tokens,
    positions,
    sequences,
    slots,
    lengths,
    last,
    tables,
    found,
    places,
    stride_table,
    stride_group,
    rows,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    own = row < rows
    sequence = tl.load(sequences + row, mask=own, other=0)
    token = tl.load(tokens + row, mask=own, other=0)
    sampled = tl.load(last + tl.load(slots + sequence, mask=own, other=0), mask=own, other=0)
    tl.store(found + row, tl.where(token < 0, tl.maximum(sampled, 0), token), mask=own)
    position = tl.load(positions + row, mask=own, other=0)
    length = tl.load(lengths + sequence, mask=own, other=0)
    first = tables + sequence.to(tl.int64) * stride_table + position // SIZE
    for group in tl.static_range(GROUPS):
        block = tl.load(first + group * stride_group, mask=own & (length > 0), other=0)
        place = tl.where(length > 0, block * SIZE + position % SIZE, -1)
        tl.store(places + group * rows + row, place, mask=own)
