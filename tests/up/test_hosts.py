"""`penstock up PLAN HOST...` with agents that are threads of this process, and servers that are
none: each fault of a host is named with its remedy, and what was started is ended.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock import __version__
from penstock.cli.main import main
from penstock.config.machine import free_port
from penstock.core import PenstockError
from penstock_lab.bench import planned
from penstock_ops.up import command, hosts, node
from penstock_ops.up.node import NodeServer, WatchedChannel, operations_of
from penstock_ops.verify.between import hosts as launcher
from penstock_ops.verify.between.agent import Agent, Operation
from penstock_ops.verify.between.channel import LineChannel, LostError
from penstock_ops.verify.between.coordinator import Node
from penstock_ops.verify.between.survey import Settings
from tests.limits import HANG
from tests.up.plans import result

Change = Callable[["Host"], None]


class Host(NodeServer):
    """A host whose server is no process. What it does is set by its attributes."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.flags: list[str] | None = None
        self.secrets = ("", "")
        self.status: int | None = None
        self.size = 0
        """Parameters of its model; 0 for the real one."""
        self.error = ""
        """Instead of an agent, ssh ends with this."""
        self.version = __version__
        self.share = 0.01
        self.ended: list[bool] = []
        self.channel: LineChannel | None = None

    @property
    def is_started(self) -> bool:
        return self.flags is not None

    def start(self, flags: Any, token: str, api_key: str) -> None:
        self.flags, self.secrets = list(flags), (token, api_key)

    def state(self, ready_url: str) -> dict[str, Any]:
        is_ready = self.status is None and bool(ready_url)
        return {"status": self.status, "is_ready": is_ready, "log": "/l", "tail": "the end"}

    def measure(self) -> None:
        pass

    def foreign_share(self) -> float:
        return self.share

    def end(self, *, keep_log: bool = False) -> None:
        self.ended.append(keep_log)

    def operations(self) -> Mapping[str, Operation]:
        found = operations_of(self)
        if not self.size:
            return found
        known = {"path": "/m", "directory": "/", "parameters": self.size}
        return {**found, "find_model": replace(found["find_model"], run=lambda *_: known)}

    def over_ssh(self) -> Node:
        """An agent of this host, on a thread."""
        if self.error:
            return Node(self.name, None, lost=self.error)
        requests, answers = os.pipe(), os.pipe()

        def work() -> None:
            reads, writes = os.fdopen(requests[0], "rb"), os.fdopen(answers[1], "wb")
            with reads, writes:
                agent = OfVersion(LineChannel(reads, writes), "127.0.0.1")
                agent.version, agent.operations = self.version, self.operations()
                agent.run()

        threading.Thread(target=work, name=self.name, daemon=True).start()
        self.channel = LineChannel(os.fdopen(answers[0], "rb"), os.fdopen(requests[1], "wb"))
        return Node(self.name, self.channel, "127.0.0.1")

    def die(self) -> None:
        def lost(_seconds: float | None) -> dict[str, Any]:
            raise LostError("ssh ended with status 255: Connection reset by peer")

        assert self.channel
        self.channel.receive = lost  # type: ignore[method-assign]


class OfVersion(Agent):
    version = __version__

    def _greeting(self) -> dict[str, Any]:
        return {**super()._greeting(), "version": self.version}


class Hosts:
    def __init__(self, plan: Path) -> None:
        self.plan = plan
        self.all = [Host("alpha"), Host("beta")]
        self.is_reachable = True

    def up(self, *words: str) -> int:
        names = [host.name for host in self.all]
        given = ["--model", str(self.plan.parent / "llama"), "--checks", "limits", *words]
        return main(["up", str(self.plan), *names, *given])


