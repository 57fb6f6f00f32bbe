"""Mirroring and hedging before modelled replicas, as docs/gateway.md has them.

Tried: mirrors that answer alike, differently, late or not at all; a replica that is slow to begin.
The client's answers are those of its replica in every case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.e2e.gateway import Gateway
from tests.e2e.page import example, placed
from tests.e2e.server import eventually
from tests.e2e.sim import Sim

GREEDY = {"model": "llama", "prompt": "t1 t2 t3", "max_tokens": 12, "temperature": 0}


def texts(client: httpx.Client, **more: object) -> str:
    answer = client.post("/v1/completions", json={**GREEDY, **more})
    assert answer.status_code == 200, answer.text
    if more.get("stream"):
        return "".join(re.findall(r'"text":"([^"]*)"', answer.text))
    return str(answer.json()["choices"][0]["text"])


def counts(client: httpx.Client, metric: str, label: str) -> dict[str, int]:
    """Samples of a metric of the gateway by the value of a label, without the zeros."""
    page = client.get("/metrics").text
    found = re.findall(rf'^penstock:gateway_{metric}\{{.*{label}="(\w+)"\}} (\d+)$', page, re.M)
    return {word: int(count) for word, count in found if count != "0"}


@pytest.fixture(scope="module")
def primary() -> Iterator[Sim]:
    with Sim("--served-model-name", "llama", replicas=2) as sim:
        yield sim


def mirrored(primary: Sim, mirror: str, folder: Path) -> Gateway:
    """The example of the page, with every request in the sample."""
    text = example("Mirroring").replace("share: 0.02", "share: 1")
    config = folder / "gateway.yaml"
    config.write_text(placed(text, [*primary.urls, mirror]))
    return Gateway("--config", str(config))


def compared(client: httpx.Client, wanted: dict[str, int]) -> None:
    """Wait for these outcomes: until then the mirror may have no room for another request."""
    eventually(lambda: counts(client, "mirrors_total", "outcome") == wanted, f"{wanted}")


@pytest.mark.parametrize(("seed", "outcome"), [("0", "equal"), ("1", "different")])
def test_mirrors_that_answer_are_compared(
    primary: Sim, tmp_path: Path, seed: str, outcome: str
) -> None:
    with ExitStack() as stack:
        mirror = stack.enter_context(Sim("--served-model-name", "llama-next", "--seed", seed))
        gateway = stack.enter_context(mirrored(primary, mirror.url, tmp_path))
        client = stack.enter_context(gateway.client())
        direct = stack.enter_context(primary.client_of(0))
        for number, stream in enumerate((False, True), 1):
            assert texts(client, stream=stream) == texts(direct, stream=stream)
            compared(client, {outcome: number})
        texts(client, temperature=0.7)
        compared(client, {outcome: 2, "uncompared": 1})
        models = [one["id"] for one in client.get("/v1/models").json()["data"]]
        assert models == ["llama", "llama-next"]
        page = mirror.client_of(0).get("/metrics").text
        assert 'model_name="llama-next"' in page
        differs = "its mirror in pool canary differs"
        if outcome == "different":
            assert gateway.lines(differs)
        else:
            assert differs not in gateway.text()
        assert not any("t1 t2 t3" in line for line in gateway.log)


@pytest.mark.parametrize(
    ("fault", "outcomes"),
    [
        ("refuse", {"failed", "dropped"}),  # A replica that refused has no room for a second.
        ("cut:1:3", {"failed"}),
        ("error-event:1:3", {"failed"}),
        ("early-stop:1:3", {"different"}),
    ],
)
def test_mirrors_that_fail_are_no_client_s_concern(
    primary: Sim, tmp_path: Path, fault: str, outcomes: set[str]
) -> None:
    with ExitStack() as stack:
        mirror = stack.enter_context(Sim("--served-model-name", "llama-next", "--fault", fault))
        gateway = stack.enter_context(mirrored(primary, mirror.url, tmp_path))
        client = stack.enter_context(gateway.client())
        direct = stack.enter_context(primary.client_of(0))
        expected = texts(direct, stream=True)

        def ended() -> dict[str, int]:
            return counts(client, "mirrors_total", "outcome")

        for number in range(1, 4):
            assert texts(client, stream=True) == expected
            eventually(lambda number=number: sum(ended().values()) == number, "its mirror's end")
        seen = ended()
        assert outcomes - {"dropped"} <= seen.keys() <= outcomes


def test_a_slow_replica_is_overtaken(tmp_path: Path) -> None:
    """The example of the page, with a short patience and a budget for all."""
    with ExitStack() as stack:
        name = ("--served-model-name", "llama")
        slow = stack.enter_context(Sim(*name, "--fault", "slow-headers:1:30"))
        quick = stack.enter_context(Sim(*name))
        text = example("Hedging").replace("percentile: 0.95", "after_ms: 50")
        text = text.replace("share: 0.05", "share: 1")
        config = tmp_path / "gateway.yaml"
        config.write_text(placed(text, [slow.url, quick.url]))
        gateway = stack.enter_context(Gateway("--config", str(config)))
        client = stack.enter_context(gateway.client())
        direct = stack.enter_context(quick.client())
        expected = texts(direct, stream=True)
        won = 0
        for _ in range(50):
            assert texts(client, stream=True) == expected
            won = counts(client, "hedges_total", "outcome").get("won", 0)
            if won >= 2:
                break
        assert won >= 2
        assert counts(client, "requests_total", "outcome").keys() == {"served"}

        def is_left() -> bool:
            with slow.client() as own:
                page = own.get("/metrics").text
            return re.search(r"^vllm:num_requests_running\{.*\} 0(\.0)?$", page, re.M) is not None

        eventually(is_left, "the slow replica works on nothing")
