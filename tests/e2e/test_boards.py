"""The boards and alerts of `penstock deploy dashboards`: a real Prometheus scrapes a loaded server
with tiers, and a gateway with a queue before it and before slow engines whose streams break.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from penstock.cli.main import main
from penstock_ops.deploy.monitoring.alerts import Bounds, alerts
from penstock_ops.deploy.monitoring.boards import BOARDS
from penstock_ops.deploy.monitoring.panels import Board, Panel
from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway
from tests.e2e.prometheus import Prometheus, program
from tests.e2e.server import eventually
from tests.e2e.sim import Sim
from tests.e2e.test_parallel import tiny
from tests.limits import HANG

SETTINGS = """
pools:
  - name: real
    backends: [{real}]
    flow: {{queue: true, waiting: 1}}
  - name: modelled
    backends: [{modelled}]
    flow: {{queue: true, waiting: 1}}
"""
TIERS = ("--kv-tier", "ram:1MiB", "--kv-tier", "disk:{disk},64MiB")
SMALL = (
    *("--served-model-name", "tiny", "--dtype", "float32"),
    *("--block-size", "16", "--kv-chunk-tokens", "32", "--max-num-batched-tokens", "32"),
    *("--max-num-seqs", "4", "--kv-cache-memory-bytes", "1MiB"),
)
"""A pool that holds a few prompts: what is asked again comes from the tiers."""
PROMPTS = 40
METRIC = re.compile(r"(?:vllm|penstock):\w+|process_\w+")
VARIABLE = re.compile(r'=~"\$\w+"')


def runnable(expression: str) -> str:
    """A panel's query with all values of its variables."""
    return VARIABLE.sub('=~".*"', expression.replace("$__rate_interval", "1m"))


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("boards")
    assert main(["deploy", "dashboards", "-o", str(folder)]) == 0
    return folder / "rules.yaml"


@pytest.fixture(scope="module")
def prometheus(
    serve: Serve, rules: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    program()
    folder = tmp_path_factory.mktemp("prometheus")
    model = tiny(repository, folder, "llama")[0]
    tiers = [word.format(disk=folder / "kv") for word in TIERS]
    with ExitStack() as stack:
        server = stack.enter_context(serve(*SMALL, *tiers, model=model))
        slow = folder / "profile.json"
        slow.write_text(json.dumps({"max_num_seqs": 1, "timing": {"base_us": 10_000}}))
        words = ("--fault", "cut:0.2:4", "--profile", str(slow))
        sim = stack.enter_context(Sim(*words, replicas=2))
        config = folder / "gateway.yaml"
        config.write_text(SETTINGS.format(real=server.url, modelled=", ".join(sim.urls)))
        gateway = stack.enter_context(Gateway("--config", str(config)))
        stack.enter_context(Load(gateway.url, "tiny", *["sim"] * 5))
        addresses = {"penstock": server.url, "penstock-gateway": gateway.url}
        targets = {job: url.removeprefix("http://") for job, url in addresses.items()}
        made = Prometheus(folder, targets, rules)
        stack.callback(made.stop)
        eventually(made.up, "scraped targets")
        yield made


class Load:
    """Streams of `models`, two of each at a time, for as long as the block lasts."""

    def __init__(self, url: str, *models: str, key: str = "") -> None:
        self._url = url
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(MODELS[model],)) for model in models * 2
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(HANG)

    def _ask(self, make: Callable[[int], dict[str, object]]) -> None:
        with httpx.Client(base_url=self._url, timeout=HANG, headers=self._headers) as client:
            for number in range(1 << 30):
                if self._over.is_set():
                    return
                with client.stream("POST", "/v1/completions", json=make(number)) as answer:
                    for _ in answer.iter_lines():
                        pass
                time.sleep(0.02)


def real(number: int) -> dict[str, object]:
    """A prompt of 96 tokens that was asked before, unless it is among the first."""
    place = number % PROMPTS
    prompt = [3 + (place * 31 + token * 7 + token // 5) % 240 for token in range(96)]
    return {"model": "tiny", "prompt": prompt, "max_tokens": 6, "stream": True}


def modelled(number: int) -> dict[str, object]:
    prompt = f"word {number} " * 20
    return {"model": "sim", "prompt": prompt, "max_tokens": 20, "stream": True}


MODELS = {"tiny": real, "sim": modelled}


def cases() -> list[tuple[Board, Panel]]:
    return [(board, panel) for board in BOARDS for panel in board.panels]


@pytest.mark.parametrize(
    ("board", "panel"), cases(), ids=lambda one: getattr(one, "uid", "") or one.title
)
def test_every_panel_has_data(prometheus: Prometheus, board: Board, panel: Panel) -> None:
    for query in panel.queries:
        assert prometheus.numbers(runnable(query.expression))


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: str(board.uid))
def test_every_variable_has_values(prometheus: Prometheus, board: Board) -> None:
    for variable in board.variables:
        url = f"{prometheus.url}/api/v1/label/{variable.name}/values"
        found = httpx.get(url, params={"match[]": variable.metric}, timeout=HANG).json()
        assert found["data"], variable


@pytest.mark.parametrize("alert", alerts(Bounds()), ids=lambda alert: str(alert.name))
def test_metrics_of_each_alert_are_there(prometheus: Prometheus, alert: object) -> None:
    expression: str = alert.expression  # type: ignore[attr-defined]
    for name in METRIC.findall(expression):
        assert prometheus.numbers(f"count({name})"), name


def test_the_rules_are_loaded_and_quiet(prometheus: Prometheus, rules: Path) -> None:
    found = httpx.get(f"{prometheus.url}/api/v1/rules", timeout=HANG).json()
    (group,) = found["data"]["groups"]
    written = yaml.safe_load(rules.read_text())["groups"][0]["rules"]
    assert [rule["name"] for rule in group["rules"]] == [rule["alert"] for rule in written]

    def healthy() -> bool:
        answer = httpx.get(f"{prometheus.url}/api/v1/rules", timeout=HANG).json()
        return all(rule["health"] == "ok" for rule in answer["data"]["groups"][0]["rules"])

    eventually(healthy, "evaluated rules")
    critical = [rule["name"] for rule in group["rules"] if rule["state"] == "firing"]
    assert not set(critical) & {"PenstockDown", "PenstockNotReady", "PenstockStalled"}
