"""Frames of any content survive; bytes of any content are read, or refused with a CodecError."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._native import FrameReader, decode_sampling, encode_frame, encode_sampling
from penstock.core import (
    CodecError,
    EngineStats,
    GenerationParams,
    KvAction,
    KvCommand,
    KvOutcome,
    KvReply,
    Pooler,
    Request,
    StepOutputs,
    TierKinds,
    TierTokens,
)
from penstock.engine.frontend import (
    Cancel,
    EngineFrame,
    Fatal,
    FrontFrame,
    Hello,
    Ready,
    Shutdown,
    Stage,
    Step,
    Tiers,
)
from tests.fakes.sampling import encode

MAX_FRAME_BYTES = 64 << 20
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
F32 = st.floats(width=32, allow_nan=False)
ROWS = st.lists(
    st.tuples(F32, U32, st.lists(st.tuples(U32, F32), max_size=3)), min_size=1, max_size=3
)

VECTORS = st.lists(F32, min_size=1, max_size=4).map(lambda numbers: array("f", numbers).tobytes())


@st.composite
def step_outputs(draw: st.DrawFn) -> StepOutputs:
    n = draw(st.integers(0, 6))

    def column(typecode: str, items: st.SearchStrategy[int]) -> array[int]:
        return array(typecode, draw(st.lists(items, min_size=n, max_size=n)))

    counts = column("H", st.integers(0, 4))
    cached_tokens = column("I", U32)
    total = sum(counts)
    rows = st.integers(0, max(n - 1, 0))
    return StepOutputs(
        ids=column("Q", U64),
        finish=column("B", st.integers(0, 5)),
        stop_tokens=column("i", st.integers(-1, 2**31 - 1)),
        cached_tokens=cached_tokens,
        queue_us=column("I", U32),
        counts=counts,
        tokens=array("I", draw(st.lists(U32, min_size=total, max_size=total))),
        logprobs=draw(st.dictionaries(rows, ROWS, max_size=n)),
        prompt_logprobs=draw(st.dictionaries(rows, ROWS, max_size=n)),
        errors=draw(st.dictionaries(rows, st.text(), max_size=n)),
        tier_tokens={
            row: TierTokens(count // 2, 0, count // 4)
            for row, count in enumerate(cached_tokens)
            if count >= 2
        },
        vectors=draw(st.dictionaries(rows, VECTORS, max_size=n)),
    )


SECONDS = st.floats(0, 1e9)
STATS = st.builds(EngineStats, U32, U32, U32, U32, U64, U64, U64, U64, SECONDS, SECONDS)
STEPS = st.builds(Step, U64, STATS, U32, F32, step_outputs())
PARAMS = st.builds(
    GenerationParams,
    max_tokens=st.integers(5, 2**31 - 1),
    min_tokens=st.integers(0, 5),
    prompt_logprobs=st.integers(-1, 20),
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(U32, max_size=4).map(tuple),
)
SAMPLING = st.builds(
    encode_sampling,
    temperature=st.floats(0, 100, width=32),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(2**-20, 1, width=32),
    seed=U64,
    choice=U32,
    logprobs=st.none() | st.integers(0, 20),
)
PROMPTS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20).map(
    lambda ids: array("i", ids)
)
REQUESTS = st.builds(
    Request,
    id=U64,
    prompt=PROMPTS,
    params=PARAMS,
    sampling=SAMPLING,
    read_prefix_cache=st.booleans(),
    pool=st.booleans(),
    cache_salt=st.binary(max_size=9),
    grammar=st.sampled_from([b"", b"\x02a+"]),
    adapter=U32,
    priority=st.integers(-(2**31), 2**31 - 1),
).flatmap(
    lambda request: st.builds(
        replace,
        st.just(request),
        resumed=st.integers(0, min(len(request.prompt), request.params.max_tokens) - 1),
    )
)


SALTS = st.binary(min_size=1, max_size=9)
COMMANDS = st.one_of(
    st.builds(KvCommand, U64, st.sampled_from([KvAction.CLEAR_ALL, KvAction.REPORT])),
    st.builds(KvCommand, U64, st.just(KvAction.CLEAR_SALT), cache_salt=SALTS),
    st.builds(
        KvCommand,
        U64,
        st.sampled_from([KvAction.CLEAR_PREFIX, KvAction.PIN, KvAction.UNPIN]),
        PROMPTS,
        st.just(b"") | SALTS,
    ),
)


FRONT_FRAMES = st.one_of(
    REQUESTS, COMMANDS, st.builds(Cancel, st.lists(U64, max_size=5)), st.just(Shutdown())
)
READY = st.builds(
    Ready,
    *[U32] * 6,
    U64,
    U32,
    st.lists(U32, max_size=4),
    st.binary(min_size=32, max_size=32),
    st.text(),
    st.text(),
    U32,
    st.integers(0, 7).map(TierKinds),
    st.builds(Pooler, st.integers(0, 3), U32, st.booleans()),
)
ENGINE_FRAMES = st.one_of(
    STEPS,
    READY,
    st.builds(Hello, U32),
    st.builds(Stage, st.text(), st.floats(allow_nan=False), st.text()),
    st.builds(Fatal, st.text()),
    st.builds(Tiers, st.text()),
    st.builds(KvReply, U64, st.sampled_from(KvOutcome), st.text()),
)


def front(data: bytes) -> list[FrontFrame]:
    return FrameReader().feed(data)


def engine(data: bytes) -> list[EngineFrame]:
    return FrameReader(of_engine=True).feed(data)


def framed(kind: int, body: bytes) -> bytes:
    return (len(body) + 1).to_bytes(4, "little") + bytes([kind]) + body


@given(ENGINE_FRAMES)
def test_engine_frames_survive(frame: EngineFrame) -> None:
    assert engine(encode_frame(frame)) == [frame]


@given(FRONT_FRAMES)
def test_front_frames_survive(frame: FrontFrame) -> None:
    assert front(encode_frame(frame)) == [frame]


@given(REQUESTS, st.floats(0, 1e9))
def test_requests_are_stamped(request: Request, now: float) -> None:
    assert FrameReader().feed(encode_frame(request), now) == [replace(request, arrived=now)]


@given(st.lists(ENGINE_FRAMES, max_size=4), st.randoms())
def test_frames_survive_any_cut(frames: list[EngineFrame], cuts: random.Random) -> None:
    data = b"".join(map(encode_frame, frames))
    reader = FrameReader(of_engine=True)
    read: list[EngineFrame] = []
    while data:
        size = cuts.randint(1, 50)
        read += reader.feed(data[:size])
        data = data[size:]
    assert read == frames


@given(st.integers(0, 255), st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(kind: int, body: bytes) -> None:
    for decode in (front, engine):
        with suppress(CodecError):
            decode(framed(kind, body))


@given(ENGINE_FRAMES, FRONT_FRAMES, st.data())
def test_a_damaged_frame_is_read_or_refused(
    sent: EngineFrame, received: FrontFrame, data: st.DataObject
) -> None:
    decoders: tuple[Callable[[bytes], object], ...] = (engine, front)
    for frame, decode in zip((sent, received), decoders, strict=True):
        damaged = bytearray(encode_frame(frame))
        at = data.draw(st.integers(4, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
        with suppress(CodecError):
            decode(bytes(damaged))


@given(STEPS, st.data())
def test_a_shortened_or_lengthened_frame_is_refused(step: Step, data: st.DataObject) -> None:
    body = encode_frame(step)[5:]
    with pytest.raises(CodecError):
        engine(framed(0x20, body[: data.draw(st.integers(0, len(body) - 1))]))
    with pytest.raises(CodecError, match="1 bytes follow the last field"):
        engine(framed(0x20, body + b"\0"))


def test_sampling_parameters_come_back_and_are_checked() -> None:
    params = {"temperature": 0.5, "top_k": 3, "top_p": 0.25, "seed": 2**64 - 1, "choice": 7}
    data = encode_sampling(**params, logprobs=None)  # type: ignore[arg-type]
    assert data == encode(**params)  # type: ignore[arg-type]
    assert decode_sampling(data).items() >= params.items()
    with pytest.raises(CodecError, match="field top_p at byte 9"):
        decode_sampling(encode(top_p=0.0))


def test_errors_name_frame_field_and_offset() -> None:
    body = bytearray(
        encode_frame(Request(1, array("i", [1, 2]), GenerationParams(), sampling=encode()))[5:]
    )
    body[24:28] = bytes(4)
    with pytest.raises(
        CodecError, match="ADD frame, field max_tokens at byte 24: 0 is not allowed"
    ):
        front(framed(0x10, bytes(body)))


def test_another_version_is_refused_before_the_rest_is_read() -> None:
    body = encode_frame(Hello(pid=1, wire_version=1))[5:]
    with pytest.raises(CodecError, match="field version at byte 4: the peer speaks wire version 1"):
        engine(framed(0x01, body[:6]))


def test_columns_of_different_length_are_not_sent() -> None:
    outputs = StepOutputs(ids=array("Q", [1]))
    with pytest.raises(ValueError, match="columns of outputs differ in length"):
        encode_frame(Step(1, EngineStats(), outputs=outputs))


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1])
def test_lengths_outside_the_limit_are_refused(length: int) -> None:
    with pytest.raises(CodecError, match=f"{length} bytes, a frame has 1 to {MAX_FRAME_BYTES}"):
        front(length.to_bytes(4, "little"))


def test_a_frame_over_the_limit_is_not_sent() -> None:
    with pytest.raises(CodecError, match="FATAL frame, field length"):
        encode_frame(Fatal("x" * MAX_FRAME_BYTES))
