"""The body of STEP. Its columns are those of `StepOutputs`: without extras it is a few `tobytes`
calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from penstock.core import EngineStats, FinishReason, LogprobRow, StepOutputs, TierTokens
from penstock.wire.fields import U8, U32, FieldReader, column_bytes, sized
from penstock.wire.frames import Step

_HEAD = Struct("<QIIIIQQQIfI")
_ROW = Struct("<fII")
_EXTRA = Struct("<IB")
_TIER_TOKENS_ROW = Struct("<III")
_LOGPROBS, _PROMPT_LOGPROBS, _ERROR, _TIER_TOKENS = 1, 2, 3, 4
_LAST_FINISH = max(FinishReason)


def encode_step(frame: Step) -> bytes:
    stats = frame.stats
    outputs = frame.outputs
    head = _HEAD.pack(
        frame.step,
        stats.running,
        stats.waiting,
        stats.blocks_used,
        stats.blocks_total,
        stats.preemptions,
        stats.prefix_query_tokens,
        stats.prefix_hit_tokens,
        frame.batch_tokens,
        frame.step_ms,
        len(outputs),
    )
    columns = (
        outputs.ids,
        outputs.finish,
        outputs.stop_tokens,
        outputs.cached_tokens,
        outputs.queue_us,
        outputs.counts,
        outputs.tokens,
    )
    return b"".join((head, *map(column_bytes, columns), _encode_extras(outputs)))


def decode_step(fields: FieldReader) -> Step:
    step, *gauges, batch_tokens, step_ms, n = fields.unpack("step to n", _HEAD)
    outputs = _decode_columns(fields, n)
    for _ in range(fields.number("extras", U32)):
        _decode_extra(fields, outputs)
    return Step(step, EngineStats(*gauges), batch_tokens, step_ms, outputs)


def _decode_columns(fields: FieldReader, n: int) -> StepOutputs:
    ids = fields.column("request id", "Q", n)
    finish = fields.column("finish", "B", n)
    for row, code in enumerate(finish):
        if code > _LAST_FINISH:
            raise fields.error(
                "finish", f"{code} is not allowed, only 0 to {_LAST_FINISH}", back=n - row
            )
    stop_tokens = fields.column("stop_token", "i", n)
    for row, token in enumerate(stop_tokens):
        if token < -1:
            raise fields.error(
                "stop_token", f"{token} is not allowed, only -1 and more", back=4 * (n - row)
            )
    cached_tokens = fields.column("cached_tokens", "I", n)
    queue_us = fields.column("queue_us", "I", n)
    counts = fields.column("count", "H", n)
    tokens = fields.column("token ids", "I", sum(counts))
    return StepOutputs(ids, finish, stop_tokens, cached_tokens, queue_us, counts, tokens)


def _encode_extras(outputs: StepOutputs) -> bytes:
    kinds: tuple[Mapping[int, object], ...] = (
        outputs.logprobs,
        outputs.prompt_logprobs,
        outputs.errors,
        outputs.tier_tokens,
    )
    count = sum(map(len, kinds))
    if not count:
        return U32.pack(0)
    extras = [U32.pack(count)]
    for row in sorted(set().union(*kinds)):
        for kind, tables in (
            (_LOGPROBS, outputs.logprobs),
            (_PROMPT_LOGPROBS, outputs.prompt_logprobs),
        ):
            if row in tables:
                extras += (_EXTRA.pack(row, kind), sized(_encode_rows(tables[row])))
        if row in outputs.errors:
            extras += (_EXTRA.pack(row, _ERROR), sized(outputs.errors[row].encode()))
        if row in outputs.tier_tokens:
            extras += (
                _EXTRA.pack(row, _TIER_TOKENS),
                sized(_TIER_TOKENS_ROW.pack(*outputs.tier_tokens[row])),
            )
    return b"".join(extras)


def _decode_extra(fields: FieldReader, outputs: StepOutputs) -> None:
    row = fields.number("extra index", U32)
    if row >= len(outputs):
        raise fields.error(
            "extra index", f"{row} is not allowed, only indexes of outputs in this frame", back=4
        )
    kind = fields.number("extra kind", U8)
    if kind == _LOGPROBS:
        outputs.logprobs[row] = _decode_rows(fields, "logprobs")
    elif kind == _PROMPT_LOGPROBS:
        outputs.prompt_logprobs[row] = _decode_rows(fields, "prompt logprobs")
    elif kind == _ERROR:
        outputs.errors[row] = fields.text("error")
    elif kind == _TIER_TOKENS:
        outputs.tier_tokens[row] = _decode_tier_tokens(fields, outputs.cached_tokens[row])
    else:
        raise fields.error("extra kind", f"{kind} is not allowed, only 1 to 4", back=1)


def _decode_tier_tokens(fields: FieldReader, cached: int) -> TierTokens:
    payload = FieldReader("STEP tier tokens", fields.sized("tier tokens"))
    tokens = TierTokens(*payload.unpack("tokens", _TIER_TOKENS_ROW))
    payload.end()
    if sum(tokens) > cached:
        problem = f"{sum(tokens)} is not allowed, only up to cached_tokens"
        raise fields.error("tier tokens", problem, back=_TIER_TOKENS_ROW.size)
    return tokens


def _encode_rows(rows: list[LogprobRow]) -> bytes:
    parts = [U32.pack(len(rows))]
    for logprob, rank, alternatives in rows:
        parts.append(_ROW.pack(logprob, rank, len(alternatives)))
        flat = [item for pair in alternatives for item in pair]
        parts.append(_alternatives(len(alternatives)).pack(*flat))
    return b"".join(parts)


def _decode_rows(fields: FieldReader, field: str) -> list[LogprobRow]:
    payload = FieldReader("STEP " + field, fields.sized(field))
    rows: list[LogprobRow] = []
    for _ in range(payload.number("rows", U32)):
        logprob, rank, k = payload.unpack("row", _ROW)
        pairs = payload.take("alternatives", 8 * k)
        flat = _alternatives(k).unpack(pairs)
        rows.append((logprob, rank, list(zip(flat[::2], flat[1::2], strict=True))))
    payload.end()
    return rows


def _alternatives(k: int) -> Struct:
    return Struct("<" + "If" * k)
