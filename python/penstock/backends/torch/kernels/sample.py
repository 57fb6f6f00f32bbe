"""From logits to tokens: greedy, temperature, top-k, top-p, min-p, with the random numbers of
`crates/kernels/src/sample.rs`, so that a request draws the same numbers on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import jit, jit_with_varying, launches, power, tl

_LOW = 0xFFFF_FFFF


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    choices: Tensor,
    positions: Tensor,
) -> Tensor:
    """Tokens [rows] int32 drawn from `logits` [rows, vocabulary] f32.

    `temperature`, `top_p`, `min_p` [rows] f32; `top_k` [rows] int32; 0, 1, 0 and 0 for greedy and
    no cut. `seeds` [rows] int64 with the bits of an unsigned number, `choices` and `positions`
    [rows] int32: a row's random number depends on these three only. Minus infinity is not drawn,
    unless all are; what is not a number counts as minus infinity.
    """
    compute = sample_triton if launches(logits) else sample_reference
    return compute(logits, temperature, top_k, top_p, min_p, seeds, choices, positions)


def sample_reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    choices: Tensor,
    positions: Tensor,
) -> Tensor:
    logits = logits.float()
    logits = logits.masked_fill(logits.isnan(), -torch.inf)
    tokens = logits.argmax(1)
    scales = 1 / temperature.float()
    drawn = (temperature > 0) & (top_k != 1) & scales.isfinite()
    for row in drawn.nonzero().flatten().tolist():
        u = uniform(int(seeds[row]), int(positions[row]), int(choices[row]))
        cuts = (int(top_k[row]), float(top_p[row]), float(min_p[row]))
        tokens[row] = _draw(logits[row], scales[row], cuts, u)
    return tokens.int()


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
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    choices: Tensor,
    positions: Tensor,
) -> Tensor:
    """Without a sort: what a sorted order would find is searched for by bits of the logits."""
    rows, vocabulary = logits.shape
    tokens = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if rows:
        _sample[(rows,)](
            *(logits, temperature, top_k, top_p, min_p, seeds, choices, positions, tokens),
            *(logits.stride(0), vocabulary),
            BLOCK=min(1024, power(vocabulary, 16)),
            num_warps=8,
        )
    return tokens


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


@jit
def _read(row, at, vocabulary, BLOCK: tl.constexpr):
    """Logits, and minus infinity for what is none."""
    token = at + tl.arange(0, BLOCK)
    logit = tl.load(row + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    return tl.where(logit == logit, logit, float("-inf")), token


@jit
def _key(logit):
    """Whole numbers in the order of the logits: zero and minus zero are one."""
    bits = (logit + 0.0).to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits < 0, 0x7FFFFFFF - (bits & 0x7FFFFFFF), bits + 0x80000000)


@jit
def _weight(logit, most, scale):
    weight = tl.exp((logit - most) * scale)
    return tl.where(logit > float("-inf"), weight, 0.0)


@jit
def _above(row, least, most, scale, vocabulary, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of the weights, or number, of the tokens whose keys are at least each of `least`."""
    sums = tl.zeros([16], tl.float64)
    for at in range(0, vocabulary, BLOCK):
        logit, token = _read(row, at, vocabulary, BLOCK)
        each = (token < vocabulary).to(tl.float32)
        if not COUNT:
            each = _weight(logit, most, scale)
        reached = _key(logit)[:, None] >= least[None, :]
        sums += tl.sum(tl.where(reached, each[:, None], 0.0), 0).to(tl.float64)
    return sums


