"""Where a row of logits is cut, narrowed down by many programs for a row, until what is left fits a
list. Kernels of `sample.py`.

The scan takes the mass and the number of the logits from each of 16 ranks on: those of a sample
that is spread over the row. The cut is between two of them. Here the same is done with up to 16
ranks of logits that lie there, for the cut by rank, that by mass and the draw, as each needs; what
is left between is listed. Ranks come from the row itself, so that no distribution is too flat or
too steep, and equal logits are in the order of their chunks.
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
"""Logits of a row from which the first ranks are taken."""
TABLE = 128
"""Numbers of a row: 32 ranks, the mass and the number of the logits from each on, and how many are
listed.
"""
LISTED = constant(96)


@jit
def has_cut(slot, temperature, top_k, top_p, min_p, vocabulary):
    """Whether a token is drawn of fewer than all. A temperature so small that its inverse overflows
    is greedy.
    """
    heat, k = tl.load(temperature + slot), tl.load(top_k + slot)
    cut = ((k > 0) & (k < vocabulary)) | (tl.load(top_p + slot) < 1) | (tl.load(min_p + slot) > 0)
    return cut & (heat > 0) & (k != 1) & (1.0 / tl.where(heat > 0, heat, 1.0) < float("inf"))


@jit
def cuts_of(slot, top_k, top_p, min_p, vocabulary):
    """Those of a row, and 0 for a top-k that cuts nothing."""
    k = tl.load(top_k + slot)
    k = tl.where((k > 0) & (k < vocabulary), k, 0)
    return k, tl.load(top_p + slot).to(tl.float64), tl.load(min_p + slot)


@jit
def _bound(logit, token, CHUNK: tl.constexpr):
    """The rank of the last token of its chunk, had it this logit."""
    return tl.maximum(rank_of(key_of(logit), token // CHUNK * CHUNK + (CHUNK - 1)), BOTTOM)


@jit
def _quantiles(bounds, before, place):
    """Those of `bounds` with so many others `before` them, or the next ones."""
    return tl.max(tl.where(before[None, :] >= place[:, None], bounds[None, :], 0), 1)


@jit
def _sampled(row, i, vocabulary, CHUNK: tl.constexpr):
    token = ((i.to(tl.int64) * vocabulary + vocabulary // 2) // SAMPLE).to(tl.int32)
    return _bound(read_logits(row, token, token < vocabulary), token, CHUNK)


@jit
def sampled_bounds(row, vocabulary, CHUNK: tl.constexpr):
    """15 ranks of the row, closer to one another near the largest logits, and the lowest."""
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
    """The least key of a chunk from each of `bounds` on: of equal logits those of a chunk are on
    the same side of each.
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
    """Mass, and where COUNT number, of the logits of a chunk from each of `keys` on."""
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
    """The first token of a chunk between each two of `keys`, or -1, among the first ones."""
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
    """The ranks of an offer of each chunk, by turns of those between `width` ranks from `first` on;
    0 where there is none.
    """
    place = tl.minimum(first + i % width, 15)
    token = tl.load(offers + i * 16 + place, mask=i < chunks, other=-1)
    logit = read_logits(row, tl.maximum(token, 0), token >= 0)
    return tl.where(token >= 0, _bound(logit, token, CHUNK), 0)


@jit
def _chosen(
    row, offers, cut, before, wanting, bounds, chunks, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):
    """The ranks of one cut among the 16 that are narrowed by: those of offers between its ends, at
    even distances. `before` cuts of those `wanting` ranks have theirs before it.
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
        # What is listed whole, or with another one, needs no ranks.
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
            # Whole numbers, the same in any order.
            tl.atomic_add(own_table + 48 + j, mass, sem="relaxed")
            tl.atomic_add(own_table + 80 + j, number, sem="relaxed")


@jit
def _inside(key, first, high, low):
    """Which of the keys of a chunk are between the ends of a cut."""
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
    """List the tokens between the ends of each cut, in any order; too many are counted only."""
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
        # An absent cut takes the ends of another one.
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
