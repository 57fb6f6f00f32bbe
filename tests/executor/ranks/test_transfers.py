"""Transfers and their answers as bytes: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

from array import array
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.codec import CodecError, decode_plan, encode_plan
from penstock.core.plan import StepPlan
from penstock.core.transfer import (
    GROUP_BYTES,
    KEY_BYTES,
    Fault,
    OpenTiers,
    Transfer,
    TransferKind,
    TransferResult,
)
from penstock.executor.ranks.messages import (
    MoverClosed,
    MoverReport,
    TransferResults,
    decode_answer,
    encode_results,
)
from penstock.executor.ranks.messages import encode_answer as encode
from penstock.executor.ranks.transfers import (
    END,
    OPEN,
    decode_moved,
    decode_open,
    decode_transfer,
    encode_moved,
    encode_open,
    encode_transfer,
    is_transfer,
    transfer_bytes,
)

U64 = st.integers(0, 2**64 - 1)
SECONDS = st.floats(0, 1e9)


def columns(typecode: str = "i") -> st.SearchStrategy[array[int]]:
    most = 2 ** (8 * array(typecode).itemsize - 1)
    return st.lists(st.integers(-most, most - 1), max_size=9).map(
        lambda items: array(typecode, items)
    )


DIGESTS = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
GROUPS = st.binary(min_size=GROUP_BYTES, max_size=GROUP_BYTES)


def transfers(kinds: st.SearchStrategy[TransferKind], keys: st.SearchStrategy[bytes]) -> Any:
    return st.builds(
        Transfer,
        U64,
        kinds,
        st.integers(0, 255),
        columns(),
        columns(),
        keys,
        columns(),
        columns("q"),
        st.just(b"") | DIGESTS,
    )


TRANSFERS = transfers(
    st.sampled_from(sorted(set(TransferKind) - {TransferKind.CLEAR})),
    st.lists(DIGESTS, max_size=4).map(b"".join),
) | transfers(st.just(TransferKind.CLEAR), st.just(b"") | GROUPS)
MOVED = st.builds(
    TransferResult,
    U64,
    st.booleans(),
    st.binary(max_size=40),
    U64,
    SECONDS,
    SECONDS,
    st.text(max_size=100),
    st.sampled_from(Fault),
)
OPENED = st.builds(OpenTiers, st.text(), st.integers(0, 2**40), SECONDS)


@given(TRANSFERS, U64)
def test_a_transfer_comes_back(transfer: Transfer, after: int) -> None:
    encoded = encode_transfer(transfer, after)
    assert is_transfer(encoded)
    assert decode_transfer(encoded) == (transfer, after)


@pytest.mark.parametrize(
    "transfer",
    [
        Transfer(1, TransferKind.REMOVE, keys=bytes(GROUP_BYTES)),
        Transfer(1, TransferKind.CLEAR, keys=bytes(GROUP_BYTES + 1)),
        Transfer(1, TransferKind.CLEAR, keys=bytes(2 * GROUP_BYTES)),
        Transfer(1, TransferKind.STORE, 1, parent=bytes(KEY_BYTES - 1)),
    ],
)
def test_names_have_their_lengths(transfer: Transfer) -> None:
    with pytest.raises(ValueError, match="bytes"):
        encode_transfer(transfer, 0)


@given(OPENED)
def test_what_opens_the_tiers_comes_back(tiers: OpenTiers) -> None:
    assert decode_open(encode_open(tiers)) == tiers


def test_the_first_byte_tells_what_a_message_is() -> None:
    messages = (
        encode_plan(StepPlan(1)),
        encode_transfer(Transfer(1, TransferKind.LOAD), 0),
        encode_open(OpenTiers("", 0, 0.0)),
        END,
    )
    assert len({message[:1] for message in messages}) == len(messages)
    assert [is_transfer(message) for message in messages] == [False, True, False, False]


@given(st.lists(MOVED, max_size=8), st.integers(1, 400))
def test_answers_come_back_however_many_messages_it_takes(
    batch: list[TransferResult], capacity: int
) -> None:
    messages = list(encode_results(batch, capacity))
    answers = [decode_answer(message) for message in messages]
    assert [
        moved
        for answer in answers
        if isinstance(answer, TransferResults)
        for moved in answer.results
    ] == batch
    assert all(isinstance(answer, TransferResults) and answer.results for answer in answers)
    for message, answer in zip(messages, answers, strict=True):
        assert len(message) <= capacity or (
            isinstance(answer, TransferResults) and len(answer.results) == 1
        )


def test_a_long_error_is_shortened() -> None:
    (message,) = encode_moved([TransferResult(1, False, error="\N{SNOWMAN}" * 9999)], 1 << 16)
    (moved,) = decode_moved(message)
    assert moved.error.startswith("\N{SNOWMAN}" * 300)
    assert len(message) < 2 << 10


@given(st.text())
def test_what_a_mover_says_comes_back(text: str) -> None:
    assert decode_answer(encode(MoverReport(text))) == MoverReport(text)
    assert decode_answer(encode(MoverClosed())) == MoverClosed()


@given(TRANSFERS, st.lists(MOVED, min_size=1, max_size=4), st.data())
def test_more_or_less_than_a_message_is_refused(
    transfer: Transfer, batch: list[TransferResult], data: st.DataObject
) -> None:
    encoded = encode_transfer(transfer, 0)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    for wrong in (encoded[:cut], encoded + b"\0"):
        with pytest.raises(CodecError):
            decode_transfer(wrong)
    for moved in batch:
        (one,) = encode_moved([moved], 1 << 16)
        with pytest.raises(CodecError):
            decode_moved(one[: data.draw(st.integers(1, len(one) - 1))])


@given(TRANSFERS, OPENED, st.lists(MOVED, min_size=1, max_size=4), st.data())
def test_damaged_bytes_are_a_message_or_an_error(
    transfer: Transfer, tiers: OpenTiers, batch: list[TransferResult], data: st.DataObject
) -> None:
    (moved,) = encode_results(batch, 1 << 16)
    cases = (
        (encode_transfer(transfer, 0), decode_transfer),
        (encode_open(tiers), decode_open),
        (moved, decode_answer),
    )
    for encoded, decode in cases:
        damaged = bytearray(encoded)
        for _ in range(data.draw(st.integers(1, 4))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        attempt(decode, bytes(damaged))


@given(st.binary(max_size=200), st.sampled_from([b"", b"T", OPEN, b'O{"cache":', b"M", b"K", b"E"]))
def test_any_bytes_are_a_message_or_an_error(noise: bytes, head: bytes) -> None:
    for decode in (decode_transfer, decode_open, decode_moved, decode_answer, decode_plan):
        attempt(decode, head + noise)


def attempt(decode: object, data: bytes) -> None:
    with suppress(CodecError):
        decode(data)  # type: ignore[operator]


def test_counts_beyond_the_message_take_no_memory() -> None:
    huge = b"T" + bytes(16) + b"\1\0" + b"\xff\xff\xff\x7f" * 5 + b"\0"
    with pytest.raises(CodecError, match="field blocks at byte 39: 8589934588 bytes are needed"):
        decode_transfer(huge)


@given(st.integers(1, 100), st.integers(1, 100))
def test_the_largest_transfers_fit_the_room_computed_for_them(blocks: int, chunks: int) -> None:
    ones, chunks = array("i", [1] * blocks), min(chunks, blocks)
    counts = array("i", [1] * chunks)
    for transfer in (
        Transfer(1, TransferKind.LOAD, 0, ones, ones),
        Transfer(1, TransferKind.STORE, 1, ones, keys=bytes(KEY_BYTES)),
        Transfer(1, TransferKind.PROBE, 1, keys=bytes(KEY_BYTES * chunks), counts=counts),
        Transfer(1, TransferKind.CANCEL, ids=array("q", [1] * blocks)),
    ):
        assert len(encode_transfer(transfer, 0)) <= transfer_bytes(blocks)
