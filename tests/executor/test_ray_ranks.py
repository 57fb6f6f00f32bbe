"""Ranks as actors of a real Ray cluster, without a model: one contract for all channels."""

from __future__ import annotations

import logging
import os
import signal
import time
from array import array
from collections.abc import Callable, Iterator

import pytest

from penstock.config import EngineConfig, shared_memory_directory
from penstock.core import Allocation, InvalidValueError, PenstockError, StepPlan
from penstock.core.progress import Report, silent
from penstock.core.transfer import OpenTiers, Transfer, TransferKind, TransferResult
from penstock.executor import WorkersLostError, rank_group
from penstock.executor.rank_group import RanksExecutor
from penstock.executor.ray import connect, connect_ray
from tests.fakes.backend import BLOCKS, engine_config, rank_layout
from tests.fakes.executor import next_token
from tests.fakes.plans import one_sequence, registration
from tests.limits import HANG
from tests.processes import is_alive, memory_files
from tests.ray_cluster import RayCluster, needs_ray, token_cluster

needs_ray()
pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

CHANNELS = ["ring", "compiled-graph", "actor"]
CPUS = 4

Start = Callable[..., RanksExecutor]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with token_cluster(CPUS) as made:
        yield made


def config(cluster: RayCluster, channel: str, placement: str = "pack", **more: str) -> EngineConfig:
    texts = {
        "distributed_executor_backend": "ray",
        "ray_channel": channel,
        **more,
    }
    texts |= {"ray_address": cluster.address, "placement": placement}
    return engine_config(**texts)


