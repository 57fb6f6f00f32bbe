"""gateway.yaml changes under a gateway that serves; `penstock route explain` looks into it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.gateway import Gateway
from tests.e2e.server import eventually
from tests.e2e.sim import Sim
from tests.limits import HANG

OBJECTIVE = """
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -3, poolRef: {name: p}}
"""


def settings(urls: list[str], more: str = "") -> str:
    pool = f"{{name: p, backends: [{', '.join(urls)}], fleet: {{slow_start_s: 0}}}}"
    return f"explain: true\npools: [{pool}]\n{more}"


class Load:
    """Clients that ask again and again, until the end of the block."""

    def __init__(self, gateway: Gateway, clients: int) -> None:
        self._gateway = gateway
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        self.statuses: Counter[int | str] = Counter()

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int) -> None:
        """Waits until so many more requests have been served."""
        wanted = self.statuses[200] + count
        eventually(lambda: self.statuses[200] >= wanted, f"{count} more requests")

    def _ask(self) -> None:
        with self._gateway.client() as client:
            while not self._stop.is_set():
                body = {"model": "sim", "prompt": "t1 t2", "max_tokens": 5}
                self.statuses[client.post("/v1/completions", json=body).status_code] += 1


def explained(gateway: Gateway, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    body = folder / "body.json"
    body.write_text(json.dumps({"model": "sim", "prompt": "t1 " * 3000}))
    command = [sys.executable, "-m", "penstock", "route", "explain", str(body)]
    command += ["--gateway", gateway.url, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)


def test_a_changed_file_counts_and_no_request_is_lost(tmp_path: Path) -> None:
    file, kinds = tmp_path / "gateway.yaml", tmp_path / "kinds.yaml"
    kinds.write_text(OBJECTIVE)
    with Sim(replicas=4) as sim:
        addresses = [url.removeprefix("http://") for url in sim.urls]
        file.write_text(settings(sim.urls[:2]))
        with Gateway("--config", str(file)) as gateway, Load(gateway, 6) as load:
            load.more(20)
            table = explained(gateway, tmp_path)
            assert table.returncode == 0, table.stderr
            assert "model 'sim': pool p, not saturated" in table.stdout
            assert all(address in table.stdout for address in addresses[:2])
            assert "cost x 1" in table.stdout

            def replicas() -> set[str]:
                answer = json.loads(explained(gateway, tmp_path, "--json").stdout)
                return {one["address"] for one in answer["replicas"] if one["total"] is not None}

            # other replicas only, and a file of kinds
            file.write_text(settings(sim.urls[2:], f"kinds: [{kinds}]\nretries: 1\n"))
            eventually(lambda: replicas() == set(addresses[2:]), "the other replicas")
            load.more(20)
            batch = ("--header", "x-gateway-inference-objective:batch")
            assert "priority -3" in explained(gateway, tmp_path, *batch).stdout
            # the file of kinds is followed, too
            kinds.write_text(OBJECTIVE.replace("-3", "-4"))
            eventually(
                lambda: "priority -4" in explained(gateway, tmp_path, *batch).stdout, "priority"
            )
            file.write_text("pools: [")
            eventually(lambda: any("stays in force" in line for line in gateway.log), "an error")
            load.more(20)
        assert set(load.statuses) == {200}
        fixed = gateway.lines("counts from the next start")
        assert "retries has changed" in fixed[0]


def test_a_hostile_file_is_named_and_a_good_one_is_read_after_it(tmp_path: Path) -> None:
    """A bomb of aliases; the gateway ends all the same."""
    file = tmp_path / "gateway.yaml"
    names = "abcdefgh"
    bomb = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    bomb += [f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise(names)]
    with Sim(replicas=2) as sim:
        file.write_text(settings(sim.urls[:1]))
        with Gateway("--config", str(file)) as gateway:
            file.write_text("\n".join(bomb))
            eventually(lambda: any("gateway.yaml:5: " in line for line in gateway.log), "an error")
            file.write_text(settings(sim.urls[1:]))
            other = sim.urls[1].removeprefix("http://")
            eventually(lambda: other in explained(gateway, tmp_path).stdout, "the other replica")


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--gateway", "localhost"], "http://HOST:PORT"),
        (["--header", "x"], "NAME:VALUE"),
        (["--gateway", "http://127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_wrong_flags_of_explain_are_named(tmp_path: Path, flags: list[str], wanted: str) -> None:
    body = tmp_path / "body.json"
    body.write_text("{}")
    command = [sys.executable, "-m", "penstock", "route", "explain", str(body), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode in (1, 2)
    assert wanted in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gateway_that_does_not_explain_says_so(tmp_path: Path) -> None:
    with Sim() as sim, Gateway("--backend", sim.urls[0]) as gateway:
        done = explained(gateway, tmp_path)
        assert done.returncode != 0
        assert "--explain" in done.stderr
