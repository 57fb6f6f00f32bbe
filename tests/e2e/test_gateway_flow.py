"""Queues of the gateway before modelled replicas that are too few.

Tried: a tenant with few requests beside one with many, an urgent request behind both, requests that
may be refused; none is lost.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.gateway import Gateway
from tests.e2e.sim import Sim
from tests.limits import HANG

SETTINGS = """
pools:
  - name: sim
    backends: [{urls}]
    fleet: {{metrics: {{period_s: 0.05}}, slow_start_s: 0}}
    flow: {{queue: true, waiting: 1, unreported: 2}}
objectives:
  - {{name: urgent, priority: 10}}
  - {{name: batch, priority: -1}}
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Before two replicas that run two requests at once, each for about 0.2 s."""
    folder = tmp_path_factory.mktemp("flow")
    profile = folder / "profile.json"
    profile.write_text(json.dumps({"max_num_seqs": 2, "timing": {"base_us": 50_000}}))
    with Sim("--profile", str(profile), replicas=2) as sim:
        config = folder / "gateway.yaml"
        config.write_text(SETTINGS.format(urls=", ".join(sim.urls)))
        with Gateway("--config", str(config)) as gateway:
            yield gateway


QUEUE = r'penstock:gateway_queue_requests\{.*priority="0"\}'
HELD = 24
"""More streams than the replicas have room for, each for minutes."""


class Crowd:
    """Requests at once, and the tenants in the order of their answers."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.answered: list[str] = []
        self.statuses: list[int] = []
        self.held: list[asyncio.Task[None]] = []

    async def hold(self) -> None:
        """A stream that keeps a place of a replica until it is cancelled."""
        body = {"model": "sim", "prompt": "t1", "max_tokens": 3000, "stream": True}
        async with self._client.stream("POST", "/v1/completions", json=body) as answer:
            async for _ in answer.aiter_raw():
                pass

    async def arrived(self, count: int) -> None:
        """Wait until the gateway has `count` requests."""
        while metric(await self._page(), r"penstock:gateway_requests_open\{.*\}") < count:
            assert not any(stream.done() for stream in self.held), "a stream has ended"
            await asyncio.sleep(0.02)

    async def queued(self) -> None:
        """Wait until the replicas have no room."""
        while not metric(await self._page(), QUEUE):
            assert not any(stream.done() for stream in self.held), "a stream has ended"
            await asyncio.sleep(0.02)

    async def _page(self) -> str:
        return (await self._client.get("/metrics")).text

    async def ask(self, tenant: str, objective: str = "") -> httpx.Response:
        headers = {
            "x-gateway-inference-fairness-id": tenant,
            "x-gateway-inference-objective": objective,
        }
        body = {"model": "sim", "prompt": f"{tenant} t1", "max_tokens": 4}
        answer = await self._client.post("/v1/completions", json=body, headers=headers)
        self.answered.append(tenant)
        self.statuses.append(answer.status_code)
        return answer


def metric(page: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0


def test_tenants_share_a_saturated_pool_and_none_is_lost(gateway: Gateway) -> None:
    async def run() -> Crowd:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=HANG, limits=limits) as client:
            crowd = Crowd(client)
            crowd.held = [asyncio.create_task(crowd.hold()) for _ in range(HELD)]
            await crowd.arrived(HELD)
            await crowd.queued()
            tasks = [asyncio.create_task(crowd.ask("many")) for _ in range(50)]
            await crowd.arrived(HELD + 50)
            refused = await crowd.ask("batch", "batch")
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            tasks += [asyncio.create_task(crowd.ask("few")) for _ in range(5)]
            tasks.append(asyncio.create_task(crowd.ask("urgent", "urgent")))
            await crowd.arrived(HELD + 56)
            for stream in crowd.held:
                stream.cancel()
            await asyncio.gather(*tasks)
            return crowd

    crowd = asyncio.run(run())
    assert sorted(crowd.statuses) == [200] * 56 + [429]
    order = crowd.answered
    last_of_few = max(at for at, tenant in enumerate(order) if tenant == "few")
    assert order[last_of_few:].count("many") >= 5, order
    assert order[order.index("urgent") :].count("many") >= 10, order
    with gateway.client() as client:
        page = client.get("/metrics").text
    assert metric(page, r"penstock:gateway_queue_wait_seconds_count\{.*\}") >= 20
    assert metric(page, r'penstock:gateway_queue_refused_total\{.*reason="sheddable"\}') == 1
    assert metric(page, r'penstock:gateway_queue_refused_total\{.*reason="timeout"\}') == 0
