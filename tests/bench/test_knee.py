"""The knee of curves whose knee is known."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_lab.bench.knee import Knee, find_knee

DOUBLING = [1, 2, 4, 8, 16, 32, 64]


def load_of(points: list[tuple[float, float]]) -> float | None:
    knee = find_knee(points)
    return knee.load if knee else None


@pytest.mark.parametrize("capacity", [1, 2, 4, 8, 16, 32])
def test_a_server_that_saturates_at_once_has_its_knee_there(capacity: int) -> None:
    assert load_of([(load, 7.0 * min(load, capacity)) for load in DOUBLING]) == capacity


def test_of_loads_on_both_sides_of_the_corner_the_nearer_in_share_is_taken() -> None:
    points = [(load, float(min(load, 6))) for load in DOUBLING]
    assert find_knee(points) == Knee(8, 6.0)


@pytest.mark.parametrize(("stations", "most"), [(2, 40), (9, 64), (33, 400)])
def test_closed_network_of_balanced_stations(stations: int, most: int) -> None:
    """X(N) = N / (N + K - 1) for K balanced exponential stations."""
    m = stations - 1
    exact = math.sqrt(m * (most + m)) - m
    found = load_of([(n, n / (n + m)) for n in range(1, most + 1)])
    assert found is not None
    assert abs(found - exact) <= 1


def test_open_queue_bends_at_its_capacity() -> None:
    """M/M/1 delivers what arrives until the service rate is reached."""
    assert load_of([(rate / 4, min(rate / 4, 3.0)) for rate in range(1, 25)]) == 3.0


def test_throughput_that_only_rises_has_no_knee() -> None:
    assert load_of([(load, 3.0 * load) for load in DOUBLING]) is None


def test_a_straight_line_with_noise_has_no_knee() -> None:
    draw = random.Random(1)
    for _ in range(200):
        assert load_of([(load, load * draw.uniform(0.95, 1.05)) for load in range(1, 9)]) is None


def test_noise_on_the_plateau_does_not_move_the_knee() -> None:
    draw = random.Random(2)
    for _ in range(200):
        points = [(load, min(load, 8) * draw.uniform(0.97, 1.03)) for load in DOUBLING]
        assert load_of(points) == 8


def test_a_collapse_beyond_saturation_is_beyond_the_knee() -> None:
    assert load_of([(1, 10.0), (2, 20.0), (4, 40.0), (8, 35.0), (16, 12.0)]) == 4


def test_flat_from_the_start_is_a_knee_at_the_start() -> None:
    assert load_of([(load, 5.0) for load in DOUBLING]) == 1


def test_of_equal_points_the_smaller_load_is_taken() -> None:
    # 2 and 4 lie on one parallel to the diagonal: 0.75 - 0.25 and 1 - 0.5.
    assert find_knee([(2, 3.0), (4, 4.0), (8, 4.0)]) == Knee(2, 3.0)


def test_rounds_count_by_their_median() -> None:
    rounds = [
        (load, min(load, 4) + offset) for load in DOUBLING for offset in (0.0, 0.01, -50.0 + load)
    ]
    assert find_knee(rounds) == find_knee([(load, float(min(load, 4))) for load in DOUBLING])


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1, 5.0)],
        [(1, 5.0), (8, 6.0)],
        [(4, 5.0), (4, 6.0), (4, 7.0)],
        [(1, 0.0), (2, 0.0), (4, 0.0)],
        [(1, 5.0), (2, math.nan), (math.inf, 9.0), (4, 6.0)],
    ],
)
def test_too_little_to_say(points: list[tuple[float, float]]) -> None:
    assert find_knee(points) is None


POSITIVE = st.integers(1, 10**6)


@given(
    st.dictionaries(POSITIVE, st.integers(0, 10**6), min_size=3, max_size=12),
    st.integers(-20, 20),
    st.integers(-20, 20),
)
def test_units_and_order_do_not_matter(
    curve: dict[int, int], load_unit: int, throughput_unit: int
) -> None:
    points = [(float(load), float(throughput)) for load, throughput in curve.items()]
    # Powers of two scale without rounding, so that ties stay ties.
    scaled = [
        (load * 2.0**load_unit, throughput * 2.0**throughput_unit)
        for load, throughput in reversed(points)
    ]
    knee, moved = find_knee(points), find_knee(scaled)
    if knee is None:
        assert moved is None
    else:
        assert moved == Knee(knee.load * 2.0**load_unit, knee.throughput * 2.0**throughput_unit)


@given(st.dictionaries(POSITIVE, st.integers(0, 10**6), max_size=12))
def test_a_knee_is_a_load_that_was_measured_and_not_the_last(curve: dict[int, int]) -> None:
    knee = find_knee([(float(load), float(throughput)) for load, throughput in curve.items()])
    if knee is not None:
        assert knee.load in curve
        assert knee.load < max(curve)
        assert knee.throughput <= max(curve.values())
