"""Finds, without a sort, the cuts of a row of logits (top-k, min-p, top-p) and the token at a
fraction of the mass (the sum of weights). Functions of the kernels of `sample.py` and `narrow.py`.

The order is by descending logit, then by id. A *rank* is an integer that grows with the logit: the
logit's key above 31 bits of the inverted id. Logits are compared without the soft cap, which is
monotonic and applies only in weights. Sums of weights are integers, in units of 2**-44 of the
largest weight, so they are independent of the order of addition.
"""

from __future__ import annotations

from penstock.backends.torch.kernels.attention import capped
from penstock.backends.torch.kernels.language import constant, jit, tl

UNIT = constant(float(1 << 44))
BOTTOM = constant(0x0080_0000 << 31)
"""No finite logit has a rank below this."""
TOP = constant(0xFF80_0001 << 31)
"""No logit has this rank."""


@jit
def read_logits(row, token, known):
    """Logits, with NaN and masked-off entries as minus infinity."""
    logit = tl.load(row + token, mask=known, other=float("-inf")).to(tl.float32)
    return tl.where(logit == logit, logit, float("-inf"))


@jit
def key_of(logit):
    """Integer key in the order of the logits; zero and minus zero are equal."""
    bits = (logit + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@jit
def logit_of(key):
    bits = tl.where(key >= 0x80000000, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@jit
def rank_of(key, token):
    return (key.to(tl.int64) << 31) + (0x7FFFFFFF - token.to(tl.int64))


@jit
def _value_of(logit, softcap, CAP: tl.constexpr):
    if CAP:
        logit = capped(logit, softcap)
    return logit


@jit
def weight_of(logit, most, scale, softcap, CAP: tl.constexpr):
    """Sampling weight of a logit, relative to that of the largest logit `most`; 0 for minus
    infinity.
    """
    weight = tl.exp((_value_of(logit, softcap, CAP) - _value_of(most, softcap, CAP)) * scale)
    return tl.where(logit > float("-inf"), weight, 0.0)


@jit
def least_of(min_p, most, scale, softcap, CAP: tl.constexpr):
    """The least logit whose weight is at least `min_p`."""
    least = _value_of(most, softcap, CAP) + tl.log(min_p) / scale
    if CAP:
        share = least / softcap
        inside = tl.maximum(share, -0.999999)
        least = softcap * 0.5 * tl.log((1.0 + inside) / (1.0 - inside))
        least = tl.where(share > -0.999999, least, float("-inf"))
    return tl.minimum(least, most)


@jit
def _between(inside, beyond, bounds, masses, counts):
    """The interval that contains a cut: the lowest bound inside the cut and the highest bound
    beyond it, each with the mass and count of the logits at or above it.
    """
    low = tl.max(tl.where(beyond, bounds, 0), 0)
    inside = inside & (bounds > low)
    high = tl.min(tl.where(inside, bounds, TOP), 0)
    mass_high = tl.max(tl.where(inside, masses, 0.0), 0)
    count_high = tl.max(tl.where(inside, counts, 0), 0)
    mass_low = tl.max(tl.where(bounds == low, masses, 0.0), 0)
    count_low = tl.max(tl.where(bounds == low, counts, 0), 0)
    return high, low, mass_high, count_high, mass_low, count_low


@jit
def cuts_between(bounds, masses, counts, cuts, rule, CAP: tl.constexpr):
    """The intervals between `bounds`, as `_between` returns them, of the cut by top-k and min-p,
    the cut by top-p, and the token to draw.

    `masses` and `counts` are totals over all logits at or above each rank of `bounds`; a bound of 0
    is absent. A cut that depends on another, still unknown cut uses the ends of that cut's
    interval.
    """
    most, scale, softcap = rule
    top_k, top_p, min_p, u = cuts
    known = bounds > 0
    kept = tl.max(counts, 0)
    kept = tl.where(top_k > 0, tl.minimum(kept, top_k), kept)
    least = key_of(least_of(tl.maximum(min_p, 1e-37), most, scale, softcap, CAP)).to(tl.int64) << 31
    least = tl.where(min_p > 0, least, 0)
    beyond = known & ((counts >= kept) | (bounds <= least))
    by_rank = _between(known & ~beyond, beyond, bounds, masses, counts)
    from_mass, to_mass = by_rank[2], by_rank[4]
    if (top_k <= 0) & (min_p <= 0):
        from_mass = to_mass
    inside = known & ~beyond
    by_mass = by_rank
    if top_p < 1:
        limit = tl.maximum(to_mass * top_p, 1.0)
        beyond = beyond | (known & (masses >= limit))
        inside = inside & (masses < from_mass * top_p)
        by_mass = _between(inside, beyond, bounds, masses, counts)
        inside = known & ~beyond
        # The limit may be exceeded by less than the weight of one token.
        key = (tl.minimum(by_mass[0], TOP - 1) >> 31).to(tl.uint32)
        more = tl.minimum(
            weight_of(tl.minimum(logit_of(key), most), most, scale, softcap, CAP), 1.0
        )
        from_mass = tl.maximum(by_mass[2], from_mass * top_p)
        to_mass = tl.minimum(by_mass[4], limit + more.to(tl.float64) * UNIT)
    beyond = beyond | (known & (masses > u * to_mass))
    drawn = _between(inside & (masses <= u * from_mass), beyond, bounds, masses, counts)
    return by_rank, by_mass, drawn, least


@jit
def _ranks(row, listed, some, at, count, vocabulary, BLOCK: tl.constexpr):
    """Logits of a block and their ranks: for the tokens in `listed` if `some`, else for all
    tokens.
    """
    i = at + tl.arange(0, BLOCK)
    token = tl.load(listed + i, mask=i < tl.where(some, count, 0), other=0)
    token = tl.where(some, token, i)
    logit = read_logits(row, token, (i < count) & (token < vocabulary))
    return logit, rank_of(key_of(logit), token)


@jit
def _above(source, bounds, high, rule, CAP: tl.constexpr, BLOCK: tl.constexpr):
    """For each of `bounds`: mass and count of the logits at or above it and below the
    rank `high`.
    """
    row, listed, some, count, vocabulary = source
    most, scale, softcap = rule
    masses = tl.zeros([16, BLOCK], tl.int64)
    counts = tl.zeros([16, BLOCK], tl.int32)
    for at in range(0, count, BLOCK):
        logit, rank = _ranks(row, listed, some, at, count, vocabulary, BLOCK)
        weight = (weight_of(logit, most, scale, softcap, CAP) * UNIT).to(tl.int64)
        reached = (rank[None, :] >= bounds[:, None]) & (rank < high)[None, :]
        masses += tl.where(reached, weight[None, :], 0)
        counts += reached.to(tl.int32)
    return tl.sum(masses, 1), tl.sum(counts, 1)


@jit
def find(
    source,
    high,
    low,
    mass,
    count,
    wanted,
    rule,
    COUNT: tl.constexpr,
    STRICT: tl.constexpr,
    CAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find a logit among the ranks from `low` to below `high`: the first at which the mass (with
    COUNT, the count) reaches `wanted`, or with STRICT exceeds it; if none does, the last one with a
    weight. Returns two ranks with only this logit between them, and the mass at or above the lower
    one. `mass` and `count` are totals at or above `high`.
    """
    j = tl.arange(0, 16)
    reached = mass
    more = wanted.to(tl.int32) * 0 + 2
    while more > 1:
        step = ((high - low) >> 4) + 1
        masses, counts = _above(source, low + j * step, high, rule, CAP, BLOCK)
        of = (counts + count) if COUNT else (masses + mass)
        enough = of > wanted if STRICT else of >= wanted
        enough = enough | (of == tl.max(of, 0))
        last = tl.max(tl.where(enough, j, 0), 0)
        reached = mass + tl.sum(tl.where(j == last, masses, 0), 0)
        more = tl.sum(tl.where(j == last, counts, 0), 0)
        more -= tl.sum(tl.where(j == last + 1, counts, 0), 0)
        mass += tl.sum(tl.where(j == last + 1, masses, 0), 0)
        count += tl.sum(tl.where(j == last + 1, counts, 0), 0)
        low += last * step
        high = tl.minimum(high, low + step)
    return high, low, reached


@jit
def token_between(source, high, low, BLOCK: tl.constexpr):
    """The first token with a rank from `low` to below `high`; -1 if there is none."""
    row, listed, some, count, vocabulary = source
    found = tl.zeros([BLOCK], tl.int64)
    for at in range(0, count, BLOCK):
        _, rank = _ranks(row, listed, some, at, count, vocabulary, BLOCK)
        found = tl.maximum(found, tl.where((rank >= low) & (rank < high), rank, 0))
    rank = tl.max(found, 0)
    return tl.where(rank > 0, 0x7FFFFFFF - (rank & 0x7FFFFFFF), -1).to(tl.int32)
