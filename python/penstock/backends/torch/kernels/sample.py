"""From logits to tokens: greedy, temperature, top-k, top-p, min-p, with the random numbers of
`crates/kernels/src/sample.rs`, so that a request draws the same numbers on every device.
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
    power,
    tl,
)
from penstock.backends.torch.kernels.search import (
    draw_kept,
    key_of,
    least_of,
    read_logits,
    search,
    weight_of,
)

_LOW = 0xFFFF_FFFF
_PARTS = 2048
"""Parts of a row, at most: the kernel that draws has the largest logit of each in registers."""
_PICKED = 256
"""Parts that are read again for a row with a cut, at most."""
_CANDIDATES = 1024
"""Logits that are kept of those, at most."""


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
    """Tokens [rows] int32 drawn from `logits` [rows, vocabulary], of which a `softcap` c makes
    `c * tanh(logit / c)`.

    `parameters` are columns by slot: temperature f32, top-k int32, top-p and min-p f32, a seed in
    int64 with the bits of an unsigned number, a choice in int32; 0, 0, 1 and 0 for greedy and no
    cut. A row's random number depends on seed, choice and position alone. Minus infinity is not
    drawn, unless all are; what is not a number counts as minus infinity. A row whose state in
    `states` [rows, width] is not finite gets `instead`. Tokens are kept in `last` [slots], too.
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
    """The token at `u` of the cumulative weights, in the order of ids, or of falling logits where
    something is cut.
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
    """Uniform number in [0, 1): Philox4x32-10 (Salmon et al. 2011) keyed by the seed, at counter
    (position, choice).
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
    """All logits are read once, by as many programs as fill the GPU, which leave the largest of
    each part and the sum of its weights. A program for each row finds the part of its token, or of
    a row with a cut the parts with the likely ones, and reads those again.
    """
    (rows, vocabulary), device = logits.shape, logits.device
    tokens = torch.empty(rows, dtype=torch.int32, device=device)
    if rows == 0:
        return tokens
    part, parts = _parts(vocabulary)
    each = max(1, 4096 // part)
    maxima = torch.empty(rows, parts, dtype=torch.float32, device=device)
    sums = torch.empty_like(maxima)
    places = torch.empty(rows, _PICKED + _CANDIDATES, dtype=torch.int32, device=device)
    found = torch.empty(rows, _CANDIDATES, dtype=logits.dtype, device=device)
    temperature, *others = parameters
    shared = {"CAP": softcap != 0, "PART": part}
    _scan[(rows, ceiling(parts, each))](
        *(logits, temperature, slots, maxima, sums),
        *(logits.stride(0), vocabulary, parts, softcap),
        EACH=min(each, power(parts)),
        num_warps=8,
        **shared,
    )
    _draw_rows[(rows,)](
        *(logits, temperature, *others, slots, positions, maxima, sums, places, found),
        *(logits if states is None else states, tokens if last is None else last, tokens),
        *(logits.stride(0), vocabulary, parts, softcap, instead),
        0 if states is None else states.stride(0),
        WIDTH=0 if states is None else states.shape[1],
        LAST=last is not None,
        BLOCK=min(1024, power(vocabulary, 16)),
        BLOCK_P=power(parts, 16),
        BLOCK_W=1 if states is None else power(states.shape[1]),
        PICKED=_PICKED,
        CANDIDATES=_CANDIDATES,
        num_warps=8,
        **shared,
    )
    return tokens


def _parts(vocabulary: int) -> tuple[int, int]:
    """Tokens of a part of a row, and how many parts it has."""
    part = max(128, power(ceiling(vocabulary, _PARTS)))
    return part, ceiling(vocabulary, part)


def drawing_bytes(vocabulary: int, size: int) -> int:
    """Memory of a row beside its logits of `size` bytes, as it is drawn from."""
    return 8 * _parts(vocabulary)[1] + 4 * (_PICKED + _CANDIDATES + 1) + size * _CANDIDATES


@jit
def _philox(seed, position, choice):
    """Uniform number in [0, 1) of a key and a counter."""
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


@jit_with_varying("slots")
def _scan(
    logits,
    temperature,
    slots,
    maxima,
    sums,
    stride,
    vocabulary,
    parts,
    softcap,
    CAP: tl.constexpr,
    PART: tl.constexpr,
    EACH: tl.constexpr,
):
    """The largest logit of each part of a row, and the sum of the weights next to that."""
    own = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1) * EACH + tl.arange(0, EACH)
    token = part[:, None] * PART + tl.arange(0, PART)[None, :]
    logit = read_logits(logits + own * stride, token, token < vocabulary)
    most = tl.max(logit, 1)
    tl.store(maxima + own * parts + part, most, mask=part < parts)
    heat = tl.load(temperature + tl.load(slots + own))
    if heat > 0:
        base = tl.where(most > float("-inf"), most, 0.0)
        weight = weight_of(logit, base[:, None], 1.0 / heat, softcap, CAP)
        tl.store(sums + own * parts + part, tl.sum(weight, 1), mask=part < parts)


@jit
def _first_equal(row, part, most, vocabulary, PART: tl.constexpr):
    token = part * PART + tl.arange(0, PART)
    logit = read_logits(row, token, token < vocabulary)
    return tl.min(tl.where((logit == most) & (token < vocabulary), token, 2147483647), 0)