@pytest.fixture
def two(plan: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    content = yaml.safe_load(plan.read_text())
    content["choice"]["pipeline_parallel_size"] = 2
    plan.write_text(yaml.safe_dump(content))
    made = Hosts(plan)
    by_name = {host.name: host for host in made.all}
    monkeypatch.setattr(launcher, "over_ssh", lambda name, _command: by_name[name].over_ssh())
    quick = Settings(seconds=0.01, patience=5.0, join=20.0, fixed_port=0)
    monkeypatch.setattr(command, "Survey", lambda: quick)
    monkeypatch.setattr(hosts, "MASTER_PORT", free_port())
    monkeypatch.setattr(hosts, "LOOK", 0.02)
    monkeypatch.setattr(hosts, "answers", lambda _url: made.is_reachable)
    monkeypatch.setattr(planned, "measure_plan", lambda plan, _flags: result(plan, 1.0))
    yield made
    for host in made.all:
        if host.channel:
            host.channel.close()


def last(capsys: pytest.CaptureFixture[str]) -> tuple[str, list[str]]:
    """The page, and its lines that begin with the verdict."""
    page = capsys.readouterr().out
    lines = page.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("plan.yaml (llama): "))
    return page, lines[start:]


def test_a_plan_that_holds_on_two_hosts(two: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    two.all[1].share = 0.07
    assert two.up() == 0
    page, [conclusion] = last(capsys)
    assert ": holds; " in conclusion
    assert page.count("nodes: its ranks run") == 2
    first, second = two.all
    assert first.flags
    assert second.flags
    assert [word for word in first.flags if word not in second.flags] == ["--node-rank=0"]
    assert [word for word in second.flags if word not in first.flags] == ["--node-rank=1"]
    shared = {"--nnodes=2", f"--master-addr=127.0.0.1:{hosts.MASTER_PORT}", "--host=127.0.0.1"}
    assert shared <= set(first.flags)
    # All nodes have one token; clients need a key.
    assert len(first.secrets[0]) == 64
    assert first.secrets[0] == second.secrets[0]
    assert [bool(host.secrets[1]) for host in two.all] == [True, False]
    assert not any(secret in word for secret in first.secrets for word in first.flags)
    assert [host.ended for host in two.all] == [[False], [False]]
    # The host whose processors others used most.
    other = page.index("other-programs: processor time of other programs: 0.07 of 1")
    assert page.index("\nbeta\n") < other


def of_another_size(host: Host) -> None:
    host.size = 7


def without_penstock(host: Host) -> None:
    host.error = "ssh ended with status 127: bash: line 1: penstock: command not found"


def without_ssh(host: Host) -> None:
    host.error = "ssh ended with status 255: Permission denied (publickey)"


def of_another_version(host: Host) -> None:
    host.version = "0.0.1"


@pytest.mark.parametrize(
    ("change", "status", "layer", "said", "remedy"),
    [
        (of_another_size, 1, "storage", "/m has 7 parameters, the plan's llama", "to beta, and"),
        (without_penstock, 3, "host", "command not found", f"install Penstock {__version__}"),
        (without_ssh, 3, "host", "Permission denied", "`ssh -o BatchMode=yes beta true` must"),
        (of_another_version, 3, "host", "it has Penstock 0.0.1", f"install Penstock {__version__}"),
    ],
)
def test_a_host_that_cannot_serve_is_named_and_nothing_is_started(
    two: Hosts,
    capsys: pytest.CaptureFixture[str],
    change: Change,
    status: int,
    layer: str,
    said: str,
    remedy: str,
) -> None:
    change(two.all[1])
    assert two.up() == status
    page, [_, cause, *_] = last(capsys)
    assert cause.startswith(f"{layer}, beta: ")
    assert said in cause
    assert f"remedy: {remedy}" in page or remedy in page.partition("remedy: ")[2]
    assert [host.flags for host in two.all] == [None, None]


def test_a_host_without_the_model_is_named(two: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    assert two.up("--model", str(two.plan.parent / "none")) == 1
    page, [_, cause, *_] = last(capsys)
    assert cause.startswith("storage, alpha: ")
    assert "none" in cause
    assert "copy the plan's model to beta" in page
    assert [host.flags for host in two.all] == [None, None]


def test_a_port_in_use_is_named(two: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert two.up("--port", str(port)) == 1
    page, [_, cause, *_] = last(capsys)
    assert cause == f"host, alpha: port {port} in use"
    assert "`ssh alpha ss -ltnp`), or choose another --port" in page
    assert two.all[0].flags is None
    assert two.all[1].ended == [True]


def test_a_node_that_ends_at_its_start_is_named(
    two: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    two.is_reachable = False
    two.all[1].status = -9
    assert two.up() == 1
    page, [_, cause, why] = last(capsys)
    assert cause == "engine, beta: its process was killed by signal 9; the end of its log: the end"
    assert "kernel" in why
    assert "remedy: read beta:/l" in page
    assert [host.ended for host in two.all] == [[True], [True]]


def test_a_server_out_of_reach_is_the_fabric(
    two: Hosts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two.is_reachable = False
    monkeypatch.setattr(hosts, "UNREACHABLE", 0.1)
    assert two.up() == 1
    page, [_, cause, _] = last(capsys)
    assert cause.startswith("fabric, alpha: http://127.0.0.1:")
    assert "is ready there, and cannot be reached from here" in cause
    assert "remedy: open ports " in page


def test_a_server_that_is_never_ready_ends(
    two: Hosts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two.is_reachable = False
    monkeypatch.setattr(command, "PATIENCE", 0.005)  # Of 60 s.
    assert two.up() == 1
    _, [_, cause, *_] = last(capsys)
    assert cause.startswith("engine, alpha: the server did not start: it was not ready after 0 s")
    assert [host.ended for host in two.all] == [[True], [True]]


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN])
def of_sigint(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a terminal, and of a job in the background of a shell script."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("of_sigint")
def test_a_host_that_is_lost_under_load_interrupts_it(
    two: Hosts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(_plan: object, _flags: object) -> dict[str, Any]:
        two.all[1].die()
        time.sleep(HANG)
        raise AssertionError("the load was not interrupted")

    monkeypatch.setattr(planned, "measure_plan", load)
    assert two.up() == 1
    page, [_, cause, _] = last(capsys)
    assert cause.startswith("host, beta: lost: server_state: ssh ended with status 255")
    assert "nodes: its ranks run" in page
    assert two.all[0].ended == [True]


def test_a_load_that_a_lost_host_cuts_off_keeps_its_result(
    two: Hosts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(plan: dict[str, Any], _flags: object) -> dict[str, Any]:
        two.all[1].die()
        return result(plan, 1.0, penstock={"failures": {}, "partial": True, "plan": plan})

    monkeypatch.setattr(planned, "measure_plan", load)
    assert two.up() == 1
    page, [_, cause, _] = last(capsys)
    assert cause.startswith("host, beta: lost: ")
    assert "10 requests succeeded" in page


def interrupted(_plan: object, _flags: object) -> dict[str, Any]:
    raise KeyboardInterrupt


def broken(_plan: object, _flags: object) -> dict[str, Any]:
    raise PenstockError("no answer")


@pytest.mark.parametrize(("load", "status"), [(interrupted, 130), (broken, 1)])
def test_what_was_started_is_ended(
    two: Hosts, monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any], status: int
) -> None:
    monkeypatch.setattr(planned, "measure_plan", load)
    assert two.up() == status
    assert [host.ended for host in two.all] == [[False], [False]]


class Silent:
    """A channel on which nothing comes."""

    seconds: float | None = -1.0

    def send(self, message: Mapping[str, Any]) -> None:
        pass

    def receive(self, seconds: float | None) -> dict[str, Any]:
        self.seconds = seconds
        raise LostError("no answer")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("is_started", "limit"), [(False, None), (True, node.SILENCE)])
def test_an_agent_with_a_server_bears_no_long_silence(
    is_started: bool, limit: float | None
) -> None:
    host, channel = Host("h"), Silent()
    host.flags = [] if is_started else None
    Agent(WatchedChannel(channel, host), "127.0.0.1", operations=host.operations()).run()
    assert channel.seconds == limit


def test_operations_and_forms_of_results_have_the_same_names() -> None:
    assert operations_of(Host("h")).keys() == hosts.FORMS.keys()
