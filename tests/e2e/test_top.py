"""`penstock top` before a real server with tiers, and a gateway over modelled ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.config.machine import free_port
from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway
from tests.e2e.server import eventually
from tests.e2e.sim import Sim
from tests.e2e.test_boards import SMALL, TIERS, Load
from tests.e2e.test_parallel import tiny
from tests.limits import HANG
from tests.top.terminal import Terminal

KEY = "secret"


@pytest.fixture(scope="module")
def urls(
    serve: Serve, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str, list[str]]]:
    """A server, a gateway with a key, and the gateway's replicas: two that serve, one nobody."""
    folder = tmp_path_factory.mktemp("top")
    model = tiny(repository, folder, "llama")[0]
    tiers = [word.format(disk=folder / "kv") for word in TIERS]
    with ExitStack() as stack:
        server = stack.enter_context(serve(*SMALL, *tiers, model=model))
        sim = stack.enter_context(Sim(replicas=2))
        replicas = [*sim.urls, f"http://127.0.0.1:{free_port()}"]
        backends = [word for url in replicas for word in ("--backend", url)]
        gateway = stack.enter_context(Gateway("--api-key", KEY, *backends))
        stack.enter_context(Load(server.url, "tiny"))
        stack.enter_context(Load(gateway.url, "sim", key=KEY))
        yield server.url, gateway.url, replicas


def bare(url: str) -> str:
    return url.removeprefix("http://")


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_the_screen(urls: tuple[str, str, list[str]], size: tuple[int, int]) -> None:
    server, gateway, replicas = urls
    dead = f"127.0.0.1:{free_port()}"
    words = ("top", server, gateway, dead, "--api-key", KEY)
    terminal = Terminal(*words, columns=size[0], lines=size[1])
    try:
        row = r"ready .*\d%.* +\d+(\.\d+)?(ms|s) .*(ms|s)"
        loaded = [rf"{re.escape(bare(url))} +{row}" for url in (server, *replicas[:2])]
        shown = terminal.when(
            lambda text: all(re.search(line, text) for line in loaded), "rows with latencies"
        )
        for text in (*map(bare, (gateway, *replicas)), "tiny", "sim", "disk ", "ram "):
            assert text in shown
        lines = shown.splitlines()
        assert "3 addresses, 3 replicas  2 not ready" in lines[0]
        assert re.search(rf"{dead} +dead", shown)
        assert "connection refused, for" in shown
        terminal.type("q")
        assert terminal.end() == 0
        assert not terminal.picture.overflowed
        assert terminal.echoes()
    finally:
        terminal.close()


def once(*words: str) -> tuple[int, Any]:
    command = [sys.executable, "-m", "penstock", "top", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    return done.returncode, json.loads(done.stdout)


def test_rows_have_the_numbers_of_both(urls: tuple[str, str, list[str]]) -> None:
    server, gateway, replicas = urls

    def loaded() -> Any:
        """Rows of a moment in which all that serve have answered requests."""
        status, rows = once(server, gateway, "--api-key", KEY, "--interval", "3")
        assert status == 0
        ready = [row for row in rows if row["state"] == "ready"]
        serving = [row for row in ready if row["kind"] != "gateway"]
        measured = [row for row in serving if row["tokens_out"] and row["ttft"] and row["itl"]]
        return rows if len(measured) == 3 else None

    rows = eventually(loaded, "rows with latencies")
    assert [row["name"] for row in rows[:2]] == [server, gateway]
    assert {row["name"] for row in rows[2:]} == set(map(bare, replicas))
    first, head, *others = rows
    assert (first["kind"], head["kind"]) == ("server", "gateway")
    assert first["models"] == ["tiny"]
    assert head["models"] == ["sim"]
    for row in (first, *(one for one in others if one["state"] == "ready")):
        assert row["tokens_out"] > 0
        assert row["ttft"]["p50"] > 0
        assert row["itl"]["p99"] >= row["itl"]["p50"]
        assert 0 <= row["hit_share"] <= 1
        assert 0 <= row["kv_use"] <= 1
    assert [tier["name"].partition(":")[0] for tier in first["tiers"]] == ["ram", "disk"]
    assert head["ttft"]["p50"] > 0
    (lost,) = (row for row in others if row["state"] != "ready")
    assert lost["name"] == bare(replicas[2])
    assert lost["error"]


def test_a_gateway_whose_key_is_missing_is_shown_all_the_same(
    urls: tuple[str, str, list[str]],
) -> None:
    _, gateway, replicas = urls
    status, rows = once(gateway)
    assert status == 0
    assert {row["name"] for row in rows[1:]} == set(map(bare, replicas))