@pytest.fixture
def start(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(channel, tp, pp, rank0={...})`: nothing is left of it afterwards."""
    monkeypatch.setattr(connect, "SILENCE", HANG)
    made: list[RanksExecutor] = []
    before = memory_files()

    def run(
        channel: str, tp: int, pp: int, report: Report = silent, **faults: dict[str, object]
    ) -> RanksExecutor:
        layout, directory = rank_layout(tp, pp, **faults), shared_memory_directory()
        own = config(cluster, channel)
        made.append(connect_ray(layout, own, directory, report=report))
        made[-1].allocate(Allocation((BLOCKS,)))
        return made[-1]

    yield run
    for executor in made:
        pids = executor.pids
        executor.close()
        gone(pids)
    assert memory_files() <= before


def gone(pids: list[int]) -> None:
    deadline = time.monotonic() + HANG
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"actors are left: {pids}"
        time.sleep(0.01)


def plan(step: int, token: int) -> StepPlan:
    """The next token of a sequence that grows by one each step, from step 2 on."""
    new = registration() if step == 2 else None
    return one_sequence(step, [token], step - 2, [0], new=new)


def compute(executor: RanksExecutor, step: int) -> None:
    """Steps until something is raised; a rank that is not waited for may fail a little later."""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        executor.submit(plan(step, 1)).result()
        step += 1 if step < 16 else 0
        time.sleep(0.01)


def watch(executor: RanksExecutor) -> None:
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        executor.check()
        time.sleep(0.01)


@pytest.mark.parametrize("channel", CHANNELS)
def test_the_slowest_rank_is_reported_on_any_channel(start: Start, channel: str) -> None:
    many, lines = 9, list[str]()
    faults = {"rank0": {"loading": [0.1] * many}, "rank1": {"loading": [0.5] * many}}
    start(channel, 2, 1, lines.append, **faults)
    slowest = [line for line in lines if line.startswith("rank 0 of 2: 10% of")]
    assert len(slowest) == many


@pytest.mark.parametrize("channel", CHANNELS)
def test_plans_go_to_all_ranks_and_a_rank_that_is_killed_is_noticed(
    start: Start,
    channel: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(rank_group, "GRACE", HANG)
    executor = start(
        channel, 2, 2, **{f"rank{rank}": {"how": "wrong plan", "step": 8} for rank in range(4)}
    )
    assert executor.depth == 2
    assert [each.facts.device for each in executor.loaded] == [f"rank {rank}" for rank in range(4)]
    assert all(each.facts.host for each in executor.loaded)
    context = [5]
    for step in range(2, 6):
        context += executor.submit(plan(step, context[-1])).result().tokens
    assert context[1:] == [next_token(context[:at], 97) for at in range(1, 5)]
    tickets = [executor.submit(plan(step, 7)) for step in (6, 7)]
    for ticket in tickets:
        context.append(7)
        assert list(ticket.result().tokens) == [next_token([*context[:4], *context[5:]], 97)]
    with pytest.raises(PenstockError, match="told not to like the plan") as caught:
        executor.submit(plan(8, 1)).result()
    assert not isinstance(caught.value, WorkersLostError)
    executor.check()
    killed = time.monotonic()
    os.kill(executor.pids[1], signal.SIGKILL)
    with pytest.raises(WorkersLostError, match=r"rank 1 \(on .*, process \d+\)"):
        watch(executor)
    with capsys.disabled():
        print(f"\n{channel}: a killed rank was noticed after {time.monotonic() - killed:.3f} s")
    gone(executor.pids)


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_rank_that_raises_is_named_with_its_traceback(
    start: Start, channel: str, caplog: pytest.LogCaptureFixture
) -> None:
    executor = start(
        channel, 2, 1, rank0={"how": "hang", "step": 3}, rank1={"how": "raise", "step": 3}
    )
    executor.submit(plan(2, 1)).result()
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(
            WorkersLostError, match="rank 1 failed in step 3: RuntimeError: the fake rank was told"
        ),
    ):
        executor.submit(plan(3, 1)).result()
    assert "in fail" in caplog.text
    with pytest.raises(WorkersLostError):
        executor.submit(plan(4, 1))
    gone(executor.pids)


def test_transfers_go_to_all_ranks_and_are_answered_by_all(start: Start) -> None:
    executor = start("ring", 2, 2)
    executor.transfers.open_tiers(OpenTiers("c0ffee", 4, 1.0))
    for step in range(2, 18):
        executor.submit(plan(step, step)).result()
    block, key = array("i", [0]), bytes(32)
    executor.transfers.transfer(Transfer(1, TransferKind.STORE, 1, block, keys=key))
    executor.transfers.transfer(
        Transfer(2, TransferKind.PROBE, 1, keys=key, counts=array("i", [1]))
    )
    moved: list[TransferResult] = []
    deadline = time.monotonic() + HANG
    while len(moved) < 2:
        assert time.monotonic() < deadline, moved
        moved += executor.transfers.moved()
        time.sleep(0.001)
    assert [(each.id, each.done, each.found) for each in moved] == [
        (1, True, b""),
        (2, True, b"\1"),
    ]


@pytest.mark.parametrize("channel", ["compiled-graph", "actor"])
def test_tiers_need_rings(cluster: RayCluster, channel: str) -> None:
    tiered = config(cluster, channel, kv_tier="ram:1GiB")
    with pytest.raises(
        InvalidValueError, match=r"--ray-channel is .* expected ring, which --kv-tier needs"
    ):
        connect_ray(rank_layout(2, 1), tiered, shared_memory_directory())


def test_a_plan_that_one_rank_cannot_compute_is_the_end(start: Start) -> None:
    executor = start("actor", 2, 1, rank0={"how": "wrong plan", "step": 2})
    with pytest.raises(WorkersLostError, match="rank 0 failed in step 2"):
        compute(executor, 2)


@pytest.mark.parametrize("channel", CHANNELS)
def test_blocks_that_a_rank_cannot_allocate_end_all_with_its_reason(
    start: Start, channel: str
) -> None:
    with pytest.raises(WorkersLostError, match=r"rank 1 failed: no memory for \[8\] blocks"):
        start(channel, 2, 1, rank1={"how": "refuse blocks"})


def test_a_rank_that_cannot_load_its_part_says_why(start: Start) -> None:
    with pytest.raises(PenstockError, match="rank 1 failed: tensor 'x' is damaged"):
        start("ring", 2, 1, rank1={"how": "refuse"})


@pytest.mark.parametrize(
    ("tp", "pp", "placement", "said"),
    [
        (CPUS + 1, 1, "pack", "the ranks of a stage are on one node"),
        (1, 2, "strict-spread", "on 2 nodes; the cluster has 1 node"),
    ],
)
def test_a_cluster_without_room_is_diagnosed(
    cluster: RayCluster, tp: int, pp: int, placement: str, said: str
) -> None:
    with pytest.raises(PenstockError, match=said) as caught:
        connect_ray(
            rank_layout(tp, pp),
            config(cluster, "ring", placement),
            shared_memory_directory(),
            placement_timeout=2.0,
        )
    assert f"need {tp * pp} x {{CPU: 1}}" in str(caught.value)
    assert f"{{CPU: {CPUS}}}" in str(caught.value)
