"""`penstock up PLAN HOST...` over two network namespaces, with a program in place of ssh that runs
its words there: a plan is proven on two hosts, and nothing is left on them, whatever happens.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from penstock_lab.bench import planned
from penstock_lab.bench.target import Address, StatusError
from penstock_ops.plan import profile
from penstock_ops.up import command
from penstock_ops.verify.between.survey import Settings
from tests.e2e.server import eventually
from tests.grammar import vocabulary
from tests.limits import HANG
from tests.namespaces import Hosts
from tests.processes import descendants, is_alive
from tests.real_ranks import TINY, VOCAB
from tests.up.plans import RATES

pytestmark = pytest.mark.heavy

LIMITS = "p99_tpot_ms:600000,p99_ttft_ms:600000"
LOAD = ["--rate", "4", "--isl", "16", "--osl", "4", "--requests", "4", "--slo", LIMITS]
SECRET = re.compile(rb"[0-9a-f]{64}")
SSH = """\
#!/bin/sh
# ssh -o BatchMode=yes HOST penstock up agent
test "$1 $2" = "-o BatchMode=yes" || exit 9
case $3 in
{cases}
*) echo "ssh: connect to host $3 port 22: No route to host" >&2; exit 255;;
esac
shift 3
test "$*" = "penstock up agent" || exit 8
echo $$ >>{pids}
export TMPDIR={temporary}
exec ip netns exec $namespace {python} -m penstock up agent
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as made:
        yield made


class Run:
    """A plan of two stages, a stub of ssh, and where the hosts' processes leave their files."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.plan, self.model = folder / "plan.yaml", folder / "llama"
        self.pids, self.temporary = folder / "pids", folder / "temporary"
        self.temporary.mkdir()
        pairs = zip(hosts.addresses, hosts.names, strict=True)
        cases = "\n".join(f"{address}) namespace={name};;" for address, name in pairs)
        (folder / "bin").mkdir()
        stub = folder / "bin" / "ssh"
        stub.write_text(
            SSH.format(cases=cases, pids=self.pids, temporary=self.temporary, python=sys.executable)
        )
        stub.chmod(0o755)

    def agents(self) -> list[int]:
        return [int(word) for word in self.pids.read_text().split()]

    def processes(self) -> list[int]:
        return [pid for agent in self.agents() for pid in descendants(agent)]

    def up(self, *words: str) -> int:
        checks = [] if "--checks" in words else ["--checks", "limits,ports"]
        given = [str(self.plan), *self.hosts.addresses, *words, *checks]
        return main(["up", *given, "--model", str(self.model)])


@pytest.fixture
def run(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(profile, "measure", lambda _subject, _said, _seconds: RATES)
    monkeypatch.setattr("penstock_ops.up.causes.BUSY", 1.0)
    quick = Settings(seconds=0.05, patience=20.0)
    monkeypatch.setattr(command, "Survey", lambda: quick)
    made = Run(hosts, tmp_path)
    shutil.copytree(TINY / "llama", made.model)
    vocabulary.write_tokenizer(made.model, {})
    words = ["plan", str(made.model), "--measure", *LOAD]
    assert main([*words, "-o", str(made.plan)]) == 0
    # Plans for CPUs are of one rank.
    content = yaml.safe_load(made.plan.read_text())
    content["choice"]["pipeline_parallel_size"] = 2
    content["memory"][0]["kv"] = 2 << 20  # The least that serve takes.
    made.plan.write_text(yaml.safe_dump(content))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return made


Load = Callable[[Mapping[str, Any], argparse.Namespace], dict[str, Any]]
SEND: Load = planned.measure_plan


def test_a_plan_is_proven_on_two_hosts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "up.json"
    processes: list[int] = []

    def load(plan: Mapping[str, Any], flags: argparse.Namespace) -> dict[str, Any]:
        """The load as token ids: the model's tokenizer knows bytes, and no words."""
        processes.extend(run.processes())
        assert not [pid for pid in processes if SECRET.search(words_of(pid))]
        with pytest.raises(StatusError, match="401"):
            Address(flags.base_url).ask("/v1/models")
        flags.prompt_ids, flags.vocab_size = True, VOCAB
        return SEND(plan, flags)

    monkeypatch.setattr(planned, "measure_plan", load)
    status = run.up("--json", str(report))
    printed = capsys.readouterr().out
    found = json.loads(report.read_text())
    assert status == {"holds": 0, "does not hold": 1}[found["verdict"]], printed
    failed = {each["check"] for each in found["findings"] if each["status"] == "fail"}
    assert failed <= {"start", "limits"}, "what a busy machine may miss"
    assert found["run"]["completed"] == 4
    assert 0 < found["run"]["step_seconds"] < 600
    nodes = {each["node"]: each["status"] for each in found["findings"] if each["check"] == "nodes"}
    assert nodes == dict.fromkeys(run.hosts.addresses, "pass")
    assert len(processes) >= 2 * 3, "an agent, a node and a rank on each host"
    assert not [pid for pid in processes if is_alive(pid)]
    assert list(run.temporary.iterdir()) == []


def test_a_host_that_dies_under_load_is_named_and_nothing_runs_on(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    processes: list[int] = []

    def load(_plan: Mapping[str, Any], _flags: argparse.Namespace) -> dict[str, Any]:
        processes.extend(run.processes())
        for pid in run.agents():
            if run.hosts.addresses[1] in host_of(pid, run.hosts):
                os.kill(pid, signal.SIGKILL)
        time.sleep(HANG)
        raise AssertionError("the load was not interrupted")

    monkeypatch.setattr(planned, "measure_plan", load)
    status = run.up()
    page = capsys.readouterr().out
    assert status == 1, page
    *_, conclusion, layer, cause = page.splitlines()
    assert "does not hold" in conclusion
    assert layer.startswith(f"host, {run.hosts.addresses[1]}: lost: "), page
    assert "ssh ended with status -9" in layer
    assert cause == "cause: the host, its agent, or the network to it is down"
    # Ranks that lose their engine end by themselves (docs/distributed.md).
    eventually(lambda: not any(map(is_alive, processes)), "the end of all processes")
    # The log of the other host is kept, without its secrets.
    kept = [path.name for path in run.temporary.glob("*/*")]
    assert sorted(kept).count("server.log") == 2
    assert sorted(kept).count("token") == 1, "of the agent that was killed"


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def host_of(pid: int, hosts: Hosts) -> list[str]:
    """Addresses of the namespace of a process."""
    own = os.stat(f"/proc/{pid}/ns/net").st_ino
    pairs = zip(hosts.names, hosts.addresses, strict=True)
    return [address for name, address in pairs if os.stat(f"/run/netns/{name}").st_ino == own]