@jit
def _search(
    row,
    wanted,
    most,
    scale,
    vocabulary,
    STRICT: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest key from which on the sum is at least `wanted`, or above it where STRICT; the sum
    of those above that key, and the sum from it on.
    """
    key, step = wanted.to(tl.int64) * 0, wanted.to(tl.int64) * 0 + (1 << 28)
    j = tl.arange(0, 16)
    above = wanted * 0.0
    reached = above
    for _ in range(8):
        sums = _above(row, key + j * step, most, scale, vocabulary, COUNT, BLOCK)
        enough = sums >= wanted
        if STRICT:
            enough = sums > wanted
        # The sums fall: the last that is enough, and none above the first that is not.
        last = tl.maximum(tl.sum(enough.to(tl.int32), 0) - 1, 0)
        reached = tl.sum(tl.where(j == last, sums, 0.0), 0)
        above = tl.where(last < 15, tl.sum(tl.where(j == last + 1, sums, 0.0), 0), above)
        key += last * step
        step = step >> 4
    return key, above, reached


@jit
def _token_of(row, key, nth, vocabulary, BLOCK: tl.constexpr):
    """The token that is number `nth` among those with this key, or the last of them."""
    found, passed = nth * 0 - 1, nth * 0
    last = found
    for at in range(0, vocabulary, BLOCK):
        logit, token = _read(row, at, vocabulary, BLOCK)
        equal = (_key(logit) == key) & (token < vocabulary)
        count = equal.to(tl.int32)
        place = passed + tl.cumsum(count, 0) - count
        found = tl.maximum(found, tl.max(tl.where(equal & (place == nth), token, -1), 0))
        last = tl.maximum(last, tl.max(tl.where(equal, token, -1), 0))
        passed += tl.sum(count, 0)
    return tl.maximum(tl.where(found < 0, last, found), 0)


@jit
def _first_most(row, vocabulary, BLOCK: tl.constexpr):
    """The largest logit and the first token that has it."""
    most, first = float("-inf"), 0
    for at in range(0, vocabulary, BLOCK):
        logit, _ = _read(row, at, vocabulary, BLOCK)
        largest = tl.max(logit, 0)
        first = tl.where(largest > most, at + tl.argmax(logit, 0), first)
        most = tl.maximum(most, largest)
    return most, first


@jit
def _draw_any(row, u, most, scale, vocabulary, BLOCK: tl.constexpr):
    """The token at `u` of the cumulative weights of all tokens, in the order of their numbers."""
    total = u * 0.0
    for at in range(0, vocabulary, BLOCK):
        logit, token = _read(row, at, vocabulary, BLOCK)
        total += tl.sum(_weight(logit, most, scale).to(tl.float64), 0)
    target, reached = u * total, u * 0.0
    last = tl.full([], -1, tl.int32)
    found = tl.full([], -1, tl.int32)
    for at in range(0, vocabulary, BLOCK):
        logit, token = _read(row, at, vocabulary, BLOCK)
        weight = _weight(logit, most, scale).to(tl.float64)
        passed = (reached + tl.cumsum(weight, 0) > target) & (weight > 0)
        here = tl.min(tl.where(passed, token, 2147483647), 0)
        found = tl.where((found < 0) & (here < 2147483647), here, found)
        last = tl.maximum(last, tl.max(tl.where(weight > 0, token, -1), 0))
        reached += tl.sum(weight, 0)
    # By rounding the last may not be passed.
    return tl.maximum(tl.where(found < 0, last, found), 0)


@jit
def _draw_kept(row, u, top_k, top_p, min_p, most, scale, vocabulary, BLOCK: tl.constexpr):
    """The token at `u` of the cumulative weights of those that are kept, by falling logits.

    What is kept are the tokens above a key, and the first ones of those that have it.
    """
    one = u * 0.0 + 1.0
    # Key 0 is that of no number.
    key, equals = (one * 0.0).to(tl.int64), one * vocabulary
    if (top_k > 0) & (top_k < vocabulary):
        wanted = one * top_k
        key, above, _ = _search(row, wanted, most, scale, vocabulary, False, True, BLOCK)
        equals = wanted - above
    if min_p > 0:
        floor = most + tl.log(min_p) / scale
        least = _key(tl.minimum(floor, most))
        equals = tl.where(least > key, one * vocabulary, equals)
        key = tl.maximum(key, least)
    sums = _above(row, key + tl.arange(0, 16), most, scale, vocabulary, False, BLOCK)
    from_on = tl.sum(tl.where(tl.arange(0, 16) == 0, sums, 0.0), 0)
    above = tl.sum(tl.where(tl.arange(0, 16) == 1, sums, 0.0), 0)
    each = tl.exp((_logit(key) - most) * scale).to(tl.float64)
    # Where no token has the key, none of them is left out.
    total = tl.where(above < from_on, tl.minimum(from_on, above + equals * each), from_on)
    if top_p < 1:
        wanted = tl.maximum(total * top_p, 1e-30)
        end, above, reached = _search(row, wanted, most, scale, vocabulary, False, False, BLOCK)
        each = tl.exp((_logit(end) - most) * scale).to(tl.float64)
        needed = tl.maximum(tl.ceil((wanted - above) / each), 1.0)
        total = tl.minimum(tl.minimum(reached, above + needed * each), total)
    target = u * total
    key, above, _ = _search(row, target, most, scale, vocabulary, True, False, BLOCK)
    each = tl.exp((_logit(key) - most) * scale).to(tl.float64)
    nth = tl.floor((target - above) / each)
    # By rounding the next one may lie behind those that are kept.
    nth = tl.minimum(nth, tl.maximum(tl.ceil((total - above) / each - 1e-3) - 1.0, 0.0))
    return _token_of(row, key, tl.maximum(nth, 0.0).to(tl.int32), vocabulary, BLOCK)


@jit
def _logit(key):
    bits = tl.where(key >= 0x80000000, key - 0x80000000, -1 - key)
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@jit_with_varying("temperature", "top_k", "top_p", "min_p", "choices", "positions")
def _sample(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    seeds,
    choices,
    positions,
    tokens,
    stride,
    vocabulary,
    BLOCK: tl.constexpr,
):
    own = tl.program_id(0).to(tl.int64)
    row = logits + own * stride
    heat, k = tl.load(temperature + own), tl.load(top_k + own)
    p, floor = tl.load(top_p + own), tl.load(min_p + own)
    most, token = _first_most(row, vocabulary, BLOCK)
    scale = 1.0 / tl.where(heat > 0, heat, 1.0)
    # A temperature so small that its inverse overflows is greedy too.
    drawn = (heat > 0) & (k != 1) & (scale < float("inf")) & (most > float("-inf"))
    if drawn:
        u = _philox(
            tl.load(seeds + own).to(tl.int64),
            tl.load(positions + own).to(tl.int64),
            tl.load(choices + own).to(tl.int64),
        )
        if ((k > 0) & (k < vocabulary)) | (p < 1) | (floor > 0):
            token = _draw_kept(row, u, k, p, floor, most, scale, vocabulary, BLOCK)
        else:
            token = _draw_any(row, u, most, scale, vocabulary, BLOCK)
    tl.store(tokens + own, token)
