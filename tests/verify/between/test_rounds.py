"""Rounds are checked by brute force over all pairs and all sets of slow nodes."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ops.verify.between.rounds import round_robin, schedule, slow_members


@pytest.mark.parametrize("nodes", range(1, 20))
def test_each_pair_is_in_one_round_and_rounds_are_disjoint(nodes: int) -> None:
    rounds = round_robin(nodes)
    pairs = [tuple(sorted(pair)) for each in rounds for pair in each]
    assert sorted(pairs) == list(combinations(range(nodes), 2))
    assert len(rounds) == nodes - 1 + nodes % 2
    for each in rounds:
        used = [node for pair in each for node in pair]
        assert len(used) == len(set(used))


@pytest.mark.parametrize("nodes", range(2, 17))
def test_up_to_sixteen_nodes_all_directed_pairs_are_measured(nodes: int) -> None:
    pairs = [pair for each in schedule(nodes) for pair in each]
    assert sorted(pairs) == sorted(permutations(range(nodes), 2))


@pytest.mark.parametrize("nodes", [17, 64, 100, 1000])
def test_many_nodes_take_two_times_log2_rounds_and_each_has_many_partners(nodes: int) -> None:
    rounds = schedule(nodes)
    assert len(rounds) == 2 * (nodes - 1).bit_length()
    partners: dict[int, set[int]] = {node: set() for node in range(nodes)}
    for source, target in (pair for each in rounds for pair in each):
        partners[source].add(target)
    assert min(map(len, partners.values())) >= (nodes - 1).bit_length() - 1


@given(st.integers(4, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_halving_finds_all_slow_nodes(case: tuple[int, set[int]]) -> None:
    nodes, slow = case
    calls: list[list[list[int]]] = []

    def are_slow(groups: list[list[int]]) -> list[bool]:
        calls.append(groups)
        members = [node for group in groups for node in group]
        assert len(members) == len(set(members))
        assert all(len(group) >= 2 for group in groups)
        return [bool(slow & set(group)) for group in groups]

    if not slow:
        return
    found, is_between = slow_members(range(nodes), are_slow)
    assert not is_between
    healthy_exists = any(not slow & set(group) for groups in calls for group in groups)
    if healthy_exists:
        assert found == sorted(slow)
    else:
        assert slow <= set(found)


@given(st.integers(4, 1000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_one_slow_node_takes_about_log2_rounds(case: tuple[int, int]) -> None:
    nodes, slow = case
    rounds = 0

    def are_slow(groups: list[list[int]]) -> list[bool]:
        nonlocal rounds
        rounds += 1
        return [slow in group for group in groups]

    assert slow_members(range(nodes), are_slow) == ([slow], False)
    assert rounds <= (nodes - 1).bit_length() + 1


def test_a_slow_link_between_the_halves_is_no_node() -> None:
    halves = {0, 1, 2, 3}
    found, is_between = slow_members(
        range(8), lambda groups: [0 < len(halves & set(group)) < len(group) for group in groups]
    )
    assert (found, is_between) == ([], True)
