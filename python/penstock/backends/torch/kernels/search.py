"""A token of a row of logits of which some are cut, without a sort: what a sorted order would find
is searched for by bits of the logits. Functions of the kernels of `sample.py`.

Logits are compared as they are; their soft cap, which keeps the order, is in their weights alone.
"""

from __future__ import annotations

from penstock.backends.torch.kernels.attention import capped
from penstock.backends.torch.kernels.language import jit, tl


@jit
def read_logits(row, token, known):
    """Logits, and minus infinity for what is none."""
    logit = tl.load(row + token, mask=known, other=float("-inf")).to(tl.float32)
    return tl.where(logit == logit, logit, float("-inf"))


@jit
def key_of(logit):
    """Whole numbers in the order of the logits: zero and minus zero are one."""
    bits = (logit + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, ~bits, bits | 0x80000000)


@jit
def _logit_of(key):
    bits = tl.where(key >= 0x80000000, key ^ 0x80000000, ~key)
    return bits.to(tl.float32, bitcast=True)


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
def _above(row, least, rule, count, COUNT: tl.constexpr, CAP: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of the weights, or number, of the logits whose keys are at least each of `least`."""
    most, scale, softcap = rule
    sums = tl.zeros([16], tl.float64)
    for at in range(0, count, BLOCK):
        token = at + tl.arange(0, BLOCK)
        logit = read_logits(row, token, token < count)
        each = (token < count).to(tl.float32)
        if not COUNT:
            each = weight_of(logit, most, scale, softcap, CAP)
        reached = key_of(logit)[:, None] >= least[None, :]
        sums += tl.sum(tl.where(reached, each[:, None], 0.0), 0).to(tl.float64)
    return sums


@jit
def search(
    row,
    wanted,
    rule,
    count,
    STRICT: tl.constexpr,
    COUNT: tl.constexpr,
    CAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest key from which on the sum is at least `wanted`, or above it where STRICT; the sum
    of those above that key, and the sum from it on.
    """
    key = (wanted * 0.0).to(tl.uint32)
    step = key + (1 << 28)
    j = tl.arange(0, 16)
    above = wanted * 0.0
    reached = above
    for _ in range(8):
        sums = _above(row, key + j.to(tl.uint32) * step, rule, count, COUNT, CAP, BLOCK)
        enough = sums >= wanted
        if STRICT:
            enough = sums > wanted
        # The sums fall: the last that is enough, and none above the first that is not.
        last = tl.maximum(tl.sum(enough.to(tl.int32), 0) - 1, 0)
        reached = tl.sum(tl.where(j == last, sums, 0.0), 0)
        above = tl.where(last < 15, tl.sum(tl.where(j == last + 1, sums, 0.0), 0), above)
        key += last.to(tl.uint32) * step
        step = step >> 4
    return key, above, reached


@jit
def _index_of(row, key, nth, count, BLOCK: tl.constexpr):
    """The index of number `nth` among the logits with this key, or of the last of them."""
    found, passed = nth * 0 - 1, nth * 0
    last = found
    for at in range(0, count, BLOCK):
        token = at + tl.arange(0, BLOCK)
        logit = read_logits(row, token, token < count)
        equal = (key_of(logit) == key) & (token < count)
        number = equal.to(tl.int32)
        place = passed + tl.cumsum(number, 0) - number
        found = tl.maximum(found, tl.max(tl.where(equal & (place == nth), token, -1), 0))
        last = tl.maximum(last, tl.max(tl.where(equal, token, -1), 0))
        passed += tl.sum(number, 0)
    return tl.maximum(tl.where(found < 0, last, found), 0)


@jit
def draw_kept(
    row, u, total, top_k, top_p, min_p, rule, count, CAP: tl.constexpr, BLOCK: tl.constexpr
):
    """The index at `u` of the cumulative weights of those that are kept, by falling logits, of
    `count` logits. `total` is the sum of all weights where only `top_p` cuts.

    What is kept are the logits above a key, and the first ones of those that have it.
    """
    most, scale, softcap = rule
    one = total * 0.0 + 1.0
    # Key 0 is that of no number.
    key, equals = (one * 0.0).to(tl.uint32), one * count
    if (top_k > 0) & (top_k < count):
        wanted = one * top_k
        key, above, _ = search(row, wanted, rule, count, False, True, CAP, BLOCK)
        equals = wanted - above
    if min_p > 0:
        least = key_of(least_of(min_p, most, scale, softcap, CAP))
        equals = tl.where(least > key, one * count, equals)
        key = tl.maximum(key, least)
    if (top_k > 0) | (min_p > 0):
        steps = tl.arange(0, 16).to(tl.uint32)
        sums = _above(row, key + steps, rule, count, False, CAP, BLOCK)
        from_on = tl.sum(tl.where(tl.arange(0, 16) == 0, sums, 0.0), 0)
        above = tl.sum(tl.where(tl.arange(0, 16) == 1, sums, 0.0), 0)
        each = weight_of(_logit_of(key), most, scale, softcap, CAP).to(tl.float64)
        # Where no logit has the key, none of them is left out.
        total = tl.where(above < from_on, tl.minimum(from_on, above + equals * each), from_on)
    if top_p < 1:
        wanted = tl.maximum(total * top_p, 1e-30)
        end, above, reached = search(row, wanted, rule, count, False, False, CAP, BLOCK)
        each = weight_of(_logit_of(end), most, scale, softcap, CAP).to(tl.float64)
        needed = tl.maximum(tl.ceil((wanted - above) / each), 1.0)
        total = tl.minimum(tl.minimum(reached, above + needed * each), total)
    target = u * total
    key, above, _ = search(row, target, rule, count, True, False, CAP, BLOCK)
    each = weight_of(_logit_of(key), most, scale, softcap, CAP).to(tl.float64)
    nth = tl.floor((target - above) / each)
    # By rounding the next one may lie behind those that are kept.
    nth = tl.minimum(nth, tl.maximum(tl.ceil((total - above) / each - 1e-3) - 1.0, 0.0))
    return _index_of(row, key, tl.maximum(nth, 0.0).to(tl.int32), count, BLOCK)
