"""Finds the cuts of a row of logits (top-k, min-p, top-p) with many programs per row, and narrows
them down until the candidates fit a list. Kernels of `sample.py`.

The scan computes the mass and the count of the logits above each of 16 ranks, sampled from the row.
Each cut is between two of these ranks. This module repeats the scan with up to 16 ranks of logits
from those intervals, which the cut by rank, the cut by mass and the draw share as needed. The
tokens that remain between the final ranks are listed. Because ranks come from the row itself, no
distribution is too flat or too steep. Equal logits are ordered by chunk.
"""

from __future__ import annotations

from penstock.backends.torch.kernels.language import constant, jit, jit_with_varying, tl
from penstock.backends.torch.kernels.search import (
    BOTTOM,
    UNIT,
    cuts_between,
    key_of,
    rank_of,
    read_logits,
    weight_of,
)

SAMPLE = constant(64)
"""Number of logits of a row that are sampled to choose the first 16 ranks."""
TABLE = 128
"""Words per row: 32 ranks, the mass above each, the count above each, and the number of tokens
listed.
"""
LISTED = constant(96)


@jit
def has_cut(slot, temperature, top_k, top_p, min_p, vocabulary):
    """True if a row samples from fewer than all tokens. If the inverse of the temperature
    overflows, the row is greedy.
    """
    heat, k = tl.load(temperature + slot), tl.load(top_k + slot)
    cut = ((k > 0) & (k < vocabulary)) | (tl.load(top_p + slot) < 1) | (tl.load(min_p + slot) > 0)
    return cut & (heat > 0) & (k != 1) & (1.0 / tl.where(heat > 0, heat, 1.0) < float("inf"))


@jit
def cuts_of(slot, top_k, top_p, min_p, vocabulary):
    """The cuts of a row: top-k (0 if it cuts nothing), top-p and min-p."""
    k = tl.load(top_k + slot)
    k = tl.where((k > 0) & (k < vocabulary), k, 0)
    return k, tl.load(top_p + slot).to(tl.float64), tl.load(min_p + slot)


