"""Where stages go and what joins the ranks, with a cluster that is only pretended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import PenstockError
from penstock.executor.ranks import CommResource, RankLayout, comm_resources, keyed, wire
from penstock.executor.ray.cluster import Node
from penstock.executor.ray.placement import assign, place

HERE = Node("a", "10.0.0.1", 4.0)
THERE = Node("b", "10.0.0.2", 2.0)


def ranks(tp: int, pp: int) -> RankLayout:
    return RankLayout(tp, pp, (pp - 1) * tp, ("{}",) * (tp * pp), 100, 4000, 10_000, 10_000)


class FakeCluster:
    """Returns the given places, or none; all of its nodes have `free` CPUs."""

    def __init__(
        self, nodes: Sequence[Node], places: Sequence[str] | None, free: float = 0.0
    ) -> None:
        self.here = HERE.id
        self.asked: list[tuple[list[dict[str, float]], str]] = []
        self.released = 0
        self._nodes, self._places, self._free = list(nodes), places, free

    def nodes(self) -> list[Node]:
        return self._nodes

    def free(self, _kind: str) -> float:
        return self._free

    def reserve(self, bundles: Sequence[dict[str, float]], strategy: str) -> Any:
        self.asked.append((list(bundles), strategy))
        return "group"

    def reserved(self, group: Any, timeout: float) -> bool:
        return self._places is not None

    def bundle_nodes(self, group: Any) -> list[str]:
        assert self._places is not None
        return list(self._places)

    def release(self, group: Any) -> None:
        self.released += 1


def test_a_stage_is_one_bundle_and_stages_go_node_by_node_from_the_engines() -> None:
    cluster = FakeCluster([THERE, HERE], ["b", "a", "b", "a"])
    placement = place(cluster, ranks(2, 4), "strict-spread", 1.0)
    assert cluster.asked == [([{"CPU": 2.0}] * 4, "STRICT_SPREAD")]
    assert [seat.node.id for seat in placement.ranks] == ["a", "a", "a", "a", "b", "b", "b", "b"]
    assert [seat.bundle for seat in placement.ranks] == [1, 1, 3, 3, 0, 0, 2, 2]
    assert cluster.released == 0


@given(st.integers(1, 4), st.lists(st.sampled_from("abcd"), min_size=1, max_size=8))
def test_ranks_of_a_stage_share_a_node_and_nodes_are_not_visited_twice(
    tp: int, places: list[str]
) -> None:
    nodes = [Node(name, f"10.0.0.{at}", 8.0) for at, name in enumerate("abcd")]
    found = assign(ranks(tp, len(places)), places, nodes, "a")
    stages = [found[at : at + tp] for at in range(0, len(found), tp)]
    assert all(len({(seat.bundle, seat.node.id) for seat in stage}) == 1 for stage in stages)
    assert sorted(stage[0].bundle for stage in stages) == list(range(len(places)))
    visits = [stage[0].node.id for stage in stages]
    changes = sum(before != after for before, after in pairwise(visits))
    assert changes == len(set(places)) - 1
    assert "a" not in places or visits[0] == "a"


@pytest.mark.parametrize(
    ("nodes", "free", "tp", "pp", "strategy", "said"),
    [
        (
            [HERE, THERE],
            1.0,
            2,
            2,
            "pack",
            (
                "4 ranks need 4 x {CPU: 1} with --placement pack, 2 of them on one node; the "
                "cluster has 2 nodes (10.0.0.1 {CPU: 4}, 10.0.0.2 {CPU: 2}), 1 CPUs are free. "
                "Something else holds"
            ),
        ),
        (
            [HERE],
            4.0,
            1,
            2,
            "strict-spread",
            "on 2 nodes; the cluster has 1 node (10.0.0.1 {CPU: 4})",
        ),
        ([HERE], 4.0, 1, 2, "strict-spread", "Add nodes or choose another --placement"),
        (
            [HERE, THERE],
            6.0,
            5,
            1,
            "spread",
            "or lower --tensor-parallel-size: the ranks of a stage are on one node",
        ),
        ([THERE, THERE], 4.0, 2, 3, "pack", "Add nodes or CPUs"),
        ([HERE, THERE], 6.0, 2, 3, "strict-pack", "6 of them on one node"),
    ],
)
def test_a_shortage_is_told_with_what_is_needed_and_what_there_is(
    nodes: list[Node], free: float, tp: int, pp: int, strategy: str, said: str
) -> None:
    cluster = FakeCluster(nodes, None, free)
    with pytest.raises(PenstockError) as caught:
        place(cluster, ranks(tp, pp), strategy, 0.0)
    assert said in str(caught.value)
    assert cluster.released == 1


@pytest.mark.parametrize("unit", ["GPU", "NPU"])
def test_a_rank_on_a_device_has_one_of_its_bundle(unit: str) -> None:
    nodes = [Node("a", "10.0.0.1", 4.0, {unit: 2.0}), Node("b", "10.0.0.2", 4.0, {unit: 2.0})]
    cluster = FakeCluster(nodes, ["a", "b"])
    placement = place(cluster, ranks(2, 2), "pack", 1.0, unit)
    assert cluster.asked == [([{"CPU": 2.0, unit: 2.0}] * 2, "PACK")]
    assert placement.unit == unit
    assert [seat.node.id for seat in placement.ranks] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("gpus", "tp", "pp", "said"),
    [
        ((2.0, 1.0), 3, 1, "Add a node with more GPUs, or lower --tensor-parallel-size"),
        ((1.0, 1.0), 1, 3, "Add nodes or GPUs (ray start --num-gpus is"),
        (
            (2.0, 2.0),
            2,
            2,
            (
                "4 ranks need 4 x {CPU: 1, GPU: 1} with --placement pack, 2 of them on one node; "
                "the cluster has 2 nodes (10.0.0.1 {CPU: 8, GPU: 2}, 10.0.0.2 {CPU: 8, GPU: 2}), "
                "0 CPUs and 0 GPUs are free. Something else holds them"
            ),
        ),
    ],
)
def test_a_shortage_of_gpus_is_told(gpus: tuple[float, float], tp: int, pp: int, said: str) -> None:
    nodes = [
        Node(str(at), f"10.0.0.{at}", 8.0, {"GPU": count}) for at, count in enumerate(gpus, start=1)
    ]
    with pytest.raises(PenstockError) as caught:
        place(FakeCluster(nodes, None), ranks(tp, pp), "pack", 0.0, "GPU")
    assert said in str(caught.value)


def test_a_node_that_goes_while_ranks_are_placed_is_named() -> None:
    cluster = FakeCluster([HERE], ["a", "gone"])
    with pytest.raises(PenstockError, match="node gone was lost"):
        place(cluster, ranks(1, 2), "spread", 1.0)
    assert cluster.released == 1


def made(part: CommResource) -> dict[str, Any]:
    """What an actor makes of it."""
    kind = part.request[0]
    if kind == "port":
        return {"kind": "stream", "address": f"{part.request[1]}:4000"}
    path = f"/of/{part.maker}"
    if kind == "ring":
        return {"kind": "ring", "path": path, "slots": part.request[1], "capacity": part.request[2]}
    return {"kind": "memory", "path": path, "capacity": part.request[2]}


def wirings(tp: int, pp: int, places: Sequence[str], carried: str = "") -> list[dict[str, Any]]:
    shape = ranks(tp, pp)
    where = assign(shape, places, [HERE, THERE], HERE.id)
    wanted = comm_resources(shape, [seat.node for seat in where], carried)
    found = wire(shape, wanted, [made(part) for part in wanted], carried)
    return [json.loads(keyed(wiring, bytes(range(32)))) for wiring in found]


def test_pipes_are_rings_on_a_node_and_streams_between_two() -> None:
    found = wirings(2, 3, ["a", "a", "b"])
    assert [each["group"] and each["group"]["rank"] for each in found] == [0, 1, 0, 1, 0, 1]
    assert [each["group"]["path"] for each in found] == [
        "/of/0",
        "/of/0",
        "/of/2",
        "/of/2",
        "/of/4",
        "/of/4",
    ]
    assert found[0]["after"] == found[2]["before"]
    assert found[0]["after"] == {"kind": "ring", "path": "/of/0", "slots": 2, "capacity": 4000}
    stream = {
        "kind": "stream",
        "address": "10.0.0.1:4000",
        "key": bytes(range(32)).hex(),
        "capacity": 4000,
    }
    assert found[2]["after"] == found[4]["before"] == stream
    assert found[0]["before"] is None
    assert found[5]["after"] is None


def test_a_graph_carries_between_stages_and_needs_groups_only() -> None:
    found = wirings(2, 2, ["a", "b"], "carried")
    carried = {"kind": "carried"}
    assert [(each["before"], each["after"]) for each in found] == [(None, carried)] * 2 + [
        (carried, None)
    ] * 2
    assert all(each["group"] for each in found)


def test_a_single_rank_is_joined_to_nothing() -> None:
    (alone,) = wirings(1, 1, ["a"])
    assert (alone["group"], alone["before"], alone["after"]) == (None, None, None)
