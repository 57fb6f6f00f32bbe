"""Frames to bytes and back: length, type, body. Nothing here does IO."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Generic, TypeVar

from penstock.core import (
    InvalidValueError,
    KvCommand,
    KvReply,
    Request,
    SamplingParams,
    TierKinds,
    TierReport,
)
from penstock.wire.errors import FrameError
from penstock.wire.fields import F64, U8, U16, U32, FieldReader, list_bytes, sized, text
from penstock.wire.frames import (
    WIRE_VERSION,
    Cancel,
    EngineFrame,
    Fatal,
    FrontFrame,
    Hello,
    Ready,
    Shutdown,
    Stage,
    Step,
)
from penstock.wire.step import decode_step, encode_step
from penstock.wire.tiers import (
    decode_command,
    decode_reply,
    decode_report,
    encode_command,
    encode_reply,
    encode_report,
)

MAX_FRAME_BYTES = 64 << 20
"""The most bytes that may follow a frame's length."""

_HELLO, _STAGE, _READY, _FATAL = 0x01, 0x02, 0x03, 0x04
_STEP, _TIERS, _KV_REPLY = 0x20, 0x21, 0x22
_ADD, _CANCEL, _SHUTDOWN, _KV = 0x10, 0x11, 0x12, 0x13
_MAGIC = b"PSTK"
_PREFIX = Struct("<IB")
_HELLO_BODY = Struct("<4sHI")
_READY_LIMITS = Struct("<IIIIIIQI")
_ADD_NUMBERS = Struct("<IIfifQIhhB")
_ADD_OFFSETS = {
    "max_tokens": 0,
    "min_tokens": 4,
    "temperature": 8,
    "top_k": 12,
    "top_p": 16,
    "logprobs": 32,
    "prompt_logprobs": 34,
    "flags": 36,
}
_IGNORE_EOS, _SKIP_PREFIX_CACHE = 1, 2
_ALL_KINDS = int(TierKinds.RAM | TierKinds.DISK | TierKinds.REMOTE)

F = TypeVar("F")


def encode(frame: EngineFrame | FrontFrame) -> bytes:
    """The bytes of `frame`, with its length. Raises FrameError when it is longer than a frame may
    be.
    """
    kind, encode_body = _ENCODERS[type(frame)]
    body: bytes = encode_body(frame)
    length = len(body) + 1
    if length > MAX_FRAME_BYTES:
        name = type(frame).__name__.upper()
        raise FrameError(name, "length", 0, f"{length} bytes, a frame has 1 to {MAX_FRAME_BYTES}")
    return _PREFIX.pack(length, kind) + body


def decode_engine_frame(kind: int, body: bytes) -> EngineFrame:
    """What the engine said. Raises FrameError."""
    return _decode(_ENGINE_DECODERS, kind, body)


def decode_front_frame(kind: int, body: bytes) -> FrontFrame:
    """What the front door said; an ADD is a `Request` whose `arrived` is 0. Raises FrameError."""
    return _decode(_FRONT_DECODERS, kind, body)


def _decode(
    decoders: dict[int, tuple[str, Callable[[FieldReader], F]]], kind: int, body: bytes
) -> F:
    if kind not in decoders:
        raise FrameError("unknown", "type", 0, f"{kind:#04x} is not a frame type of this direction")
    name, decode_body = decoders[kind]
    fields = FieldReader(name, body)
    frame = decode_body(fields)
    fields.end()
    return frame


class FrameReader(Generic[F]):
    """Cuts a byte stream into frames. Holds the bytes that arrived and nothing more."""

    def __init__(self, decode: Callable[[int, bytes], F]) -> None:
        self._decode = decode
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[F]:
        """The frames that `data` completes. After a FrameError the stream cannot be read on: close
        it.
        """
        self._buffer += data
        frames: list[F] = []
        start = 0
        while (end := self._frame_end(start)) is not None:
            kind = self._buffer[start + 4]
            frames.append(self._decode(kind, bytes(self._buffer[start + 5 : end])))
            start = end
        del self._buffer[:start]
        return frames

    def _frame_end(self, start: int) -> int | None:
        """Where the frame at `start` ends, or None while it is not all there."""
        if len(self._buffer) - start < U32.size:
            return None
        (length,) = U32.unpack_from(self._buffer, start)
        if not 1 <= length <= MAX_FRAME_BYTES:
            raise FrameError(
                "unknown", "length", 0, f"{length} bytes, a frame has 1 to {MAX_FRAME_BYTES}"
            )
        end = start + U32.size + int(length)
        return end if end <= len(self._buffer) else None


def _encode_hello(frame: Hello) -> bytes:
    return _HELLO_BODY.pack(_MAGIC, frame.wire_version, frame.pid)


def _decode_hello(fields: FieldReader) -> Hello:
    magic = fields.take("magic", len(_MAGIC))
    if magic != _MAGIC:
        raise fields.error(
            "magic", f"{magic!r} instead of PSTK: the peer does not speak this protocol", back=4
        )
    version = fields.number("version", U16)
    if version != WIRE_VERSION:
        problem = f"the peer speaks wire version {version}, this side {WIRE_VERSION}"
        raise fields.error(
            "version", f"{problem}: install the same Penstock release on both sides", back=2
        )
    return Hello(fields.number("pid", U32), version)


def _encode_stage(frame: Stage) -> bytes:
    return text(frame.name) + F64.pack(frame.seconds) + text(frame.detail)