@jit
def _bound(logit, token, CHUNK: tl.constexpr):
    """Rank that the last token of `token`'s chunk would have with this logit."""
    return tl.maximum(rank_of(key_of(logit), token // CHUNK * CHUNK + (CHUNK - 1)), BOTTOM)


@jit
def _quantiles(bounds, before, place):
    """For each entry of `place`, the highest bound that at least that number of other bounds
    precede (`before`).
    """
    return tl.max(tl.where(before[None, :] >= place[:, None], bounds[None, :], 0), 1)


@jit
def _sampled(row, i, vocabulary, CHUNK: tl.constexpr):
    token = ((i.to(tl.int64) * vocabulary + vocabulary // 2) // SAMPLE).to(tl.int32)
    return _bound(read_logits(row, token, token < vocabulary), token, CHUNK)


@jit
def sampled_bounds(row, vocabulary, CHUNK: tl.constexpr):
    """15 ranks sampled from the row, denser near the largest logits, and the lowest rank."""
    bounds = _sampled(row, tl.arange(0, SAMPLE), vocabulary, CHUNK)
    before = tl.zeros([SAMPLE], tl.int32)
    for at in range(0, SAMPLE, 32):
        others = _sampled(row, at + tl.arange(0, 32), vocabulary, CHUNK)
        before += tl.sum((others[None, :] > bounds[:, None]).to(tl.int32), 1)
    j = tl.arange(0, 16)
    place = tl.where(j < 4, (1 << tl.minimum(j, 4)) - 1, 5 * j - 8)
    return tl.maximum(tl.where(j < 15, _quantiles(bounds, before, place), 0), BOTTOM)


@jit
def keys_from(bounds, first):
    """The least key in a chunk at or above each of `bounds`. Equal logits of a chunk are on the
    same side of each bound.
    """
    last = 0x7FFFFFFF - (bounds & 0x7FFFFFFF)
    return ((bounds >> 31) + (first > last).to(tl.int64)).to(tl.uint32)


@jit
def above_keys(
    row,
    first,
    keys,
    vocabulary,
    rule,
    COUNT: tl.constexpr,
    CAP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Mass of a chunk's logits at or above each of `keys` and, if COUNT, their number."""
    most, scale, softcap = rule
    LANES: tl.constexpr = 128 if CHUNK > 128 else CHUNK
    masses = tl.zeros([16, LANES], tl.float32)
    counts = tl.zeros([16, LANES], tl.float32)
    for at in range(0, CHUNK, LANES):
        token = first + at + tl.arange(0, LANES)
        logit = read_logits(row, token, token < vocabulary)
        weight = weight_of(logit, most, scale, softcap, CAP)
        above = (key_of(logit)[None, :] >= keys[:, None]).to(tl.float32)
        masses += above * weight[None, :]
        if COUNT:
            counts += above
    return tl.sum(masses, 1), tl.sum(counts, 1)


@jit
def offered(row, first, keys, vocabulary, CHUNK: tl.constexpr):
    """The first token of a chunk between each two of `keys`, or -1; only the first 64 tokens are
    probed.
    """
    PROBED: tl.constexpr = 64 if CHUNK > 64 else CHUNK
    i, j = tl.arange(0, PROBED), tl.arange(0, 16)
    key = key_of(read_logits(row, first + i, first + i < vocabulary))
    between = tl.sum((key[None, :] < keys[:, None]).to(tl.int32), 0)
    place = tl.min(tl.where(between[None, :] == j[:, None], i[None, :], PROBED), 1)
    return tl.where(place < PROBED, first + place, -1)


@jit
def read_table(table, own, TABLE: tl.constexpr):
    i, of = tl.arange(0, 32), table + own * TABLE
    masses = tl.load(of + 32 + i).to(tl.float64)
    return tl.load(of + i), masses, tl.load(of + 64 + i).to(tl.int32)


@jit
def _bounds_of(row, offers, i, first, width, chunks, CHUNK: tl.constexpr):
    """Rank of one offered token per chunk; chunks alternate over the `width` intervals from `first`
    on. 0 if a chunk offers none.
    """
    place = tl.minimum(first + i % width, 15)
    token = tl.load(offers + i * 16 + place, mask=i < chunks, other=-1)
    logit = read_logits(row, tl.maximum(token, 0), token >= 0)
    return tl.where(token >= 0, _bound(logit, token, CHUNK), 0)


@jit
def _chosen(
    row, offers, cut, before, wanting, bounds, chunks, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):
    """New ranks for one cut, among the 16 of the next round: offered tokens in the cut's interval,
    at even distances. `wanting` cuts share the ranks, and `before` of them precede this cut.
    """
    high, low = cut[0], cut[1]
    first = tl.sum((bounds >= high).to(tl.int32), 0)
    width = tl.maximum(tl.sum((bounds > low).to(tl.int32), 0) - first + 1, 1)
    found = _bounds_of(row, offers, tl.arange(0, BLOCK), first, width, chunks, CHUNK)
    ahead = tl.zeros([BLOCK], tl.int32)
    for at in range(0, BLOCK, 16):
        i = at + tl.arange(0, 16)
        others = _bounds_of(row, offers, i, first, width, chunks, CHUNK)
        ahead += tl.sum((others[None, :] > found[:, None]).to(tl.int32), 1)
    j = tl.arange(0, 16)
    number = tl.sum((found > 0).to(tl.int32), 0)
    place = (j // wanting + 1) * number // (16 // wanting + 1)
    return tl.where(j % wanting == before, _quantiles(found, ahead, place), 0)


@jit_with_varying("slots")
def _narrow(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    slots,
    uniforms,
    tops,
    above,
    offers,
    table,
    stride,
    vocabulary,
    chunks,
    softcap,
    CAP: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_C: tl.constexpr,
    FEW: tl.constexpr,
    TABLE: tl.constexpr,
):
    own = tl.program_id(0).to(tl.int64)
    slot, row = tl.load(slots + own), logits + own * stride
    if has_cut(slot, temperature, top_k, top_p, min_p, vocabulary):
        k, share, floor = cuts_of(slot, top_k, top_p, min_p, vocabulary)
        c, j = tl.arange(0, BLOCK_C), tl.arange(0, 16)
        top = tl.load(tops + own * chunks + c, mask=c < chunks, other=float("-inf"))
        most, scale = tl.max(top, 0), 1.0 / tl.load(temperature + slot)
        rule = (most, scale, softcap)
        at = (own * chunks + c)[:, None] * 32 + j[None, :]
        known = (c < chunks)[:, None]
        each = tl.load(above + at, mask=known, other=0.0).to(tl.float64)
        factor = weight_of(top, most, scale, softcap, CAP).to(tl.float64) * UNIT
        masses = tl.sum(each * factor[:, None], 0).to(tl.int64)
        counts = tl.sum(tl.load(above + at + 16, mask=known, other=0.0), 0).to(tl.int32)
        bounds = sampled_bounds(row, vocabulary, CHUNK)
        own_table = table + own * TABLE
        if tl.program_id(1) == 0:
            tl.store(own_table + j, bounds)
            tl.store(own_table + 32 + j, masses)
            tl.store(own_table + 64 + j, counts.to(tl.int64))
        cuts = (k, share, floor, tl.load(uniforms + own))
        first, second, third, _ = cuts_between(
            bounds, masses.to(tl.float64), counts, cuts, rule, CAP
        )
        # A cut (or the draw) needs a finer search only under two conditions: its interval holds
        # more than FEW logits, too many to list, and no earlier cut searches the same interval.
        by_rank = ((k > 0) | (floor > 0)) & (first[5] - first[3] > FEW)
        by_mass = (share < 1) & (second[5] - second[3] > FEW)
        by_mass = by_mass & ((not by_rank) | (second[0] != first[0]) | (second[1] != first[1]))
        drawn = third[5] - third[3] > FEW
        drawn = drawn & ((not by_rank) | (third[0] != first[0]) | (third[1] != first[1]))
        drawn = drawn & ((not by_mass) | (third[0] != second[0]) | (third[1] != second[1]))
        ranks, masses_cut = by_rank.to(tl.int32), by_mass.to(tl.int32)
        wanting = ranks + masses_cut + drawn.to(tl.int32)
        if wanting > 0:
            finer = tl.zeros([16], tl.int64)
            offers += own * chunks * 16
            if by_rank:
                finer += _chosen(row, offers, first, 0, wanting, bounds, chunks, CHUNK, BLOCK_C)
            if by_mass:
                finer += _chosen(
                    row, offers, second, ranks, wanting, bounds, chunks, CHUNK, BLOCK_C
                )
            if drawn:
                finer += _chosen(
                    *(row, offers, third, ranks + masses_cut, wanting, bounds, chunks),
                    *(CHUNK, BLOCK_C),
                )
            if tl.program_id(1) == 0:
                tl.store(own_table + 16 + j, finer)
            finer = tl.maximum(finer, BOTTOM)
            mass, number = tl.zeros([16], tl.int64), tl.zeros([16], tl.int64)
            for chunk in range(tl.program_id(1), chunks, tl.num_programs(1)):
                token = chunk * CHUNK
                keys = keys_from(finer, token)
                if k > 0:
                    sums, some = above_keys(row, token, keys, vocabulary, rule, True, CAP, CHUNK)
                else:
                    sums, some = above_keys(row, token, keys, vocabulary, rule, False, CAP, CHUNK)
                number += some.to(tl.int64)
                mass += (sums.to(tl.float64) * UNIT).to(tl.int64)
            # Integers, so that the sum does not depend on the order of addition.
            tl.atomic_add(own_table + 48 + j, mass, sem="relaxed")
            tl.atomic_add(own_table + 80 + j, number, sem="relaxed")


@jit
def _inside(key, first, high, low):
    """Mask of a chunk's keys that are in the interval of a cut."""
    before, least = keys_from(high, first), keys_from(low, first)
    return (key < before) & (key >= least)


@jit_with_varying("slots")
def _list(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    slots,
    uniforms,
    tops,
    table,
    listed,
    stride,
    vocabulary,
    chunks,
    softcap,
    CAP: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ROOM: tl.constexpr,
    TABLE: tl.constexpr,
):
    """List the tokens in the interval of each cut, in any order. Tokens that do not fit into the
    list are counted but not stored.
    """
    own = tl.program_id(0).to(tl.int64)
    slot, row = tl.load(slots + own), logits + own * stride
    if has_cut(slot, temperature, top_k, top_p, min_p, vocabulary):
        k, share, floor = cuts_of(slot, top_k, top_p, min_p, vocabulary)
        c = tl.arange(0, BLOCK_C)
        top = tl.load(tops + own * chunks + c, mask=c < chunks, other=float("-inf"))
        rule = (tl.max(top, 0), 1.0 / tl.load(temperature + slot), softcap)
        bounds, masses, counts = read_table(table, own, TABLE)
        cuts = (k, share, floor, tl.load(uniforms + own))
        first, second, third, _ = cuts_between(bounds, masses, counts, cuts, rule, CAP)
        # A cut that is switched off takes the interval of another one.
        ranked = (k > 0) | (floor > 0)
        high_1, low_1 = tl.where(ranked, first[0], third[0]), tl.where(ranked, first[1], third[1])
        high_2 = tl.where(share < 1, second[0], third[0])
        low_2 = tl.where(share < 1, second[1], third[1])
        lowest = (tl.minimum(tl.minimum(low_1, low_2), third[1]) >> 31).to(tl.uint32)
        STEP: tl.constexpr = 4096 if CHUNK > 4096 else CHUNK
        for chunk in range(tl.program_id(1), chunks, tl.num_programs(1)):
            if key_of(tl.load(tops + own * chunks + chunk)) >= lowest:
                for at in range(chunk * CHUNK, (chunk + 1) * CHUNK, STEP):
                    token = at + tl.arange(0, STEP)
                    key = key_of(read_logits(row, token, token < vocabulary))
                    start = chunk * CHUNK
                    taken = _inside(key, start, high_1, low_1)
                    taken = taken | _inside(key, start, high_2, low_2)
                    taken = taken | _inside(key, start, third[0], third[1])
                    number = tl.sum(taken.to(tl.int32), 0)
                    if number > 0:
                        place = tl.atomic_add(
                            table + own * TABLE + LISTED, number.to(tl.int64), sem="relaxed"
                        )
                        place += tl.cumsum(taken.to(tl.int32), 0) - 1
                        tl.store(listed + own * ROOM + place, token, mask=taken & (place < ROOM))
