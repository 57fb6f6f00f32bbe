"""Plans, results and answers as bytes: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

from array import array
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import (
    Allocation,
    KvGroup,
    KvSpec,
    Loaded,
    Numerics,
    Registration,
    StateSpec,
    StepPlan,
    StepResult,
    WorkerFacts,
)
from penstock.core.codec import (
    CodecError,
    decode_plan,
    decode_result,
    encode_plan,
    encode_result,
    plan_bytes,
    result_bytes,
)
from penstock.executor.ranks.messages import (
    ALLOCATE,
    Computed,
    Failed,
    Ready,
    decode_allocate,
    decode_answer,
    encode_allocate,
    encode_answer,
)

I32 = st.integers(-(2**31), 2**31 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
NUMBER = st.floats(allow_nan=False, width=32)
U16 = st.integers(0, 2**16 - 1)
POOLING = st.integers(0, 2)
SLOTS = st.builds(Registration, U16, st.binary(max_size=64), I32, U32, U32, pooling=POOLING)
VECTORS = st.lists(NUMBER, max_size=4).map(lambda numbers: array("f", numbers).tobytes())
ROWS = st.lists(st.tuples(NUMBER, U32, st.lists(st.tuples(U32, NUMBER), max_size=4)), max_size=4)


def columns(size: int) -> st.SearchStrategy[array[int]]:
    return st.lists(I32, min_size=size, max_size=size).map(lambda items: array("i", items))


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    n, groups = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    tokens = draw(st.integers(0, 9))
    return StepPlan(
        step=draw(U64),
        registrations=draw(st.lists(SLOTS, max_size=3)),
        slots=draw(columns(n)),
        starts=draw(columns(n)),
        lengths=draw(columns(n)),
        sample=array("b", draw(st.lists(st.integers(-128, 127), min_size=n, max_size=n))),
        drafts=draw(st.sampled_from([0, n]).flatmap(columns)),
        tokens=draw(columns(tokens)),
        targets=draw(st.sampled_from([0, tokens]).flatmap(columns)),
        kept=draw(columns(n * groups)),
        added_offsets=draw(columns(n * groups + 1)),
        added=draw(st.integers(0, 9).flatmap(columns)),
    )


@st.composite
def results(draw: st.DrawFn) -> StepResult:
    n = draw(st.integers(0, 5))
    tables = [
        {index: draw(ROWS) for index in range(n) if draw(st.booleans())},
        {index: draw(ROWS) for index in range(n) if draw(st.booleans())},
    ]
    tokens = draw(st.integers(0, 9).flatmap(columns))
    vectors = {index: draw(VECTORS) for index in range(n) if draw(st.booleans())}
    return StepResult(draw(columns(n)), tokens, *tables, vectors, draw(st.floats(0, 1e6)))


RESULTS = results()
FACTS = st.builds(
    WorkerFacts,
    st.binary(min_size=32, max_size=32),
    st.builds(Numerics, st.lists(st.text(), max_size=2).map(tuple), st.text(), st.text()),
    st.text(),
    U32,
    U64,
    st.lists(st.tuples(st.text(), st.floats(0, 1e6), st.text()), max_size=3).map(tuple),
)
GROUPS = st.builds(KvGroup, st.lists(U32, max_size=3).map(tuple), U64, st.one_of(st.none(), U32))
STATES = st.builds(StateSpec, st.lists(U32, max_size=3).map(tuple), U32, U64)
SPECS = st.builds(
    KvSpec, U32, st.lists(GROUPS, max_size=3).map(tuple), st.one_of(st.none(), STATES)
)
FAILURES = st.builds(
    Failed, U32, U64, st.text(), st.text(), st.booleans(), st.booleans(), st.floats(0, 1e12)
)
ANSWERS = st.one_of(
    st.just(Ready()),
    st.builds(Loaded, FACTS, SPECS, U64),
    st.builds(Computed, U64, RESULTS),
    FAILURES,
)


@given(plans())
def test_a_plan_comes_back(plan: StepPlan) -> None:
    assert decode_plan(encode_plan(plan)) == plan


@given(RESULTS)
def test_a_result_comes_back(result: StepResult) -> None:
    assert decode_result(encode_result(result)) == result


@given(ANSWERS)
def test_an_answer_comes_back(answer: Loaded | Ready | Computed | Failed) -> None:
    assert decode_answer(encode_answer(answer)) == answer


@given(st.builds(Allocation, st.lists(U32, max_size=3).map(tuple), U32))
def test_sizes_of_pools_come_back(allocation: Allocation) -> None:
    assert decode_allocate(encode_allocate(allocation)) == allocation


@pytest.mark.parametrize(
    "text", ["", "[8]", "{}", '{"blocks": [8]}', '{"blocks": ["x"], "states": 0}', "[" * 100_000]
)
def test_malformed_sizes_of_pools_are_refused(text: str) -> None:
    with pytest.raises(CodecError, match="malformed sizes of the pools"):
        decode_allocate(ALLOCATE + text.encode())


@given(plans(), RESULTS, st.data())
def test_more_or_less_than_a_message_is_refused(
    plan: StepPlan, result: StepResult, data: st.DataObject
) -> None:
    for encoded, decode in (
        (encode_plan(plan), decode_plan),
        (encode_result(result), decode_result),
    ):
        cut = data.draw(st.integers(0, len(encoded) - 1))
        for wrong in (encoded[:cut], encoded + b"\0"):
            with pytest.raises(CodecError):
                decode(wrong)


@given(plans(), RESULTS, ANSWERS, st.data())
def test_damaged_bytes_are_a_message_or_an_error(
    plan: StepPlan,
    result: StepResult,
    answer: Loaded | Ready | Computed | Failed,
    data: st.DataObject,
) -> None:
    cases = (
        (encode_plan(plan), decode_plan),
        (encode_result(result), decode_result),
        (encode_answer(answer), decode_answer),
    )
    for encoded, decode in cases:
        damaged = bytearray(encoded)
        for _ in range(data.draw(st.integers(1, 4))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        attempt(decode, bytes(damaged))


@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"P", b"C", b"R", b"L", b"F", b'F{"rank":']),
)
def test_any_bytes_are_a_message_or_an_error(noise: bytes, head: bytes) -> None:
    for decode in (decode_plan, decode_result, decode_answer):
        attempt(decode, head + noise)


def attempt(decode: object, data: bytes) -> None:
    with suppress(CodecError):
        decode(data)  # type: ignore[operator]


def test_counts_beyond_the_message_take_no_memory() -> None:
    huge = b"P" + bytes(8) + b"\xff\xff\xff\x7f" * 5 + b"\0"
    with pytest.raises(CodecError, match="PLAN frame"):
        decode_plan(huge)


@given(st.integers(1, 5), st.integers(1, 20), st.integers(0, 20))
def test_the_largest_messages_fit_the_room_computed_for_them(
    n: int, tokens: int, alternatives: int
) -> None:
    row = (0.0, 1, [(1, 0.5)] * alternatives)
    registration = Registration(0, bytes(16384), history=array("i", [1] * 7), prompt_len=3)
    plan = StepPlan(1, [registration] * n, *[array("i", [1] * n) for _ in range(3)])
    plan.sample, plan.drafts = array("b", [1] * n), array("i", [1] * n)
    plan.tokens = plan.targets = array("i", [1] * tokens)
    plan.kept, plan.added = array("i", [1] * 2 * n), array("i", [1] * 3 * n)
    plan.added_offsets = array("i", [0] * (2 * n + 1))
    assert len(encode_plan(plan)) <= plan_bytes(n, tokens, 2, 3 * n, 7)
    prompt = {at: [row] for at in range(min(n, tokens))} | {
        0: [row] * (tokens - min(n, tokens) + 1)
    }
    ones = array("i", [1] * n)
    vectors = {at: bytes(4 * 5) for at in range(n)}
    result = StepResult(ones, ones, {at: [row] for at in range(n)}, prompt, vectors)
    most = result_bytes(n, tokens, alternatives, 5) + 16
    assert len(encode_answer(Computed(1, result))) <= most


@given(FAILURES, st.integers(1 << 10, 1 << 12))
def test_a_long_failure_is_shortened_to_the_room(failed: Failed, room: int) -> None:
    long = Failed(
        1, 2, failed.message + "x" * 9999, "start" + "\N{SNOWMAN}" * 9999 + "end", True, False, 1.0
    )
    encoded = encode_answer(long, room)
    assert len(encoded) <= room
    answer = decode_answer(encoded)
    assert isinstance(answer, Failed)
    assert answer.trace.endswith("end")
