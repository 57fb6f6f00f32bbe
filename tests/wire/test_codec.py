"""Frames of any content survive; bytes of any content are read or refused with a FrameError."""

from __future__ import annotations

import random
from array import array
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.core import (
    Decisions,
    Durations,
    EngineStats,
    InvalidValueError,
    KvAction,
    KvCommand,
    KvOutcome,
    KvReply,
    Request,
    SamplingParams,
    StepOutputs,
    TierKind,
    TierReport,
    TierState,
    TierStats,
    TierTokens,
)
from penstock.wire import (
    MAX_FRAME_BYTES,
    Cancel,
    Fatal,
    FrameError,
    FrameReader,
    Hello,
    Stage,
    Step,
    decode_engine_frame,
    decode_front_frame,
    encode,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
F32 = st.floats(width=32, allow_nan=False)
ROWS = st.lists(
    st.tuples(F32, U32, st.lists(st.tuples(U32, F32), max_size=3)), min_size=1, max_size=3
)


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
            row: TierTokens(count // 2, 0, count // 4) for row, count in enumerate(cached_tokens)
        },
    )


STATS = st.builds(EngineStats, U32, U32, U32, U32, U64, U64, U64)
STEPS = st.builds(Step, U64, STATS, U32, F32, step_outputs())
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(5, 2**31 - 1),
    min_tokens=st.integers(0, 5),
    temperature=st.floats(0, 100, width=32),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(2**-20, 1, width=32),
    seed=U64,
    choice=U32,
    logprobs=st.integers(-1, 20),
    prompt_logprobs=st.integers(-1, 20),
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(U32, max_size=4).map(tuple),
)
PROMPTS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20).map(
    lambda ids: array("i", ids)
)
REQUESTS = st.builds(
    Request,
    id=U64,
    prompt=PROMPTS,
    params=PARAMS,
    read_prefix_cache=st.booleans(),
    cache_salt=st.binary(max_size=9),
)


COUNTS = st.lists(U64, min_size=17, max_size=17).map(lambda counts: array("Q", counts))
DURATIONS = st.builds(Durations, st.floats(0, 1e9), COUNTS)
TIERS = st.builds(
    TierStats,
    st.text(max_size=9),
    st.sampled_from(TierKind),
    st.sampled_from(TierState),
    *[U64] * 11,
    DURATIONS,
    DURATIONS,
)
REPORTS = st.builds(
    TierReport,
    st.lists(TIERS, max_size=3),
    U64,
    st.builds(Decisions, U64, U64, U64),
    U32,
    st.lists(st.tuples(U64, st.floats(0, 1)), max_size=3),
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


@given(REPORTS | st.builds(KvReply, U64, st.sampled_from(KvOutcome), st.text()))
def test_reports_and_replies_survive(frame: TierReport | KvReply) -> None:
    data = encode(frame)
    assert decode_engine_frame(data[4], data[5:]) == frame


@given(COMMANDS)
def test_commands_survive(command: KvCommand) -> None:
    data = encode(command)
    assert decode_front_frame(data[4], data[5:]) == command


@given(REPORTS, st.data())
def test_a_damaged_report_is_read_or_refused(report: TierReport, data: st.DataObject) -> None:
    body = bytearray(encode(report)[5:])
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FrameError):
        decode_engine_frame(0x21, bytes(body))
    with pytest.raises(FrameError):
        decode_engine_frame(0x21, bytes(encode(report)[5:-1]))


def test_more_tokens_from_tiers_than_cached_ones_are_refused() -> None:
    outputs = StepOutputs(*(array(code, [48]) for code in "QBiIIH"), array("I", range(48)))
    outputs.tier_tokens[0] = TierTokens(32, 0, 17)
    outputs.finish[0], outputs.stop_tokens[0] = 0, -1
    body = encode(Step(1, EngineStats(), outputs=outputs))[5:]
    with pytest.raises(
        FrameError, match=f"tier tokens at byte {len(body) - 12}: 49 is not allowed"
    ):
        decode_engine_frame(0x20, body)


def test_a_tier_outside_the_ranges_is_refused_by_name() -> None:
    body = encode(TierReport([TierStats("ram", TierKind.RAM)], miss_curve=[(1, 0.5)]))[5:]
    kind_at = 36 + 4 + 4 + 3
    for at, damage, field in [
        (kind_at, b"\x04", "tier kind"),
        (kind_at + 1, b"\x03", "tier state"),
        (kind_at + 2 + 88, b"\0\0\0\0\0\0\xf0\x7f", "load seconds"),
        (len(body) - 8, b"\0\0\0\0\0\0\xf8\x7f", "curve ratio"),
    ]:
        with pytest.raises(FrameError) as caught:
            decode_engine_frame(0x21, body[:at] + damage + body[at + len(damage) :])
        assert (caught.value.field, caught.value.offset) == (field, at)


