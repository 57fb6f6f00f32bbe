"""Sampling from logits: greedy, temperature, top-k, top-p, min-p. The random number generator is
the same as in `crates/compute/kernels/src/sample.rs`, so a request gets the same random numbers on
every device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import (
    ceiling,
    jit,
    jit_with_varying,
    launches,
    multiprocessors,
    power,
    tl,
)
from penstock.backends.torch.kernels.narrow import (
    LISTED,
    TABLE,
    _list,
    _narrow,
    above_keys,
    cuts_of,
    has_cut,
    keys_from,
    offered,
    read_table,
    sampled_bounds,
)
from penstock.backends.torch.kernels.search import (
    cuts_between,
    find,
    read_logits,
    token_between,
    weight_of,
)

_LOW = 0xFFFF_FFFF
_PARTS = 2048
"""Maximum number of parts into which a row of logits is divided: the drawing kernel holds the
largest logit of each part in registers.
"""
_CHUNK = 4096
"""Logits per chunk, which is the unit of work on a row. A chunk consists of one or more parts."""
_FEW = 4096
"""An interval with at most this number of logits is listed without further narrowing."""
_ROOM = 8192
"""Maximum tokens in the candidate list of a row with a cut (top-k, top-p, min-p). If there are more
candidates, all tokens of the row are searched.
"""
_PROGRAMS = 4
"""Number of programs per multiprocessor that work on the rows with a cut."""


def sample(
    logits: Tensor,
    parameters: Sequence[Tensor],
    slots: Tensor,
    positions: Tensor,
    *,
    softcap: float = 0.0,
    states: Tensor | None = None,
    instead: int = -1,
    last: Tensor | None = None,
) -> Tensor:
    """Tokens [rows] int32, sampled from `logits` [rows, vocabulary]. With a `softcap` c, the logits
    are first changed to `c * tanh(logit / c)`.

    `parameters`: columns by slot: temperature f32, top-k int32, top-p and min-p f32, seed int64
    (the bits of an unsigned number), choice int32. Zero temperature is greedy; top-k 0, top-p 1 and
    min-p 0 cut nothing. `slots` and `positions` [rows] int32: the slot of each row, and the
    position of the token to sample. A row's random number depends only on seed, choice and
    position. Minus infinity is never sampled unless all logits are minus infinity; NaN counts as
    minus infinity. A row whose residual stream in `states` [rows, width] is not finite gets
    `instead`. Tokens are also stored in `last` [slots], if given.
    """
    compute = sample_triton if launches(logits) else sample_reference
    return compute(logits, parameters, slots, positions, softcap, states, instead, last)


def sample_reference(
    logits: Tensor,
    parameters: Sequence[Tensor],
    slots: Tensor,
    positions: Tensor,
    softcap: float = 0.0,
    states: Tensor | None = None,
    instead: int = -1,
    last: Tensor | None = None,
) -> Tensor:
    own = slots.long()
    temperature, top_k, top_p, min_p, seeds, choices = (column[own] for column in parameters)
    logits = logits.float()
    logits = logits.masked_fill(logits.isnan(), -torch.inf)
    tokens = logits.argmax(1)
    if softcap:
        never = logits == -torch.inf
        logits = (softcap * torch.tanh(logits / softcap)).masked_fill(never, -torch.inf)
    scales = 1 / temperature.float()
    drawn = (temperature > 0) & (top_k != 1) & scales.isfinite()
    for row in drawn.nonzero().flatten().tolist():
        u = uniform(int(seeds[row]), int(positions[row]), int(choices[row]))
        cuts = (int(top_k[row]), float(top_p[row]), float(min_p[row]))
        tokens[row] = _draw(logits[row], scales[row], cuts, u)
    tokens = tokens.int()
    if states is not None:
        tokens = tokens.masked_fill(~states.isfinite().all(1), instead)
    if last is not None:
        last.index_copy_(0, own, tokens)
    return tokens


def _draw(logits: Tensor, scale: Tensor, cuts: tuple[int, float, float], u: float) -> Tensor:
    """The sampled token: the one at which the cumulative weight reaches the fraction `u` of the
    total. Tokens are in id order, or by descending logit if there is a cut.
    """
    top_k, top_p, min_p = cuts
    most, ids = logits.max(), torch.arange(len(logits), device=logits.device)
    if 0 < top_k < len(logits) or top_p < 1 or min_p > 0:
        logits, ids = torch.sort(logits, descending=True, stable=True)
        if top_k > 0:
            logits, ids = logits[:top_k], ids[:top_k]
        if min_p > 0:
            kept = int((logits >= most + torch.tensor(min_p).log() / scale).sum())
            logits, ids = logits[: max(kept, 1)], ids[: max(kept, 1)]
    weights = torch.exp((logits - most) * scale).double().nan_to_num(0.0)
    weights = weights.masked_fill(logits == -torch.inf, 0.0)
    reached = weights.cumsum(0)
    if top_p < 1:
        enough = torch.searchsorted(reached, reached[-1] * top_p)
        reached = reached[: int(enough) + 1]
    at = torch.searchsorted(reached, reached[-1] * u, right=True)
    return ids[at.clamp(max=len(reached) - 1)]


def uniform(seed: int, position: int, choice: int) -> float:
    """Uniform number in [0, 1) from Philox4x32-10 (Salmon et al. 2011), with the seed as key and
    (position, choice) as counter.
    """
    counter = (position & _LOW, position >> 32 & _LOW, choice & _LOW, 0)
    out = philox(counter, (seed & _LOW, seed >> 32 & _LOW))
    bits = (out[0] << 21 ^ out[1] >> 11) & ((1 << 53) - 1)
    return bits / (1 << 53)


def philox(c: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    for _ in range(10):
        a, b = c[0] * 0xD251_1F53, c[2] * 0xCD9E_8D57
        c = (b >> 32 ^ c[1] ^ key[0], b & _LOW, a >> 32 ^ c[3] ^ key[1], a & _LOW)
        key = ((key[0] + 0x9E37_79B9) & _LOW, (key[1] + 0xBB67_AE85) & _LOW)
    return c


def sample_triton(
    logits: Tensor,
    parameters: Sequence[Tensor],
    slots: Tensor,
    positions: Tensor,
    softcap: float = 0.0,
    states: Tensor | None = None,
    instead: int = -1,
    last: Tensor | None = None,
) -> Tensor:
    """One pass reads all logits, with enough programs to fill the GPU, and stores the maximum and
    the sum of weights of each part. One program per row then finds the part of its token and reads
    only that part again. Rows with a cut are read twice more, again by many programs: the cut is
    narrowed down, then the remaining candidates are listed. The row's program searches the list.
    """
    (rows, vocabulary), device = logits.shape, logits.device
    tokens = torch.empty(rows, dtype=torch.int32, device=device)
    if rows == 0:
        return tokens
    part, parts = _parts(vocabulary)
    each = min(max(1, _CHUNK // part), power(parts))
    chunks = ceiling(parts, each)

    def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=device)

    maxima, sums, tops, above = made(parts), made(parts), made(chunks), made(chunks, 2, 16)
    room = _room(vocabulary)
    offers, listed = made(chunks, 16, dtype=torch.int32), made(room, dtype=torch.int32)
    table, uniforms = made(TABLE, dtype=torch.int64), made(dtype=torch.float64)
    temperature, top_k, top_p, min_p, seeds, choices = parameters
    cuts = (temperature, top_k, top_p, min_p)
    sizes = (logits.stride(0), vocabulary)
    shared = {"CAP": softcap != 0, "TABLE": TABLE}
    row = {"CHUNK": part * each, "BLOCK_C": power(chunks, 16)}
    _scan[(rows, chunks)](
        *(logits, *cuts, seeds, choices, slots, positions),
        *(maxima, sums, tops, above, offers, table, uniforms, *sizes, parts, chunks, softcap),
        PART=part,
        EACH=each,
        num_warps=4,
        **shared,
    )
    programs = (rows, min(chunks, ceiling(_PROGRAMS * multiprocessors(device), rows)))
    _narrow[programs](
        *(logits, *cuts, slots, uniforms, tops, above, offers, table, *sizes, chunks, softcap),
        FEW=_FEW,
        num_warps=4,
        **shared,
        **row,
    )
    _list[programs](
        *(logits, *cuts, slots, uniforms, tops, table, listed, *sizes, chunks, softcap),
        ROOM=room,
        num_warps=4,
        **shared,
        **row,
    )
    _draw_rows[(rows,)](
        *(logits, *cuts, slots, maxima, sums, table, uniforms, listed),
        *(logits if states is None else states, tokens if last is None else last, tokens),
        *(*sizes, parts, softcap, instead, 0 if states is None else states.stride(0)),
        PART=part,
        WIDTH=0 if states is None else states.shape[1],
        LAST=last is not None,
        BLOCK=min(512, power(vocabulary, 16)),
        BLOCK_P=power(parts, 16),
        BLOCK_W=1 if states is None else power(states.shape[1]),
        ROOM=room,
        num_warps=8,
        **shared,
    )
    return tokens


def _parts(vocabulary: int) -> tuple[int, int]:
    """Tokens per part, and the number of parts of a row."""
    part = max(128, power(ceiling(vocabulary, _PARTS)))
    return part, ceiling(vocabulary, part)


def _room(vocabulary: int) -> int:
    """Capacity of a row's list, in tokens."""
    return min(_ROOM, power(vocabulary, 16))


