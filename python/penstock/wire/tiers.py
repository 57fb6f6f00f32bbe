"""The bodies of TIERS, KV and KV_REPLY."""

from __future__ import annotations

import math
from array import array
from struct import Struct

from penstock.core import InvalidValueError
from penstock.core.tiers import (
    DURATION_BOUNDS,
    Decisions,
    Durations,
    KvAction,
    KvCommand,
    KvOutcome,
    KvReply,
    TierKind,
    TierReport,
    TierState,
    TierStats,
)
from penstock.wire.errors import FrameError
from penstock.wire.fields import (
    F64,
    U8,
    U32,
    U64,
    FieldReader,
    column_bytes,
    list_bytes,
    sized,
    text,
)

_HEAD = Struct("<QQQQI")
_TIER = Struct("<BBQQQQQQQQQQQ")
_POINT = Struct("<Qd")
_LAST_STATE = max(TierState)
_LAST_KIND = max(TierKind)
_LAST_OUTCOME = max(KvOutcome)
_LAST_ACTION = max(KvAction)


def encode_report(frame: TierReport) -> bytes:
    decisions = frame.decisions
    head = _HEAD.pack(
        frame.lookup_tokens, decisions.load, decisions.compute, decisions.both, frame.pinned_blocks
    )
    tiers = b"".join(map(_encode_tier, frame.tiers))
    curve = b"".join(_POINT.pack(size, ratio) for size, ratio in frame.miss_curve)
    return head + U32.pack(len(frame.tiers)) + tiers + U32.pack(len(frame.miss_curve)) + curve


def decode_report(fields: FieldReader) -> TierReport:
    lookups, load, compute, both, pinned = fields.unpack("lookup_tokens to pinned_blocks", _HEAD)
    tiers = [_decode_tier(fields) for _ in range(fields.number("tiers", U32))]
    curve = [_decode_point(fields) for _ in range(fields.number("miss_curve", U32))]
    return TierReport(tiers, lookups, Decisions(load, compute, both), pinned, curve)


def _encode_tier(tier: TierStats) -> bytes:
    numbers = _TIER.pack(
        tier.kind,
        tier.state,
        tier.used_bytes,
        tier.capacity_bytes,
        tier.hits,
        tier.misses,
        tier.hit_tokens,
        tier.loaded_bytes,
        tier.stored_bytes,
        tier.errors,
        tier.evicted_chunks,
        tier.quarantined_chunks,
        tier.dropped_stores,
    )
    return text(tier.name) + numbers + _encode_durations(tier.load) + _encode_durations(tier.store)


def _decode_tier(fields: FieldReader) -> TierStats:
    name = fields.text("tier name")
    kind, state, *numbers = fields.unpack("tier kind to dropped_stores", _TIER)
    if not 1 <= kind <= _LAST_KIND:
        problem = f"{kind} is not allowed, only 1 to {_LAST_KIND}"
        raise fields.error("tier kind", problem, back=_TIER.size)
    if state > _LAST_STATE:
        problem = f"{state} is not allowed, only 0 to {_LAST_STATE}"
        raise fields.error("tier state", problem, back=_TIER.size - 1)
    tier = TierStats(name, TierKind(kind), TierState(state), *numbers)
    tier.load = _decode_durations(fields, "load seconds")
    tier.store = _decode_durations(fields, "store seconds")
    return tier


def _encode_durations(durations: Durations) -> bytes:
    return F64.pack(durations.seconds) + column_bytes(durations.counts)


def _decode_durations(fields: FieldReader, field: str) -> Durations:
    seconds = fields.number(field, F64)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise fields.error(
            field, f"{seconds} is not allowed, only finite numbers from 0", back=F64.size
        )
    return Durations(seconds, fields.column(field, "Q", len(DURATION_BOUNDS) + 1))


def _decode_point(fields: FieldReader) -> tuple[int, float]:
    size, ratio = fields.unpack("curve", _POINT)
    if not 0 <= ratio <= 1:
        raise fields.error("curve ratio", f"{ratio} is not allowed, only 0 to 1", back=F64.size)
    return size, ratio


def encode_command(frame: KvCommand) -> bytes:
    head = U64.pack(frame.id) + U8.pack(frame.action)
    return head + list_bytes("i", frame.tokens) + sized(frame.cache_salt)


def decode_command(fields: FieldReader) -> KvCommand:
    command_id, action = fields.number("id", U64), fields.number("action", U8)
    if not 1 <= action <= _LAST_ACTION:
        raise fields.error("action", f"{action} is not allowed, only 1 to {_LAST_ACTION}", back=1)
    tokens_at = fields.offset
    tokens: array[int] = fields.list("tokens", "i")
    if tokens and min(tokens) < 0:
        raise fields.error(
            "tokens", "a token id above 2147483647 is not allowed", back=4 * len(tokens)
        )
    salt_at = fields.offset
    salt = fields.sized("cache_salt")
    try:
        return KvCommand(command_id, KvAction(action), tokens, salt)
    except InvalidValueError as error:
        offset = tokens_at if error.field == "tokens" else salt_at
        raise FrameError("KV", error.field, offset, str(error)) from None


def encode_reply(frame: KvReply) -> bytes:
    return U64.pack(frame.id) + U8.pack(frame.outcome) + text(frame.text)


def decode_reply(fields: FieldReader) -> KvReply:
    reply_id, outcome = fields.number("id", U64), fields.number("outcome", U8)
    if outcome > _LAST_OUTCOME:
        raise fields.error(
            "outcome", f"{outcome} is not allowed, only 0 to {_LAST_OUTCOME}", back=1
        )
    return KvReply(reply_id, KvOutcome(outcome), fields.text("text"))
