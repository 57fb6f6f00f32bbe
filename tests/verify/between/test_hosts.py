"""Real agents, by a stub of ssh that runs its words in a network namespace, and by TCP with a
shared token.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.core import InvalidValueError, PenstockError
from penstock_ops.verify.between import hosts as agents
from penstock_ops.verify.between.command import findings_between
from penstock_ops.verify.between.hosts import called_nodes, checked_hosts
from penstock_ops.verify.between.survey import Settings
from penstock_ops.verify.finding import Status
from penstock_ops.verify.needs import Needs
from tests.limits import HANG
from tests.namespaces import Hosts

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
SSH = """\
#!/bin/sh
# ssh -o BatchMode=yes HOST penstock verify agent
test "$1 $2" = "-o BatchMode=yes" || exit 9
case $3 in
{cases}
*) echo "ssh: connect to host $3 port 22: No route to host" >&2; exit 255;;
esac
shift 3
test "$*" = "penstock verify agent" || exit 8
echo "Last login: Friday"
exec ip netns exec $namespace {python} -m penstock verify agent
"""


def test_hosts_by_ssh_end_in_one_report(
    hosts: Hosts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stub = tmp_path / "ssh"
    named = zip(hosts.addresses[:2], hosts.names, strict=False)
    cases = "\n".join(f"{address}) namespace={name};;" for address, name in named)
    stub.write_text(SSH.format(cases=cases, python=sys.executable))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    down = "198.19.255.1"
    checks = ["--checks", "limits,bandwidth,ports", "--json", "-"]
    status = main(["verify", *hosts.addresses[:2], down, *checks])
    report = json.loads(capsys.readouterr().out)
    assert status == 3
    assert report["verdict"] == "not proven"
    [lost] = [row for row in report["findings"] if row["check"] == "agents"]
    assert (lost["node"], lost["status"]) == (down, "unknown")
    assert "No route to host" in lost["summary"]
    passed = {row["check"] for row in report["findings"] if row["status"] == "pass"}
    assert {"ports", "bandwidth"} <= passed
    limits = {row["node"] for row in report["findings"] if row["check"] == "limits"}
    assert limits == set(hosts.addresses[:2])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return int(unused.getsockname()[1])


def test_pods_call_with_a_token_and_one_without_it_is_missing() -> None:
    master = f"127.0.0.1:{free_port()}"
    settings = Settings(seconds=0.1, patience=15.0, join=12.0, fixed_port=0)
    ended: list[int] = []
    calls = [(1, KEY), (2, OTHER_KEY)]
    refused: list[str] = []

    def work(node: int, key: bytes) -> None:
        try:
            agents.call(master, node, key, 8.0, ended.append)
        except PenstockError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=work, args=call) for call in calls]
    for thread in threads:
        thread.start()
    with called_nodes(master, 3, KEY, settings) as coordinator:
        names = [node.name for node in coordinator.nodes]
        assert names[1].startswith("node 1 (")
        findings = findings_between(coordinator, Needs(), settings)
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive()
    assert ended == [0]
    assert len(refused) == 1
    assert "token" in refused[0]
    bad = [each for each in findings if each.status not in (Status.PASS, Status.SKIPPED)]
    [lost] = [each for each in bad if each.check == "agents"]
    assert lost.node == "node 2"
    assert "did not call" in lost.summary


@pytest.mark.parametrize("names", [["-oProxyCommand=id"], ["a", "a"], [""], ["a b"], ["a\n"]])
def test_names_that_are_no_hosts_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidValueError, match="HOST"):
        checked_hosts(names)


def test_an_agent_prints_nothing_but_messages_and_ends_with_its_input() -> None:
    words = [sys.executable, "-m", "penstock", "verify", "agent"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert json.loads(process.stdout.readline())["protocol"] == 1
        process.stdin.close()
        assert process.wait(HANG) == 0