def _decode_stage(fields: FieldReader) -> Stage:
    return Stage(fields.text("name"), fields.number("seconds", F64), fields.text("detail"))


def _encode_ready(frame: Ready) -> bytes:
    if len(frame.cache_identity) != 32:
        raise InvalidValueError("cache_identity", frame.cache_identity, "32 bytes")
    limits = _READY_LIMITS.pack(
        frame.max_model_len,
        frame.max_num_seqs,
        frame.max_num_batched_tokens,
        frame.max_queue,
        frame.block_size,
        frame.num_blocks,
        frame.kv_bytes,
        frame.vocab_size,
    )
    names = text(frame.numerics) + text(frame.isa)
    tail = names + U32.pack(frame.threads) + U8.pack(frame.kv_tiers)
    return limits + list_bytes("I", frame.eos_token_ids) + frame.cache_identity + tail


def _decode_ready(fields: FieldReader) -> Ready:
    limits = fields.unpack("max_model_len to vocab_size", _READY_LIMITS)
    identity: tuple[Any, ...] = (
        tuple(fields.list("eos_token_ids", "I")),
        fields.take("cache identity", 32),
        fields.text("numerics"),
        fields.text("isa"),
        fields.number("threads", U32),
        _decode_kinds(fields),
    )
    return Ready(*limits, *identity)


def _decode_kinds(fields: FieldReader) -> TierKinds:
    bits = fields.number("kv_tiers", U8)
    if bits > _ALL_KINDS:
        raise fields.error("kv_tiers", f"{bits} is not allowed, only 0 to {_ALL_KINDS}", back=1)
    return TierKinds(bits)


def _encode_fatal(frame: Fatal) -> bytes:
    return text(frame.message)


def _decode_fatal(fields: FieldReader) -> Fatal:
    return Fatal(fields.text("message"))


def _encode_add(frame: Request) -> bytes:
    params = frame.params
    skip = 0 if frame.read_prefix_cache else _SKIP_PREFIX_CACHE
    numbers = _ADD_NUMBERS.pack(
        params.max_tokens,
        params.min_tokens,
        params.temperature,
        params.top_k,
        params.top_p,
        params.seed,
        params.choice,
        params.logprobs,
        params.prompt_logprobs,
        skip | (_IGNORE_EOS if params.ignore_eos else 0),
    )
    head = frame.id.to_bytes(8, "little") + list_bytes("I", frame.prompt)
    return head + numbers + list_bytes("I", params.stop_token_ids) + sized(frame.cache_salt)


def _decode_add(fields: FieldReader) -> Request:
    request_id = int.from_bytes(fields.take("id", 8), "little")
    prompt = fields.list("prompt", "i")
    if not prompt or min(prompt) < 0:
        problem = (
            "a token id above 2147483647 is not allowed"
            if prompt
            else "at least one token is needed"
        )
        raise fields.error("prompt", problem, back=4 * len(prompt) + 4)
    numbers_at = fields.offset
    *numbers, flags = fields.unpack("max_tokens to flags", _ADD_NUMBERS)
    if flags & ~(_IGNORE_EOS | _SKIP_PREFIX_CACHE):
        raise fields.error("flags", f"{flags} is not allowed, only 0 to 3", back=1)
    stops: tuple[Any, ...] = (bool(flags & _IGNORE_EOS), tuple(fields.list("stop_token_ids", "I")))
    cache_salt = fields.sized("cache_salt")
    try:
        params = SamplingParams(*numbers, *stops)
    except InvalidValueError as error:
        raise FrameError(
            "ADD", error.field, numbers_at + _ADD_OFFSETS[error.field], str(error)
        ) from None
    skip = bool(flags & _SKIP_PREFIX_CACHE)
    return Request(request_id, prompt, params, read_prefix_cache=not skip, cache_salt=cache_salt)


def _encode_cancel(frame: Cancel) -> bytes:
    return list_bytes("Q", frame.ids)


def _decode_cancel(fields: FieldReader) -> Cancel:
    return Cancel(tuple(fields.list("ids", "Q")))


_ENCODERS: dict[type, tuple[int, Callable[..., bytes]]] = {
    Hello: (_HELLO, _encode_hello),
    Stage: (_STAGE, _encode_stage),
    Ready: (_READY, _encode_ready),
    Fatal: (_FATAL, _encode_fatal),
    Step: (_STEP, encode_step),
    TierReport: (_TIERS, encode_report),
    KvReply: (_KV_REPLY, encode_reply),
    Request: (_ADD, _encode_add),
    Cancel: (_CANCEL, _encode_cancel),
    Shutdown: (_SHUTDOWN, lambda _: b""),
    KvCommand: (_KV, encode_command),
}

_ENGINE_DECODERS: dict[int, tuple[str, Callable[[FieldReader], EngineFrame]]] = {
    _HELLO: ("HELLO", _decode_hello),
    _STAGE: ("STAGE", _decode_stage),
    _READY: ("READY", _decode_ready),
    _FATAL: ("FATAL", _decode_fatal),
    _STEP: ("STEP", decode_step),
    _TIERS: ("TIERS", decode_report),
    _KV_REPLY: ("KV_REPLY", decode_reply),
}

_FRONT_DECODERS: dict[int, tuple[str, Callable[[FieldReader], FrontFrame]]] = {
    _ADD: ("ADD", _decode_add),
    _CANCEL: ("CANCEL", _decode_cancel),
    _SHUTDOWN: ("SHUTDOWN", lambda _: Shutdown()),
    _KV: ("KV", decode_command),
}
