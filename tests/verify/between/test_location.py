"""Location is compared with a brute force: the smallest set of nodes whose pairs are all slow."""

from __future__ import annotations

from itertools import combinations, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_ops.verify.between.location import SHARE, Direction, locate
from penstock_ops.verify.between.rounds import Pair, schedule


def all_pairs(nodes: int) -> set[Pair]:
    return set(permutations(range(nodes), 2))


def brute_force(nodes: int, slow: set[Pair]) -> set[int]:
    """The smallest set of nodes that touches all slow pairs, whose own pairs are all slow."""
    for size in range(nodes + 1):
        for members in combinations(range(nodes), size):
            touched = {pair for pair in all_pairs(nodes) if set(pair) & set(members)}
            if touched == slow:
                return set(members)
    raise AssertionError(slow)


@given(st.integers(4, 7).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_slow_nodes_are_those_of_the_brute_force(case: tuple[int, set[int]]) -> None:
    nodes, members = case
    measured = all_pairs(nodes)
    slow = {pair for pair in measured if set(pair) & members}
    location = locate(measured, slow)
    if len(members) >= nodes - 1:
        # The only healthy node has no pair that is not slow.
        assert location.is_everywhere
    else:
        assert {each.node for each in location.nodes} == brute_force(nodes, slow) == members
        assert all(each.direction is Direction.BOTH for each in location.nodes)
        assert not location.pairs


@settings(max_examples=20)
@given(st.sampled_from([17, 33, 64, 100]), st.data())
def test_one_slow_node_among_many_is_found_from_log2_rounds(
    nodes: int, data: st.DataObject
) -> None:
    node = data.draw(st.integers(0, nodes - 1))
    measured = {pair for each in schedule(nodes) for pair in each}
    location = locate(measured, {pair for pair in measured if node in pair})
    assert [each.node for each in location.nodes] == [node]
    assert not location.pairs


@given(st.integers(4, 9), st.data())
def test_one_direction_of_a_node(nodes: int, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, nodes - 1))
    place = data.draw(st.sampled_from([0, 1]))
    slow = {pair for pair in all_pairs(nodes) if pair[place] == node}
    [found] = locate(all_pairs(nodes), slow).nodes
    assert (found.node, found.direction) == (node, list(Direction)[1 + place])


@given(st.integers(5, 9), st.data())
def test_a_single_pair_is_no_node(nodes: int, data: st.DataObject) -> None:
    pair = data.draw(st.sampled_from(sorted(all_pairs(nodes))))
    location = locate(all_pairs(nodes), {pair})
    assert location.pairs == (pair,)
    assert not location.nodes


def test_two_nodes_cannot_tell_which_is_slow() -> None:
    location = locate({(0, 1), (1, 0)}, {(0, 1), (1, 0)})
    assert location.pairs == ((0, 1), (1, 0))


@given(st.integers(2, 7), st.data())
def test_any_slow_pairs_are_explained_and_no_node_with_good_pairs_is_blamed(
    nodes: int, data: st.DataObject
) -> None:
    measured = sorted(all_pairs(nodes))
    slow = data.draw(st.sets(st.sampled_from(measured)))
    location = locate(measured, slow)
    if location.is_everywhere:
        assert slow == set(measured)
        return
    explained = [pair for each in location.nodes for pair in each.pairs] + list(location.pairs)
    assert sorted(explained) == sorted(slow)
    for each in location.nodes:
        partners = {other for pair in each.pairs for other in pair} - {each.node}
        assert len(partners) >= 2
        ways = {Direction.BOTH: (0, 1), Direction.SENDS: (0,), Direction.RECEIVES: (1,)}
        own = [pair for pair in measured if each.node in [pair[at] for at in ways[each.direction]]]
        assert len(set(own) & slow) >= SHARE * len(own) - len(location.nodes) * 2


def test_without_slow_pairs_nothing_is_blamed() -> None:
    assert locate(all_pairs(4), set()) == locate(set(), set())
