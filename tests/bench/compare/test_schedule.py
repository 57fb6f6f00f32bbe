"""Whose turn it is, and with which seed."""

from __future__ import annotations

import argparse
from collections import Counter

from penstock_lab.bench.compare.schedule import interleaved, seed_of, sequential
from penstock_lab.bench.compare.summary import Workload
from penstock_lab.bench.compare.workloads import Planned

WORKLOADS = [
    Planned(Workload(name), ["serve"], argparse.Namespace()) for name in ("W1", "W2", "W3")
]
SERVERS = ["a", "b", "c"]


def test_interleaved_gives_every_server_its_turn_before_the_next_round() -> None:
    turns = list(interleaved(SERVERS, WORKLOADS[:2], 2))
    rounds = [[turn.server for turn in turns[start : start + 3]] for start in range(0, 12, 3)]
    assert rounds == [["a", "b", "c"], ["b", "c", "a"], ["b", "c", "a"], ["c", "a", "b"]]
    assert [(t.planned.workload.name, t.repeat) for t in turns[::3]] == [
        ("W1", 1),
        ("W2", 1),
        ("W1", 2),
        ("W2", 2),
    ]


def test_in_enough_repeats_every_server_is_first_for_every_workload() -> None:
    turns = list(interleaved(SERVERS, WORKLOADS, 3))
    first = Counter((turn.planned.workload.name, turn.server) for turn in turns[::3])
    assert first == {(name, server): 1 for name in ("W1", "W2", "W3") for server in SERVERS}


def test_sequential_finishes_a_server_before_the_next() -> None:
    turns = list(sequential(["a", "b"], WORKLOADS[:2], 2))
    assert [(t.server, t.planned.workload.name, t.repeat) for t in turns] == [
        (server, name, repeat)
        for server in ("a", "b")
        for repeat in (1, 2)
        for name in ("W1", "W2")
    ]


def test_seeds_differ_between_workloads_points_repeats_and_attempts() -> None:
    workloads = [Workload(f"W{n}") for n in range(1, 9)]
    workloads += [Workload("azure", "time_scale", scale) for scale in (0.4, 0.8, 1.6)]
    seeds = [
        seed_of(0, w, repeat, attempt)
        for w in workloads
        for repeat in range(1, 20)
        for attempt in range(5)
    ]
    assert len(set(seeds)) == len(seeds)
    assert seed_of(1, workloads[0], 1, 0) != seeds[0]
    assert all(0 <= seed < 2**31 for seed in seeds)
