"""What a server adds to the steps of its replica, from loads that a fake plays."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from penstock_lab.bench.request import Outcome
from penstock_ops.plan.serving import (
    FEWEST,
    REPEATS,
    SKIPPED,
    STREAMS,
    Extra,
    extra,
    step_seconds,
)
from penstock_ops.plan.time_limit import TimeLimit

NO_LIMIT = TimeLimit(1e9, lambda _: None)


def stream(events: Sequence[float]) -> Outcome:
    return Outcome(
        input_tokens=16,
        output_tokens=len(events),
        asked=(16, len(events)),
        due=0.0,
        sent=0.0,
        connected=0.0,
        ended=events[-1],
        events=array("d", events),
        reported=True,
        cached_tokens=0,
        finish="length",
        text="",
        failure="",
        detail="",
    )


def stepping(begin: float, each: float, tokens: int) -> Outcome:
    return stream([begin + each * at for at in range(tokens)])


def replica(decodes: float, context: float) -> float:
    return 0.004 + 0.001 * decodes + 1e-6 * context * decodes


def served(step: float, row: float) -> Extra:
    """Loads of a server whose steps take so much longer."""

    def load(streams: int, tokens: int) -> list[Outcome]:
        context = 16 + SKIPPED + (tokens - SKIPPED) / 2
        each = replica(streams, context) + step + streams * row
        return [stepping(0.02 * at, each, tokens) for at in range(streams)]

    return extra(replica, load, 4096, NO_LIMIT)


@pytest.mark.parametrize(("step", "row"), [(0.0004, 0.0), (0.0002, 0.0001), (0.0, 0.0)])
def test_what_a_step_and_a_row_take_longer_is_found(step: float, row: float) -> None:
    found = served(step, row)
    assert found.step == pytest.approx(step, abs=1e-6)
    assert found.row == pytest.approx(row, abs=1e-6)
    assert found.seconds(4) == pytest.approx(step + 4 * row, abs=1e-6)
    assert found.seconds(0) == 0.0


def test_a_server_is_never_faster_than_its_replica() -> None:
    assert served(-0.001, -0.0001) == Extra(0.0, 0.0)


def test_steps_count_while_all_streams_decode() -> None:
    """Neither the first tokens, nor those behind the end of the first stream."""
    late = stream([*(1.0 + 0.001 * at for at in range(SKIPPED)), 1.2, 1.21, 1.22, 1.23])
    assert step_seconds([late]) == pytest.approx(0.010)
    assert step_seconds([stepping(0.0, 0.02, 60), stepping(0.5, 0.02, 60)]) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("each", "counted"), [(1e-4, 300), (0.0025, 300), (0.01, 100), (5.0, FEWEST)]
)
def test_slow_models_and_short_contexts_stream_fewer_tokens(each: float, counted: int) -> None:
    asked: list[tuple[int, int]] = []

    def load(streams: int, tokens: int) -> list[Outcome]:
        asked.append((streams, tokens))
        return [stepping(0.0, each, tokens)] * streams

    extra(lambda _decodes, _context: each, load, 300 + SKIPPED, NO_LIMIT)
    assert sorted(set(asked)) == [(streams, SKIPPED + counted) for streams in STREAMS]


def test_a_load_without_a_moment_of_all_streams_is_left_out() -> None:
    """What one stream adds still counts, where of eight one ends before another begins."""
    apart = [stepping(0.0, 0.011, 30), stepping(9.0, 0.011, 30)]
    assert step_seconds(apart) is None

    def load(streams: int, tokens: int) -> list[Outcome]:
        return apart if streams > 1 else [stepping(0.0, 0.011, tokens)]

    found = extra(lambda _decodes, _context: 0.010, load, 300, NO_LIMIT)
    assert (found.step, found.row) == (pytest.approx(0.001), 0.0)


@pytest.mark.parametrize(("seconds", "repeats"), [(1e9, REPEATS), (1e-9, 1)])
def test_after_the_time_limit_nothing_is_repeated(seconds: float, repeats: int) -> None:
    asked: list[int] = []

    def load(streams: int, tokens: int) -> list[Outcome]:
        asked.append(streams)
        return [stepping(0.0, 0.01, tokens)] * streams

    found = extra(lambda *_: 0.01, load, 300, TimeLimit(seconds, lambda _: None))
    assert found.repeats == repeats
    assert asked == [*STREAMS] * repeats
