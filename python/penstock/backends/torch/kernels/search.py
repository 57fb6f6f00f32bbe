"""Where a row of logits in falling order is cut, and the token at a place of it, without a sort.
Functions of the kernels of `sample.py` and `narrow.py`.

The order is that of a sort: by falling logits, equal ones by their ids. A *rank* is a whole number
that grows with it from the end: the key of the logit above 31 bits of the id. Logits are compared
as they are; their soft cap, which keeps the order, is in their weights alone. Sums of weights are
whole numbers, in units of 2**-44 of the largest weight: no order of additions changes them.
"""

from __future__ import annotations

from penstock.backends.torch.kernels.attention import capped
from penstock.backends.torch.kernels.language import constant, jit, tl

UNIT = constant(float(1 << 44))
BOTTOM = constant(0x0080_0000 << 31)
"""All finite logits have at least this rank."""
TOP = constant(0xFF80_0001 << 31)
"""No logit has this rank."""


@jit
def read_logits(row, token, known):
    """Logits, and minus infinity for what is none."""
    logit = tl.load(row + token, mask=known, other=float("-inf")).to(tl.float32)
    return tl.where(logit == logit, logit, float("-inf"))


@jit
def key_of(logit):
    """Whole numbers in the order of the logits: zero and minus zero are one."""
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
    """Weight next to that of the largest logit."""
    weight = tl.exp((_value_of(logit, softcap, CAP) - _value_of(most, softcap, CAP)) * scale)
    return tl.where(logit > float("-inf"), weight, 0.0)


@jit
def least_of(min_p, most, scale, softcap, CAP: tl.constexpr):
    """The least logit of a weight of `min_p` or more."""
    least = _value_of(most, softcap, CAP) + tl.log(min_p) / scale
    if CAP:
        share = least / softcap
        inside = tl.maximum(share, -0.999999)
        least = softcap * 0.5 * tl.log((1.0 + inside) / (1.0 - inside))
        least = tl.where(share > -0.999999, least, float("-inf"))
    return tl.minimum(least, most)


@jit
def _between(inside, beyond, bounds, masses, counts):
    """The lowest bound inside of a cut, and the highest beyond it, with mass and count from each
    on.
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
    """For the cut by top-k and min-p, for that by top-p, and for the token that is drawn: the two
    of `bounds` between which it is, as `_between` returns them.

    `masses` and `counts` are those of all logits from each rank of `bounds` on; a bound of 0 is
    none. A cut that follows from one that is not known yet is between the ends of that.
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
        # Less than a token more than the limit.
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
    """Logits of a block of those in `listed`, or of all where not `some`, and their ranks."""
    i = at + tl.arange(0, BLOCK)
    token = tl.load(listed + i, mask=i < tl.where(some, count, 0), other=0)
    token = tl.where(some, token, i)
    logit = read_logits(row, token, (i < count) & (token < vocabulary))
    return logit, rank_of(key_of(logit), token)


@jit
def _above(source, bounds, high, rule, CAP: tl.constexpr, BLOCK: tl.constexpr):
    """Mass and count of the logits below the rank `high` from each of `bounds` on."""
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
    """Two ranks with one logit between them, and the mass from the lower one on: the first logit
    with which the mass, or the count, is `wanted`, or above it where STRICT, of those from the rank
    `low` on and below `high`; the last with a weight where none is. `mass` and `count` are those
    from `high` on.
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
    """The first token whose rank is from `low` on and below `high`; -1 where there is none."""
    row, listed, some, count, vocabulary = source
    found = tl.zeros([BLOCK], tl.int64)
    for at in range(0, count, BLOCK):
        _, rank = _ranks(row, listed, some, at, count, vocabulary, BLOCK)
        found = tl.maximum(found, tl.where((rank >= low) & (rank < high), rank, 0))
    rank = tl.max(found, 0)
    return tl.where(rank > 0, 0x7FFFFFFF - (rank & 0x7FFFFFFF), -1).to(tl.int32)