def drawing_bytes(vocabulary: int) -> int:
    """Bytes of working memory that sampling needs per row, in addition to the row's logits."""
    part, parts = _parts(vocabulary)
    chunks = ceiling(parts, max(1, _CHUNK // part))
    return 8 * parts + (4 + 3 * 64) * chunks + 8 * (TABLE + 1) + 4 * (_room(vocabulary) + 1)


@jit
def _philox(seed, position, choice):
    """Uniform number in [0, 1) from a key and a counter."""
    low = 0xFFFFFFFF
    k0, k1 = (seed & low).to(tl.uint64), ((seed >> 32) & low).to(tl.uint64)
    c0, c1 = (position & low).to(tl.uint64), ((position >> 32) & low).to(tl.uint64)
    c2, c3 = (choice & low).to(tl.uint64), (choice & 0).to(tl.uint64)
    for _ in tl.static_range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (b >> 32) ^ c1 ^ k0, b & low
        c2, c3 = (a >> 32) ^ c3 ^ k1, a & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    bits = ((c0 << 21) ^ (c1 >> 11)) & 0x1FFFFFFFFFFFFF
    return bits.to(tl.int64).to(tl.float64) * 1.1102230246251565e-16


@jit_with_varying("slots", "positions")
def _scan(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    seeds,
    choices,
    slots,
    positions,
    maxima,
    sums,
    tops,
    above,
    offers,
    table,
    uniforms,
    stride,
    vocabulary,
    parts,
    chunks,
    softcap,
    CAP: tl.constexpr,
    TABLE: tl.constexpr,
    PART: tl.constexpr,
    EACH: tl.constexpr,
):
    """For each part of a row: the largest logit, and the sum of weights relative to it. For each
    chunk of a row with a cut: mass and count above each of the sampled ranks, and tokens between
    the ranks.
    """
    own, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, slot = logits + own * stride, tl.load(slots + own)
    part = chunk * EACH + tl.arange(0, EACH)
    token = part[:, None] * PART + tl.arange(0, PART)[None, :]
    logit = read_logits(row, token, token < vocabulary)
    most = tl.max(logit, 1)
    tl.store(maxima + own * parts + part, most, mask=part < parts)
    heat = tl.load(temperature + slot)
    if heat > 0:
        base = tl.where(most > float("-inf"), most, 0.0)
        weight = weight_of(logit, base[:, None], 1.0 / heat, softcap, CAP)
        tl.store(sums + own * parts + part, tl.sum(weight, 1), mask=part < parts)
        if chunk == 0:
            u = _philox(
                tl.load(seeds + slot).to(tl.int64),
                tl.load(positions + own).to(tl.int64),
                tl.load(choices + slot).to(tl.int64),
            )
            tl.store(uniforms + own, u)
    if has_cut(slot, temperature, top_k, top_p, min_p, vocabulary):
        if chunk == 0:
            i = tl.arange(0, TABLE)
            tl.store(table + own * TABLE + i, tl.zeros([TABLE], tl.int64))
        CHUNK: tl.constexpr = PART * EACH
        top, first, at = tl.max(most, 0), chunk * CHUNK, own * chunks + chunk
        base = tl.where(top > float("-inf"), top, 0.0)
        j, keys = tl.arange(0, 16), keys_from(sampled_bounds(row, vocabulary, CHUNK), first)
        rule = (base, 1.0 / heat, softcap)
        masses, counts = above_keys(row, first, keys, vocabulary, rule, True, CAP, CHUNK)
        tl.store(tops + at, top)
        tl.store(above + at * 32 + j, masses)
        tl.store(above + at * 32 + 16 + j, counts)
        tl.store(offers + at * 16 + j, offered(row, first, keys, vocabulary, CHUNK))


@jit
def _first_equal(row, part, most, vocabulary, PART: tl.constexpr):
    token = part * PART + tl.arange(0, PART)
    logit = read_logits(row, token, token < vocabulary)
    return tl.min(tl.where((logit == most) & (token < vocabulary), token, 2147483647), 0)


@jit
def _draw_any(row, u, weights, rule, vocabulary, CAP: tl.constexpr, PART: tl.constexpr, PARTS):
    """The token at which the weight accumulated over all tokens, in id order, reaches the fraction
    `u` of the total.
    """
    most, scale, softcap = rule
    p = tl.arange(0, PARTS)
    target, reached = u * tl.sum(weights, 0), tl.cumsum(weights, 0)
    # Rounding may make the target larger than the total. Then use the last part with a weight.
    end = tl.max(tl.where(weights > 0, p, 0), 0)
    part = tl.minimum(tl.min(tl.where((reached > target) & (weights > 0), p, PARTS), 0), end)
    before = tl.sum(tl.where(p == part, reached - weights, 0.0), 0)
    token = part * PART + tl.arange(0, PART)
    logit = read_logits(row, token, token < vocabulary)
    weight = weight_of(logit, most, scale, softcap, CAP).to(tl.float64)
    passed = (before + tl.cumsum(weight, 0) > target) & (weight > 0)
    last = tl.max(tl.where(weight > 0, token, 0), 0)
    return tl.minimum(tl.min(tl.where(passed, token, 2147483647), 0), last)


@jit
def _draw_cut(row, u, table, listed, cuts, rule, own, vocabulary, CAP, BLOCK, ROOM, TABLE):
    """The token at which the weight accumulated over the kept tokens, by descending logit, reaches
    the fraction `u` of their total; -1 if rounding leaves none.
    """
    k, share, floor = cuts
    bounds, masses, counts = read_table(table, own, TABLE)
    by_rank, by_mass, drawn, least = cuts_between(
        bounds, masses, counts, (k, share, floor, u), rule, CAP
    )
    number = tl.load(table + own * TABLE + LISTED).to(tl.int32)
    some = number <= ROOM
    count = tl.where(some, number, vocabulary)
    source = (row, listed + own * ROOM, some, count, vocabulary)
    # The mass that top-k and min-p keep, and the rank at which they cut.
    kept, end = by_rank[4].to(tl.int64), by_rank[1]
    if (k > 0) | (floor > 0):
        end = tl.maximum(end, least)
        wanted = tl.where(k > 0, k, vocabulary)
        _, end, kept = find(
            *(source, by_rank[0], end, by_rank[2].to(tl.int64), by_rank[3], wanted, rule),
            *(True, False, CAP, BLOCK),
        )
    if share < 1:
        wanted = tl.maximum(kept.to(tl.float64) * share, 1.0)
        _, end, kept = find(
            *(source, by_mass[0], tl.maximum(by_mass[1], end), by_mass[2].to(tl.int64)),
            *(by_mass[3], wanted, rule, False, False, CAP, BLOCK),
        )
    wanted = kept.to(tl.float64) * u
    high, low, _ = find(
        *(source, drawn[0], tl.maximum(drawn[1], end), drawn[2].to(tl.int64), drawn[3]),
        *(wanted, rule, False, True, CAP, BLOCK),
    )
    return token_between(source, high, low, BLOCK)


@jit_with_varying("slots", "instead")
def _draw_rows(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    slots,
    maxima,
    sums,
    table,
    uniforms,
    listed,
    states,
    last,
    tokens,
    stride,
    vocabulary,
    parts,
    softcap,
    instead,
    stride_state,
    CAP: tl.constexpr,
    TABLE: tl.constexpr,
    PART: tl.constexpr,
    WIDTH: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_W: tl.constexpr,
    ROOM: tl.constexpr,
):
    own, p = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_P)
    slot, row = tl.load(slots + own), logits + own * stride
    heat = tl.load(temperature + slot)
    largest = tl.load(maxima + own * parts + p, mask=p < parts, other=float("-inf"))
    most = tl.max(largest, 0)
    first = tl.min(tl.where(largest == most, p, BLOCK_P), 0)
    token = _first_equal(row, first, most, vocabulary, PART)
    scale = 1.0 / tl.where(heat > 0, heat, 1.0)
    rule = (most, scale, softcap)
    if most > float("-inf"):
        if has_cut(slot, temperature, top_k, top_p, min_p, vocabulary):
            u = tl.load(uniforms + own)
            cuts = cuts_of(slot, top_k, top_p, min_p, vocabulary)
            drawn = _draw_cut(
                *(row, u, table, listed, cuts, rule, own, vocabulary),
                *(CAP, BLOCK, ROOM, TABLE),
            )
            token = tl.where(drawn < 0, token, drawn)
        elif (heat > 0) & (tl.load(top_k + slot) != 1) & (scale < float("inf")):
            u = tl.load(uniforms + own)
            weights = tl.load(sums + own * parts + p, mask=p < parts, other=0.0)
            weights *= weight_of(largest, most, scale, softcap, CAP)
            weights = weights.to(tl.float64)
            token = _draw_any(row, u, weights, rule, vocabulary, CAP, PART, BLOCK_P)
    if WIDTH > 0:
        w = tl.arange(0, BLOCK_W)
        state = tl.load(states + own * stride_state + w, mask=w < WIDTH, other=0.0).to(tl.float32)
        wrong = tl.sum(((state != state) | (tl.abs(state) == float("inf"))).to(tl.int32), 0)
        token = tl.where(wrong > 0, instead, token)
    tl.store(tokens + own, token)
    if LAST:
        tl.store(last + slot, token)