@pytest.mark.parametrize(
    ("action", "tokens", "salt", "field", "offset"),
    [
        (1, [5], b"", "tokens", 9),
        (1, [], b"s", "cache_salt", 13),
        (2, [], b"", "cache_salt", 13),
        (2, [5], b"s", "tokens", 9),
        (3, [], b"s", "tokens", 9),
        (4, [], b"", "tokens", 9),
        (5, [-1], b"", "tokens", 13),
        (6, [5], b"", "tokens", 9),
        (6, [], b"s", "cache_salt", 13),
        (0, [], b"", "action", 8),
        (7, [], b"", "action", 8),
    ],
)
def test_a_command_with_the_wrong_fields_is_refused(
    action: int, tokens: list[int], salt: bytes, field: str, offset: int
) -> None:
    head = (7).to_bytes(8, "little") + bytes([action]) + len(tokens).to_bytes(4, "little")
    body = head + array("i", tokens).tobytes() + len(salt).to_bytes(4, "little") + salt
    with pytest.raises(FrameError) as caught:
        decode_front_frame(0x13, body)
    assert (caught.value.frame, caught.value.field, caught.value.offset) == ("KV", field, offset)
    if 1 <= action <= 6 and tokens != [-1]:
        with pytest.raises(InvalidValueError, match=field):
            KvCommand(7, KvAction(action), array("i", tokens), salt)


@given(STEPS)
def test_steps_survive(step: Step) -> None:
    data = encode(step)
    assert decode_engine_frame(data[4], data[5:]) == step


@given(REQUESTS)
def test_requests_survive(request: Request) -> None:
    data = encode(request)
    assert decode_front_frame(data[4], data[5:]) == request


@given(
    st.lists(
        STEPS | st.builds(Stage, st.text(), st.floats(allow_nan=False), st.text()), max_size=4
    ),
    st.randoms(),
)
def test_frames_survive_any_cut(frames: list[Step | Stage], cuts: random.Random) -> None:
    data = b"".join(map(encode, frames))
    reader = FrameReader(decode_engine_frame)
    read = []
    while data:
        size = cuts.randint(1, 50)
        read += reader.feed(data[:size])
        data = data[size:]
    assert read == frames


@given(
    st.sampled_from([1, 2, 3, 4, 0x10, 0x11, 0x12, 0x13, 0x20, 0x21, 0x22, 0x77]),
    st.binary(max_size=300),
)
def test_any_bytes_are_read_or_refused(kind: int, body: bytes) -> None:
    for decode in (decode_engine_frame, decode_front_frame):
        with suppress(FrameError):
            decode(kind, body)


@given(STEPS, st.data())
def test_a_damaged_step_is_read_or_refused(step: Step, data: st.DataObject) -> None:
    body = bytearray(encode(step)[5:])
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FrameError):
        decode_engine_frame(0x20, bytes(body))


@given(STEPS, st.data())
def test_a_shortened_or_lengthened_step_is_refused(step: Step, data: st.DataObject) -> None:
    body = encode(step)[5:]
    with pytest.raises(FrameError):
        decode_engine_frame(0x20, body[: data.draw(st.integers(0, len(body) - 1))])
    with pytest.raises(FrameError, match="1 bytes follow the last field"):
        decode_engine_frame(0x20, body + b"\0")


REQUEST = Request(1, array("i", [1, 2]), SamplingParams())
ADD = encode(REQUEST)[5:]


@pytest.mark.parametrize(
    ("field", "offset", "damage"),
    [
        ("prompt", 8, bytes(4)),
        ("prompt", 8, (2).to_bytes(4, "little") + b"\xff\xff\xff\xff"),
        ("max_tokens", 20, bytes(4)),
        ("min_tokens", 24, b"\x00\x00\x00\x01"),
        ("temperature", 28, b"\x00\x00\xc0\x7f"),
        ("top_k", 32, b"\xff\xff\xff\xff"),
        ("top_p", 36, bytes(4)),
        ("logprobs", 52, b"\x15\x00"),
        ("prompt_logprobs", 54, b"\xfe\xff"),
        ("flags", 56, b"\x04"),
    ],
)
def test_a_request_outside_the_ranges_is_refused_by_name(
    field: str, offset: int, damage: bytes
) -> None:
    body = ADD[:offset] + damage + ADD[offset + len(damage) :]
    with pytest.raises(FrameError) as caught:
        decode_front_frame(0x10, body)
    assert (caught.value.frame, caught.value.field, caught.value.offset) == ("ADD", field, offset)


def test_another_version_is_refused_before_the_rest_is_read() -> None:
    body = encode(replace(Hello(pid=1), wire_version=1))[5:]
    with pytest.raises(FrameError, match="field version at byte 4: the peer speaks wire version 1"):
        decode_engine_frame(0x01, body[:6])


def test_absurd_counts_are_refused() -> None:
    with pytest.raises(
        FrameError, match="field ids at byte 4: 34359738360 bytes are needed, 8 are left"
    ):
        decode_front_frame(0x11, b"\xff" * 4 + bytes(8))


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1])
def test_lengths_outside_the_limit_are_refused(length: int) -> None:
    with pytest.raises(FrameError, match=f"{length} bytes, a frame has 1 to {MAX_FRAME_BYTES}"):
        FrameReader(decode_engine_frame).feed(length.to_bytes(4, "little"))


def test_a_frame_over_the_limit_is_not_sent() -> None:
    with pytest.raises(FrameError, match="FATAL frame, field length"):
        encode(Fatal("x" * MAX_FRAME_BYTES))
    assert len(encode(Cancel((1,)))) == 5 + 12
