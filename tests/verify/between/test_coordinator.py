"""Agents that lie, hang, end or are of another version: each is a finding that names its node, and
the coordinator neither raises nor hangs.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from penstock import __version__
from penstock_ops.verify.between.agent import OPERATIONS, PROTOCOL, Agent
from penstock_ops.verify.between.channel import (
    MOST_BYTES,
    REQUEST_BYTES,
    CommandChannel,
    LineChannel,
    LostError,
    decode,
    encode,
)
from penstock_ops.verify.between.command import findings_between, node_findings
from penstock_ops.verify.between.coordinator import RESULTS, Coordinator, Node, offset
from penstock_ops.verify.between.survey import Settings, survey
from penstock_ops.verify.checks.registry import CHECKS
from penstock_ops.verify.finding import Status
from penstock_ops.verify.needs import Needs
from tests.limits import HANG

GREETING = {
    "protocol": PROTOCOL,
    "version": __version__,
    "node": 0,
    "host": "h",
    "address": "127.0.0.1",
    "port": 9,
}
QUICK = Settings(seconds=0.05, patience=0.5, join=5.0, fixed_port=0)


class Scripted:
    """A channel whose agent is a function from requests to answers."""

    def __init__(
        self, answer: Callable[[Mapping[str, Any]], Any], greeting: Mapping[str, Any] = GREETING
    ) -> None:
        self._answer = answer
        self._next: Any = greeting

    def send(self, message: Mapping[str, Any]) -> None:
        self._next = self._answer(message)

    def receive(self, seconds: float | None) -> dict[str, Any]:
        if isinstance(self._next, Exception):
            raise self._next
        return decode(json.dumps(self._next).encode())

    def close(self) -> None:
        pass


def stamped(request: Mapping[str, Any], **members: Any) -> dict[str, Any]:
    return {"id": request["id"], "received": 1.0, "sent": 1.0, **members}


def test_operations_and_forms_of_results_have_the_same_names() -> None:
    assert OPERATIONS.keys() == RESULTS.keys()


@pytest.mark.parametrize(
    ("greeting", "text"),
    [
        ({**GREETING, "version": "0.0.1"}, "0.0.1"),
        ({**GREETING, "protocol": 999}, "999"),
        ({"version": __version__, "protocol": PROTOCOL}, "node is missing"),
        ({**GREETING, "port": -1}, "port is -1"),
        ([], "expected a JSON object"),
        (LostError("ssh ended with status 255: Permission denied"), "Permission denied"),
    ],
)
def test_an_agent_with_another_greeting_is_refused_by_name(greeting: Any, text: str) -> None:
    node = Node("bad", Scripted(lambda request: None, greeting))
    coordinator = Coordinator([node], 0.5, 1.0)
    [finding] = findings_between(coordinator, Needs(), QUICK)
    assert (finding.check, finding.node, finding.status) == ("agents", "bad", Status.UNKNOWN)
    assert text in finding.summary


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: {},
        lambda request: {"id": request["id"]},
        lambda request: stamped({"id": request["id"] + 1}),
        lambda request: stamped(request, received="x"),
        lambda request: stamped(request, received=float("1e308")),
        lambda request: stamped(request, error=7),
        lambda request: stamped(request, result={"bytes": -1}),
        lambda request: LostError("no answer after 0.5 s"),
        lambda request: [1],
    ],
)
def test_a_lying_agent_is_lost_and_named(answer: Callable[[Mapping[str, Any]], Any]) -> None:
    coordinator = Coordinator([Node("liar", Scripted(answer))], 0.5, 1.0)
    findings = findings_between(coordinator, Needs(), QUICK)
    assert findings
    assert {finding.node for finding in findings} == {"liar"}
    assert Status.UNKNOWN in {finding.status for finding in findings}


def test_random_answers_never_raise_and_never_pass_a_measurement() -> None:
    choices = random.Random(37)
    values: list[Any] = [None, True, -1, 0, 1, 1e9, "x", [], {}, [{}], {"error": ""}, ["x"] * 3]

    def answer(request: Mapping[str, Any]) -> dict[str, Any]:
        return stamped(request, result=choices.choice(values))

    for _ in range(300):
        nodes = [Node(name, Scripted(answer)) for name in ("a", "b")]
        coordinator = Coordinator(nodes, 0.5, 1.0)
        findings = node_findings(coordinator, CHECKS[:1], Needs())
        findings += findings_between(coordinator, Needs(), QUICK)
        coordinator.close()
        passed = {finding.check for finding in findings if finding.status is Status.PASS}
        assert not passed & {"bandwidth", "latency", "loss", "path_mtu", "all_reduce"}


def piped_agent() -> tuple[LineChannel, threading.Thread]:
    request_read, request_write = os.pipe()
    answer_read, answer_write = os.pipe()

    def work() -> None:
        with os.fdopen(request_read, "rb") as reads, os.fdopen(answer_write, "wb") as writes:
            Agent(LineChannel(reads, writes), "127.0.0.1").run()

    thread = threading.Thread(target=work)
    thread.start()
    return LineChannel(os.fdopen(answer_read, "rb"), os.fdopen(request_write, "wb")), thread


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"operation": "run", "arguments": {"words": ["id"]}},
        {"operation": "transfer", "arguments": {"address": "x", "port": 70000, "seconds": 1}},
        {"operation": "transfer", "arguments": {"address": "x", "port": 9, "seconds": 1e9}},
        {"operation": "collect", "arguments": {"checks": ["../../etc"], "needs": {}}},
        {"operation": "start", "arguments": {"key": "ab"}},
        {"operation": "start", "arguments": {"key": "abc"}},
        {"operation": ["x"], "arguments": None},
        {"operation": "all_reduce", "arguments": {"bytes": 1 << 40}},
        {"operation": "reach", "arguments": {"peers": "x", "samples": 1}},
    ],
)
def test_an_agent_answers_wrong_requests_with_an_error_and_serves_on(
    request_: Mapping[str, Any],
) -> None:
    channel, thread = piped_agent()
    channel.receive(HANG)
    channel.send(request_)
    assert channel.receive(HANG)["error"]
    channel.send({"id": 2, "operation": "stamp", "arguments": {}})
    assert "error" not in channel.receive(HANG)
    channel.close()
    thread.join(HANG)
    assert not thread.is_alive()


def test_snapshots_of_an_agent_are_judged_by_the_checks() -> None:
    channel, thread = piped_agent()
    coordinator = Coordinator([Node("here", channel)], 60.0, 30.0)
    limits = [check for check in CHECKS if check.name == "limits"]
    findings = node_findings(coordinator, limits, Needs())
    coordinator.close()
    thread.join(HANG)
    assert {finding.node for finding in findings} == {"here"}
    assert any(finding.summary.startswith("open files") for finding in findings)


@pytest.mark.parametrize(
    ("checks", "operations"),
    [({"ecc"}, {"start"}), ({"clock_offset", "peer_names"}, {"start", "stamp", "resolve"})],
)
def test_only_what_the_chosen_checks_need_is_measured(
    checks: set[str], operations: set[str]
) -> None:
    requested: set[str] = set()

    def answer(request: Mapping[str, Any]) -> dict[str, Any]:
        requested.add(request["operation"])
        return stamped(request, result=[{"seconds": 0.1, "error": ""}] * 2)

    nodes = [Node(name, Scripted(answer), host=name) for name in ("a", "b")]
    coordinator = Coordinator(nodes, 0.5, 1.0)
    findings = findings_between(coordinator, Needs(), QUICK, checks)
    coordinator.close()
    assert requested == operations
    assert {"agents"} <= {each.check for each in findings} <= {"agents", *checks}


def test_requests_about_many_nodes_with_long_names_fit_in_a_pipe() -> None:
    sizes: list[int] = []
    rows: dict[str, tuple[str, Any]] = {
        "connections": ("peers", ""),
        "resolve": ("names", {"seconds": 0.1, "error": ""}),
        "reach": ("peers", {"error": "", "round_trip_us": 100.0, "resent": 0}),
    }

    def answer(request: Mapping[str, Any]) -> dict[str, Any]:
        sizes.append(len(encode(request)))
        if request["operation"] not in rows:
            return stamped(request, result=None)
        argument, row = rows[request["operation"]]
        return stamped(request, result=[row] * len(request["arguments"][argument]))

    address = ":".join(["2001"] * 8)
    nodes = [Node(f"{at:0253}", Scripted(answer), address, f"{at:0253}") for at in range(200)]
    coordinator = Coordinator(nodes, 0.5, 1.0)
    found = survey(coordinator, Needs(), QUICK, {"peer_names", "latency"})
    coordinator.close()
    assert max(sizes) <= REQUEST_BYTES
    assert len(found.names) == len(found.round_trip_us) == 200 * 199


def test_a_request_that_would_fill_a_pipe_is_not_sent() -> None:
    channel = CommandChannel(["sleep", "60"])
    with pytest.raises(LostError, match=f"at most {REQUEST_BYTES}"):
        channel.send({"names": ["x" * REQUEST_BYTES]})
    os.kill(channel.pid, signal.SIGKILL)
    channel.close()


def test_offset_of_a_clock_is_that_of_rfc_5905() -> None:
    # 10 s ahead, 1 s each way, 3 s of work.
    found = offset(100.0, 111.0, 114.0, 105.0)
    assert (found.seconds, found.uncertainty) == (10.0, 1.0)


def test_lines_of_a_login_shell_come_before_the_greeting() -> None:
    read, write = os.pipe()
    channel = LineChannel(os.fdopen(read, "rb"), io.BytesIO())
    with os.fdopen(write, "wb") as peer:
        peer.write(b'Welcome to Ubuntu\n\n{"a": 1}\n' + b"{" * 9 + b"\n")
    assert channel.receive(5.0) == {"a": 1}
    with pytest.raises(LostError, match="expected a JSON object"):
        channel.receive(5.0)
    with pytest.raises(LostError, match="closed"):
        channel.receive(5.0)
    channel.close()


def test_a_message_without_end_is_bounded() -> None:
    assert MOST_BYTES <= 64 << 20
    with pytest.raises(LostError):
        decode(b"[" * 200_000)
    with pytest.raises(LostError):
        decode(b'{"a": NaN}')