@jit
def _draw_any(row, u, weights, rule, vocabulary, CAP: tl.constexpr, PART: tl.constexpr, PARTS):
    """The token at `u` of the cumulative weights of all tokens, in the order of their numbers."""
    most, scale, softcap = rule
    p = tl.arange(0, PARTS)
    target, reached = u * tl.sum(weights, 0), tl.cumsum(weights, 0)
    # By rounding the last may not be passed.
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
def _gathered(
    row,
    largest,
    level,
    places,
    found,
    rule,
    vocabulary,
    CAP: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    PICKED: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Leave the logits from the key `level` on in `found`, in the order of their tokens, which are
    in `places` behind the parts; how many there are, and the sum of their weights. Too many are
    counted only.
    """
    most, scale, softcap = rule
    picked = (key_of(largest) >= level) & (largest > float("-inf"))
    number = tl.cumsum(picked.to(tl.int32), 0)
    count = tl.sum(picked.to(tl.int32), 0)
    known = picked & (number <= PICKED)
    tl.store(places + number - 1, tl.arange(0, PARTS), mask=known)
    # The threads read what others have written.
    tl.debug_barrier()
    kept, mass = count * 0, (most * 0.0).to(tl.float64)
    EACH: tl.constexpr = 4096 // PART if PART < 4096 else 1
    if count <= PICKED:
        i = tl.arange(0, EACH)
        for at in range(0, count, EACH):
            part = tl.load(places + at + i, mask=at + i < count, other=0)
            token = part[:, None] * PART + tl.arange(0, PART)[None, :]
            inside = (at + i < count)[:, None] & (token < vocabulary)
            logit = read_logits(row, token, inside)
            taken = inside & (key_of(logit) >= level) & (logit > float("-inf"))
            weight = tl.where(taken, weight_of(logit, most, scale, softcap, CAP), 0.0)
            mass += tl.sum(tl.sum(weight, 1).to(tl.float64), 0)
            # Those of the parts before, and those before it in its part.
            each = tl.sum(taken.to(tl.int32), 1)
            place = (kept + tl.cumsum(each, 0) - each)[:, None]
            place += tl.cumsum(taken.to(tl.int32), 1) - 1
            room = taken & (place < CANDIDATES)
            tl.store(found + place, logit.to(found.dtype.element_ty), mask=room)
            tl.store(places + PICKED + place, token, mask=room)
            kept += tl.sum(each, 0)
        tl.debug_barrier()
    else:
        kept += CANDIDATES + 1
    return kept, mass


@jit_with_varying("slots", "positions", "instead")
def _draw_rows(
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
    places,
    found,
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
    PART: tl.constexpr,
    WIDTH: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_W: tl.constexpr,
    PICKED: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    own, p = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_P)
    slot, row = tl.load(slots + own), logits + own * stride
    heat, k = tl.load(temperature + slot), tl.load(top_k + slot)
    share, floor = tl.load(top_p + slot), tl.load(min_p + slot)
    largest = tl.load(maxima + own * parts + p, mask=p < parts, other=float("-inf"))
    most = tl.max(largest, 0)
    first = tl.min(tl.where(largest == most, p, BLOCK_P), 0)
    token = _first_equal(row, first, most, vocabulary, PART)
    scale = 1.0 / tl.where(heat > 0, heat, 1.0)
    # A temperature so small that its inverse overflows is greedy too.
    drawn = (heat > 0) & (k != 1) & (scale < float("inf")) & (most > float("-inf"))
    if drawn:
        u = _philox(
            tl.load(seeds + slot).to(tl.int64),
            tl.load(positions + own).to(tl.int64),
            tl.load(choices + slot).to(tl.int64),
        )
        rule = (most, scale, softcap)
        weights = tl.load(sums + own * parts + p, mask=p < parts, other=0.0)
        weights *= weight_of(largest, most, scale, softcap, CAP)
        weights = weights.to(tl.float64)
        by_k = (k > 0) & (k < vocabulary)
        if by_k | (share < 1) | (floor > 0):
            # The logits from the largest one of so many parts on: as many at least.
            wanted = u * 0.0 + tl.where(by_k & (k < PICKED), k, PICKED)
            level, _, _ = search(maxima + own * parts, wanted, rule, parts, False, True, CAP, BLOCK)
            listed = places + own * (PICKED + CANDIDATES)
            kept, mass = _gathered(
                *(row, largest, level, listed, found + own * CANDIDATES, rule, vocabulary),
                *(CAP, PART, BLOCK_P, PICKED, CANDIDATES),
            )
            total = tl.sum(weights, 0)
            least = key_of(least_of(tl.maximum(floor, 1e-37), most, scale, softcap, CAP))
            # At or below the key of minus infinity it is all of them.
            enough = (level <= 0x007FFFFF) | (by_k & (k <= kept))
            enough = enough | ((floor > 0) & (least >= level))
            enough = enough | ((k <= 0) & (floor <= 0) & (mass >= total * share))
            enough = enough & (kept <= CANDIDATES)
            source, count = row, vocabulary
            if enough:
                source, count = found + own * CANDIDATES, kept
            token = draw_kept(source, u, total, k, share, floor, rule, count, CAP, BLOCK)
            if enough:
                token = tl.load(listed + PICKED + token)
        else:
            token = _draw_any(row, u, weights, rule, vocabulary, CAP, PART, BLOCK_P)
    if WIDTH > 0:
        w = tl.arange(0, BLOCK_W)
        state = tl.load(states + own * stride_state + w, mask=w < WIDTH, other=0.0).to(tl.float32)
        wrong = tl.sum(((state != state) | (tl.abs(state) == float("inf"))).to(tl.int32), 0)
        token = tl.where(wrong > 0, instead, token)
    tl.store(tokens + own, token)
    if LAST:
        tl.store(last + slot, token)
