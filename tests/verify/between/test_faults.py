"""Faults of real links between hosts: each is named with its node and a remedy, and nothing else
is blamed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping

import pytest

from penstock_ops.verify.between.channel import CommandChannel
from penstock_ops.verify.between.command import findings_between
from penstock_ops.verify.between.coordinator import Coordinator, Node
from penstock_ops.verify.between.survey import Settings
from penstock_ops.verify.finding import Bound, Finding, Status
from penstock_ops.verify.needs import Needs
from tests.limits import HANG
from tests.namespaces import Hosts, ip
from tests.verify.between import links
from tests.verify.between.agents import FAST, coordinated

AGENT = "from penstock_ops.verify.between.hosts import serve_standard; serve_standard()"
HARMLESS = (Status.PASS, Status.SKIPPED)
PORT = FAST.fixed_port
EVERYTHING = Needs()
SURVEYS = 3
"""Surveys of which one must be right."""


def blamed(findings: list[Finding]) -> list[Finding]:
    """Findings that are not harmless; all have a cause and a remedy."""
    found = [finding for finding in findings if finding.status not in HARMLESS]
    assert all(finding.cause and finding.remedy for finding in found)
    return found


def survey(
    hosts: Hosts,
    blames: Callable[[list[Finding]], bool],
    needs: Needs = EVERYTHING,
    clocks: Mapping[int, Callable[[], float]] | None = None,
) -> list[Finding]:
    """The findings of a survey that blames what it should. One before it may blame a node that a
    busy machine has kept waiting.
    """
    for _ in range(SURVEYS):
        with coordinated(hosts, clocks) as coordinator:
            findings = findings_between(coordinator, needs, FAST)
        if blames(blamed(findings)):
            return findings
        print(*blamed(findings), sep="\n")
    pytest.fail(f"none of {SURVEYS} surveys blames what it should")


def test_nothing_is_blamed_on_equal_links(hosts: Hosts) -> None:
    findings = survey(hosts, lambda found: not found)
    checks = {finding.check for finding in findings if finding.status is Status.PASS}
    assert checks == {
        "agents",
        "clock_offset",
        "ports",
        "latency",
        "bandwidth",
        "loss",
        "path_mtu",
        "all_reduce",
    }
    [bandwidth] = [finding for finding in findings if finding.check == "bandwidth"]
    assert bandwidth.measured is not None
    # 200 Mb/s less headers; tbf's burst adds little.
    assert bandwidth.measured < 0.028


def small_mtu(hosts: Hosts) -> None:
    ip("-n", hosts.names[1], "link", "set", "eth0", "mtu", "1400")


@pytest.mark.parametrize(
    ("fault", "check", "node", "text"),
    [
        (lambda hosts: links.shape(hosts, 1, "15mbit"), "bandwidth", "host-1", "GB/s"),
        (lambda hosts: links.lose(hosts, 1, 0.05), "loss", "host-1", "sent again"),
        (small_mtu, "path_mtu", "host-1", "1400 bytes"),
        (lambda hosts: links.hide_large(hosts, 1, 1300), "path_mtu", "host-1", "1220 bytes arrive"),
        (lambda hosts: links.close_all_ports(hosts, 2), "ports", "host-2", "no connection"),
        (lambda hosts: links.close_port(hosts, 0, PORT), "ports", "host-0", f"port {PORT}"),
    ],
    ids=["slow", "loss", "small MTU", "MTU hole", "unreachable", "closed port"],
)
def test_a_fault_names_its_node_alone(
    hosts: Hosts, fault: Callable[[Hosts], None], check: str, node: str, text: str
) -> None:
    fault(hosts)
    findings = survey(
        hosts, lambda found: [(one.check, one.node) for one in found] == [(check, node)]
    )
    assert text in blamed(findings)[0].summary


def test_a_clock_that_is_ahead_is_named(hosts: Hosts) -> None:
    findings = survey(
        hosts,
        lambda found: [(one.check, one.node) for one in found] == [("clock_offset", "host-3")],
        clocks={3: lambda: time.time() + 2.5},
    )
    [finding] = blamed(findings)
    assert finding.measured == pytest.approx(2.5, abs=0.5)
    assert "ahead" in finding.summary


def process_agent(hosts: Hosts, at: int, program: str = AGENT) -> Node:
    words = [*hosts.inside(at), sys.executable, "-c", program]
    return Node(f"host-{at}", CommandChannel(words), hosts.addresses[at])


def test_a_paused_agent_is_named_and_the_others_are_measured(hosts: Hosts) -> None:
    node = process_agent(hosts, 1)
    settings = Settings(FAST.seconds, patience=10.0, join=HANG)
    with coordinated(hosts, others={1: node}, settings=settings) as coordinator:
        assert isinstance(node.channel, CommandChannel)
        os.kill(node.channel.pid, signal.SIGSTOP)
        findings = findings_between(coordinator, Needs(), settings)
    [finding] = blamed(findings)
    assert (finding.check, finding.node) == ("agents", "host-1")
    assert "no answer after" in finding.summary
    passed = [finding.check for finding in findings if finding.status is Status.PASS]
    assert "bandwidth" in passed


def test_an_agent_ends_with_its_coordinator(hosts: Hosts) -> None:
    node = process_agent(hosts, 0)
    assert isinstance(node.channel, CommandChannel)
    coordinator = Coordinator([node], patience=HANG, join=HANG)
    assert not node.lost
    coordinator.close()
    with pytest.raises(ProcessLookupError):
        os.kill(node.channel.pid, 0)


def test_an_all_reduce_slower_than_the_plan_needs_names_the_slow_node(hosts: Hosts) -> None:
    # Slower links would also lengthen round trips, by the time that a packet takes on them.
    links.shape(hosts, 2, "5mbit")
    bound = Bound(60_000.0, None, "us", is_ceiling=True, formula="65.5 KB, 8 in a step, 1 ms spare")
    needs = Needs(plan="plan.yaml", nodes=4, bounds={"all_reduce_us": bound})
    findings = survey(hosts, lambda found: {finding.node for finding in found} == {"host-2"}, needs)
    [finding] = [each for each in blamed(findings) if each.check == "all_reduce"]
    assert finding.status is Status.FAIL
