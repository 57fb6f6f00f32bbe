"""Ranks on several nodes, each an agent of this process that talks over the loopback, with ranks
that have no model: who joins and who may not, what is computed, what fails and what is left."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from penstock.config import EngineConfig, shared_memory_directory
from penstock.config.machine import free_port
from penstock.core import Allocation, PenstockError, StepPlan
from penstock.executor import WorkersLostError, connection, rank_group
from penstock.executor.rank_group import RanksExecutor
from tests.e2e.server import eventually
from tests.fakes.backend import BLOCKS, engine_config, rank_layout
from tests.fakes.executor import next_token
from tests.limits import HANG

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

from penstock.executor.nodes import NodeAgent, agent, connect_nodes, rendezvous, world
from penstock.executor.nodes.agent_session import RefusedError
from tests.fakes.plans import one_sequence, registration
from tests.processes import memory_files

pytestmark = pytest.mark.heavy

KEY = bytes(range(32))
CARD = {"the version": "1", "model.quantization": "auto"}

Patience = Callable[[str], None]


def config(nnodes: int, node: int, pp: int, master: str) -> EngineConfig:
    texts = {
        "pipeline_parallel_size": str(pp),
        "nnodes": str(nnodes),
        "node_rank": str(node),
        "master_addr": master,
    }
    return engine_config(**texts)


class Agent:
    """A node in a thread."""

    def __init__(self, at: EngineConfig, key: bytes, card: dict[str, str]) -> None:
        self._heartbeats = TemporaryDirectory(prefix="heartbeats-")
        place = Path(self._heartbeats.name)
        self.agent = NodeAgent(at, shared_memory_directory(), key, card, place)
        self.error: RefusedError | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.agent.run()
        except RefusedError as error:
            self.error = error

    def stop(self) -> None:
        self.agent.stop()
        self.join()

    def join(self) -> None:
        self._thread.join(HANG)
        assert not self._thread.is_alive()
        assert not list(Path(self._heartbeats.name).glob("*"))
        self._heartbeats.cleanup()


class Launch:
    """Nodes of one launch."""

    def __init__(self, nnodes: int, pp: int) -> None:
        self.nnodes, self.pp = nnodes, pp
        self.master = f"127.0.0.1:{free_port()}"
        self.agents: list[Agent] = []
        self.executors: list[RanksExecutor] = []

    def add(self, node: int, key: bytes = KEY, **card: str) -> Agent:
        at = config(self.nnodes, node, self.pp, self.master)
        self.agents.append(Agent(at, key, {**CARD, **card}))
        return self.agents[-1]

    def start(self, tp: int = 1, **faults: dict[str, object]) -> RanksExecutor:
        at = config(self.nnodes, 0, self.pp, self.master)
        layout = rank_layout(tp, self.pp, **faults)
        at = replace(at, parallel=replace(at.parallel, join_timeout=HANG))
        executor = connect_nodes(layout, at, shared_memory_directory(), KEY, CARD)
        self.executors.append(executor)
        executor.allocate(Allocation((BLOCKS,)))
        return executor


class Launches:
    def __init__(self) -> None:
        self.all: list[Launch] = []

    def __call__(self, nnodes: int, pp: int, *, agents: bool = True) -> Launch:
        self.all.append(Launch(nnodes, pp))
        if agents:
            for node in range(1, nnodes):
                self.all[-1].add(node)
        return self.all[-1]

    def close(self) -> None:
        for each in self.all:
            for executor in each.executors:
                executor.close()
                gone(executor.pids)
            for one in each.agents:
                one.stop()
        self.all.clear()


@pytest.fixture
def launch(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    """`launch(nnodes, pp).start(tp, rank0={...})`: nothing is left of it afterwards."""
    monkeypatch.setenv("PYTHONPATH", f"{repository}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    # A busy machine is no loss of a node, and reports late why a rank ended.
    for room in (rendezvous, agent):
        monkeypatch.setattr(room, "SILENCE", HANG)
    monkeypatch.setattr(connection, "EXPLANATION", HANG)
    before, descriptors = memory_files(), open_files()
    made = Launches()
    yield made
    made.close()
    assert memory_files() <= before
    gc.collect()  # Lines and their owners know each other.
    eventually(lambda: open_files() <= descriptors, "closed descriptors")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Patience:
    """`patience(words)`: node 0 waits for others until the log has these words."""
    caplog.set_level(logging.INFO)

    def end_with(words: str) -> None:
        def monotonic() -> float:
            return time.monotonic() + (2 * HANG if words in caplog.text else 0.0)

        monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=monotonic))

    return end_with


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def gone(pids: list[int]) -> None:
    eventually(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), f"the end of ranks {pids}"
    )


def plan(step: int, token: int) -> StepPlan:
    """The next token of a sequence that grows by one each step, from step 2 on."""
    new = registration() if step == 2 else None
    return one_sequence(step, [token], step - 2, [0], new=new)


def compute(executor: RanksExecutor, steps: int) -> list[int]:
    context = [5]
    for step in range(2, 2 + steps):
        context += executor.submit(plan(step, context[-1])).result(HANG).tokens
    return context


def compute_until_lost(executor: RanksExecutor) -> None:
    """Steps until something is raised; a rank that is not waited for may fail a little later."""
    deadline, step = time.monotonic() + HANG, 2
    while time.monotonic() < deadline:
        executor.submit(plan(step, 1)).result(HANG)
        step += 1 if step < 16 else 0
        time.sleep(0.01)


def watch(executor: RanksExecutor) -> None:
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        executor.check()
        time.sleep(0.01)


@pytest.mark.parametrize(("nnodes", "tp", "pp"), [(2, 1, 2), (2, 2, 2), (2, 2, 3), (3, 1, 3)])
def test_plans_go_to_the_ranks_of_all_nodes_and_the_reading_one_answers(
    launch: Launches, nnodes: int, tp: int, pp: int
) -> None:
    executor = launch(nnodes, pp).start(tp)
    assert executor.depth == max(pp, 2)
    assert [each.facts.device for each in executor.loaded] == [
        f"rank {rank}" for rank in range(tp * pp)
    ]
    assert {each.facts.host for each in executor.loaded} == {"127.0.0.1"}
    assert len(set(executor.pids)) == tp * pp
    context = compute(executor, 9)
    assert context[1:] == [next_token(context[:at], 97) for at in range(1, 10)]


def test_nodes_stay_for_the_next_engine(launch: Launches) -> None:
    nodes = launch(3, 3)
    for _ in range(2):
        executor = nodes.start()
        compute(executor, 2)
        pids = executor.pids
        executor.close()
        gone(pids)


@pytest.mark.parametrize("rank", range(3))
def test_a_killed_rank_is_named_with_its_node_and_all_end(
    launch: Launches, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "REPORT", HANG)
    executor = launch(3, 3).start()
    compute(executor, 2)
    os.kill(executor.pids[rank], signal.SIGKILL)
    place = rf"process {executor.pids[rank]} on 127\.0\.0\.1"
    name = rf"rank {rank} \({place}\) was killed by signal 9 \(SIGKILL\)"
    with pytest.raises(WorkersLostError, match=name):
        watch(executor)
    with pytest.raises(WorkersLostError, match=name):
        executor.submit(plan(4, 1))
    gone(executor.pids)


@pytest.mark.parametrize("rank", range(3))
def test_a_rank_that_raises_is_named_with_its_traceback(
    launch: Launches, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    executor = launch(2, 3).start(**{f"rank{rank}": {"how": "raise", "step": 3}})
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(
            WorkersLostError, match=f"rank {rank} failed in step 3: RuntimeError: the fake"
        ),
    ):
        compute_until_lost(executor)
    assert "in fail" in caplog.text
    gone(executor.pids)


@pytest.mark.parametrize("tp", [1, 3])
def test_a_rank_that_cannot_load_its_part_says_why(launch: Launches, tp: int) -> None:
    """Others may not have called by then."""
    with pytest.raises(PenstockError, match=f"rank {tp} failed: tensor 'x' is damaged"):
        launch(2, 2).start(tp, **{f"rank{tp}": {"how": "refuse"}})


def test_a_node_without_shared_memory_says_so(launch: Launches, tmp_path: Path) -> None:
    nodes = launch(2, 2)
    nodes.agents[0].agent._directory = tmp_path / "nowhere"
    with pytest.raises(
        PenstockError, match=r"node 1 \(127\.0\.0\.1\): shared memory in .*: No such file"
    ):
        nodes.start()


def test_a_rank_that_ends_while_it_loads_is_noticed(launch: Launches) -> None:
    nodes = launch(2, 2)
    with pytest.raises(
        WorkersLostError, match=r"rank 1 \(process \d+ on 127\.0\.0\.1\) exited with status 3"
    ):
        nodes.start(rank1={"how": "exit at load"})


def test_blocks_that_a_rank_cannot_allocate_end_all_with_its_reason(launch: Launches) -> None:
    with pytest.raises(WorkersLostError, match=r"rank 1 failed: no memory for \[8\] blocks"):
        launch(2, 2).start(rank1={"how": "refuse blocks"})


def test_a_node_that_leaves_is_noticed_and_its_ranks_are_gone(launch: Launches) -> None:
    nodes = launch(2, 2)
    executor = nodes.start()
    nodes.agents[0].stop()
    with pytest.raises(
        WorkersLostError, match=r"node 1 \(127\.0\.0\.1\): this node was told to end"
    ):
        watch(executor)
    gone(executor.pids)


def test_a_plan_that_no_rank_can_compute_leaves_them_usable(
    launch: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_group, "GRACE", HANG)
    fault: dict[str, object] = {"how": "wrong plan", "step": 2}
    executor = launch(2, 2).start(rank0=fault, rank1=fault)
    with pytest.raises(PenstockError, match="told not to like the plan") as caught:
        executor.submit(plan(2, 1)).result(HANG)
    assert not isinstance(caught.value, WorkersLostError)
    assert list(executor.submit(plan(3, 2)).result(HANG).tokens) == [next_token([1, 2], 97)]


# Who joins
# -----------------------------------------------------------------------------------------


def test_nodes_may_come_before_node_0_and_after_it(
    launch: Launches, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = launch(3, 3, agents=False)
    with caplog.at_level(logging.WARNING):
        nodes.add(2)
        early = f"node 0 at {nodes.master} cannot be reached"
        eventually(lambda: early in caplog.text, "a node that comes before node 0")

        def come_late() -> None:
            waits = f"waiting for node 1 of 3 at {nodes.master}"
            eventually(lambda: waits in caplog.text, "a node 0 that waits")
            nodes.add(1)

        late = threading.Thread(target=come_late)
        late.start()
        compute(nodes.start(), 2)
        late.join()


def test_node_0_may_be_named(launch: Launches) -> None:
    nodes = launch(2, 2, agents=False)
    nodes.master = nodes.master.replace("127.0.0.1", "localhost")
    nodes.add(1)
    compute(nodes.start(), 2)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_nodes_have_addresses_of_ipv6(launch: Launches, host: str) -> None:
    """A cluster may have no others; at all addresses node 0 listens for both families."""
    nodes = launch(2, 2, agents=False)
    port = nodes.master.rpartition(":")[2]
    nodes.master = f"[::1]:{port}"
    nodes.add(1)
    nodes.master = f"[{host}]:{port}"
    executor = nodes.start()
    assert {each.facts.host for each in executor.loaded} == {"::1"}
    compute(executor, 2)


def test_nodes_that_do_not_come_are_named(launch: Launches, patience: Patience) -> None:
    nodes = launch(4, 4, agents=False)
    nodes.add(2)
    patience("node 2 (127.0.0.1) has joined")
    said = (
        f"waiting for nodes 1, 3 of 4 at {nodes.master}: start there the same command.*waited 300 s"
    )
    with pytest.raises(PenstockError, match=said):
        nodes.start()


def test_another_token_keeps_a_node_out_and_both_sides_say_so(
    launch: Launches, patience: Patience, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = launch(2, 2, agents=False)
    nodes.add(1, bytes(32))
    patience("a caller from 127.0.0.1 was turned away")
    with pytest.raises(
        PenstockError, match=r"from 127\.0\.0\.1 was turned away: it has not the token"
    ):
        nodes.start()
    away = f"node 0 at {nodes.master} turned this node away: the other end does not hold the key"
    eventually(lambda: away in caplog.text, "the other side's account")


def test_another_version_or_setting_is_refused_and_both_sides_say_so(launch: Launches) -> None:
    nodes = launch(2, 2, agents=False)
    agent = nodes.add(1, **{"model.quantization": "int8", "tiers": "ram"})
    said = (
        r"node 1 \(127\.0\.0\.1\) cannot join node 0 \(127\.0\.0\.1\): model\.quantization is int8 "
        r"there, "
        r"auto on node 0; tiers is ram there, unknown on node 0\. Start all nodes with the same "
        r"version"
    )
    with pytest.raises(PenstockError, match=said):
        nodes.start()
    agent.join()
    assert agent.error is not None
    assert agent.error.final
    assert "model.quantization is int8 there, auto on node 0" in str(agent.error)


def test_two_nodes_with_one_number_are_told_apart(launch: Launches, patience: Patience) -> None:
    nodes = launch(3, 3, agents=False)
    nodes.add(1)
    nodes.add(1)
    patience("node 1 (127.0.0.1) is there already, as node 1 (127.0.0.1): each needs its own")
    with pytest.raises(PenstockError, match="waiting for node 2 of 3"):
        nodes.start()


def test_an_address_of_another_host_cannot_be_node_0(launch: Launches) -> None:
    nodes = launch(2, 2, agents=False)
    nodes.master = f"192.0.2.1:{free_port()}"
    with pytest.raises(
        PenstockError, match=r"--master-addr 192\.0\.2\.1:\d+: .*an address of this host"
    ):
        nodes.start()
