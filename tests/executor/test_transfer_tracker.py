"""A transfer on several ranks is one transfer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import PenstockError
from penstock.core.transfer import TransferResult
from penstock.executor.transfers import TransferTracker


def test_answers_of_all_ranks_are_joined() -> None:
    moves = TransferTracker(3)
    for number in (1, 2):
        moves.begin(number)
    moves.add(
        0, [TransferResult(2, True, b"\1\1\1", 10, 0.5, 0.1, left=b"one"), TransferResult(1, True)]
    )
    moves.add(
        2,
        [
            TransferResult(1, False, error="disk:/kv is full"),
            TransferResult(2, True, b"\1\0\1", 12, 0.25, 0.2),
        ],
    )
    assert moves.take() == []
    moves.add(1, [TransferResult(1, False, error="timeout")])
    moves.add(1, [TransferResult(2, True, b"\0\1\1", 11, 0.125, 0.0, left=b"two")])
    assert moves.take() == [
        TransferResult(1, False, error="timeout"),
        TransferResult(2, True, b"\0\0\1", 33, 0.5, 0.2, left=b"onetwo"),
    ]
    assert moves.take() == []


def test_a_rank_that_could_not_look_has_found_nothing() -> None:
    moves = TransferTracker(2)
    moves.begin(1)
    moves.add(0, [TransferResult(1, True, b"\1\1")])
    moves.add(1, [TransferResult(1, False, b"", error="redis is gone")])
    assert moves.take() == [TransferResult(1, False, b"\0\0", error="redis is gone")]


def test_answers_that_nobody_asked_for_are_an_error() -> None:
    moves = TransferTracker(2)
    moves.begin(1)
    moves.add(0, [TransferResult(1, True)])
    for rank, number in ((0, 1), (1, 2)):
        with pytest.raises(PenstockError, match=f"rank {rank} answered transfer {number}"):
            moves.add(rank, [TransferResult(number, True)])


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_a_transfer_is_over_when_the_last_rank_says_so(
    ranks: int, number: int, data: st.DataObject
) -> None:
    moves, answers = (
        TransferTracker(ranks),
        [(rank, each) for each in range(number) for rank in range(ranks)],
    )
    missing = dict.fromkeys(range(number), ranks)
    for each in range(number):
        moves.begin(each)
    for rank, each in data.draw(st.permutations(answers)):
        moves.add(rank, [TransferResult(each, True, bytes=1)])
        missing[each] -= 1
        assert moves.take() == ([] if missing[each] else [TransferResult(each, True, bytes=ranks)])
