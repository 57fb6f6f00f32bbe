"""Messages between nodes and the assignment of ranks: without any node."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import ParallelConfig, ranks_of_nodes
from penstock.executor.nodes.messages import (
    TYPES,
    End,
    Hello,
    Made,
    MessageError,
    decode,
    encode,
    expect,
    session_key,
)
from penstock.executor.nodes.rank_assignment import Node, hosts, ranks_of
from penstock.executor.nodes.rendezvous import compare, listening_address
from penstock.executor.ranks import RankLayout


@given(st.integers(1, 20), st.integers(1, 20), st.data())
def test_ranks_go_to_nodes_in_order_and_evenly(tp: int, pp: int, data: st.DataObject) -> None:
    nnodes = data.draw(st.integers(1, tp * pp))
    held = ranks_of_nodes(tp, pp, nnodes)
    assert len(held) == nnodes
    assert [rank for own in held for rank in own] == list(range(tp * pp))
    sizes = [len(own) for own in held]
    assert min(sizes) >= 1
    assert sizes == sorted(sizes, reverse=True)
    whole = nnodes <= pp
    assert sizes[0] - sizes[-1] <= (tp if whole else 1)
    if whole:
        assert all(size % tp == 0 for size in sizes)


@pytest.mark.parametrize(
    ("tp", "pp", "nnodes", "sizes"),
    [
        (2, 3, 2, [4, 2]),  # whole stages, where each node can have one
        (4, 1, 2, [2, 2]),
        (4, 2, 4, [2, 2, 2, 2]),
        (2, 2, 3, [2, 1, 1]),
        (3, 2, 4, [2, 2, 1, 1]),
        (16, 1, 2, [8, 8]),
    ],
)
def test_how_many_ranks_each_node_has(tp: int, pp: int, nnodes: int, sizes: list[int]) -> None:
    assert list(map(len, ranks_of_nodes(tp, pp, nnodes))) == sizes
    parallel = ParallelConfig(tensor=tp, pipeline=pp, nnodes=nnodes)
    assert parallel.most_ranks_on_a_node == sizes[0]
    numbers = [parallel.number_on_node(rank) for rank in range(tp * pp)]
    assert numbers == [number for size in sizes for number in range(size)]


def test_the_nodes_of_ranks() -> None:
    nodes = [Node(0, "10.0.0.1"), Node(1, "10.0.0.2")]
    stages = RankLayout(2, 3, 4, ("{}",) * 6, 100, 4000, 1000, 1000)
    assert ranks_of(stages, 2) == [range(4), range(4, 6)]
    assert hosts(stages, nodes) == [nodes[0]] * 4 + [nodes[1]] * 2
    group = RankLayout(3, 1, 0, ("{}",) * 3, 100, 4000, 1000, 1000)
    assert hosts(group, nodes) == [nodes[0]] * 2 + [nodes[1]]


@pytest.mark.parametrize(
    "message",
    [
        Hello(1, "10.0.0.2", "10.0.0.1", {"the version": "1"}),
        Made([{"kind": "stream", "address": "10.0.0.2:4000"}]),
        End(0.5),
    ],
)
def test_messages_are_read_as_they_were_said(message: Hello | Made | End) -> None:
    assert decode(encode(message)) == message
    assert expect(decode(encode(message)), type(message)) == message


@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode(data)


@given(
    st.sampled_from([*TYPES, "Other"]),
    st.dictionaries(st.sampled_from(["node", "reason", "x"]), st.none()),
)
def test_messages_of_other_shapes_are_refused(kind: str, fields: dict[str, None]) -> None:
    whole = {"type": kind, **fields}
    with suppress(MessageError):
        assert json.loads(encode(decode(json.dumps(whole).encode()))) == whole


def test_a_message_that_is_not_due_is_refused() -> None:
    with pytest.raises(MessageError, match="End came where Made was due"):
        expect(End(0.0), Made)


def test_each_session_has_a_key_of_its_own() -> None:
    keys = [session_key(bytes(range(32)), session) for session in ("a", "b")] + [
        session_key(bytes(32), "a")
    ]
    assert all(one != other for one, other in pairwise(sorted(keys)))
    assert all(len(key) == 32 for key in keys)


def test_what_differs_is_said_with_both_sides() -> None:
    assert compare({"a": "1", "b": "2"}, {"a": "1", "b": "2"}) == []
    assert compare({"a": "1", "b": "2"}, {"a": "3", "c": "4"}) == [
        "a is 3 there, 1 on node 0",
        "b is unknown there, 2 on node 0",
        "c is 4 there, unknown on node 0",
    ]


@pytest.mark.parametrize(
    ("master", "at"), [("10.0.0.1:5", ["10.0.0.1:5"]), ("[fd00::1]:5", ["[fd00::1]:5"])]
)
def test_node_0_listens_at_its_address(master: str, at: list[str]) -> None:
    assert [listening_address(master)] == at


def test_node_0_listens_everywhere_under_a_name() -> None:
    assert listening_address("penstock-0.penstock:5") in ("[::]:5", "0.0.0.0:5")
