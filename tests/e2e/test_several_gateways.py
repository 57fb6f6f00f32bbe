"""Two gateways that tell one another nothing, before the same modelled replicas.

Tried: a prefix that one has sent is found by the other; one is killed under load, with KV events
and without them. The share of cached tokens before and after that is printed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import httpx
import pytest
import zmq

from tests.e2e.gateway import Gateway
from tests.e2e.server import eventually, metric
from tests.e2e.sim import Sim
from tests.e2e.sse import completion
from tests.e2e.test_kv_events import BLOCK, Vllm, pool_of_the_page, value, words
from tests.limits import HANG

REPLICAS = 4
TENANTS = 24
PREFIX = 40 * BLOCK
CLIENTS = 8

Body = dict[str, object]


def prefix(tenant: int) -> list[int]:
    return [3 + (tenant * 7 + at * (tenant + 1)) % 90 for at in range(PREFIX)]


def body(tenant: int, number: int) -> Body:
    own = [3 + (number * 13 + at) % 90 for at in range(BLOCK)]
    return {"model": "sim", "prompt": prefix(tenant) + own, "max_tokens": 8}


def cached(client: httpx.Client, tenant: int, number: int) -> int:
    answer = client.post("/v1/completions", json=body(tenant, number))
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_what_one_has_sent_is_found_by_the_other() -> None:
    """By chance it would be one in four."""
    with ExitStack() as stack:
        sim = stack.enter_context(Sim("--profile", "fast", replicas=REPLICAS))
        backends = [word for url in sim.urls for word in ("--backend", url)]
        # each gateway numbers the replicas as it learns of them
        turned = [*backends[4:], *backends[:4]]
        first, second = (
            stack.enter_context(stack.enter_context(Gateway(*flags)).client())
            for flags in (backends, turned)
        )
        found = 0
        for tenant in range(TENANTS):
            assert cached(first, tenant, 0) == 0
            found += cached(second, tenant, 1) >= PREFIX
        print(f"{found} of {TENANTS} prefixes found")
        assert found >= 0.7 * TENANTS


class Fleet:
    """Modelled replicas and two gateways; with events each replica holds the prefixes of some
    tenants from before the gateways came, and has said so.
    """

    def __init__(self, stack: ExitStack, folder: Path, events: bool) -> None:
        self.sim = stack.enter_context(Sim("--profile", "fast", replicas=REPLICAS))
        self._replicas = [stack.enter_context(self.sim.client_of(at)) for at in range(REPLICAS)]
        flags = [word for url in self.sim.urls for word in ("--backend", url)]
        if events:
            flags = ["--config", str(self._followed(stack, folder))]
        self.killed, self.other = (stack.enter_context(Gateway(*flags)) for _ in range(2))
        for gateway in (self.killed, self.other) if events else ():
            with gateway.client() as client:
                addresses = [url.removeprefix("http://") for url in self.sim.urls]
                eventually(
                    lambda client=client, addresses=addresses: all(
                        value(client, "kv_events_blocks", one) > 0 for one in addresses
                    ),
                    "the blocks of all replicas",
                )

    def _followed(self, stack: ExitStack, folder: Path) -> Path:
        context = stack.enter_context(zmq.Context())
        engines = [Vllm(context, maps=False) for _ in self._replicas]
        for engine in engines:
            stack.callback(engine.close)
        for tenant in range(TENANTS):
            at = tenant % REPLICAS
            self._replicas[at].post("/v1/completions", json=body(tenant, 0)).raise_for_status()
            engines[at].stored(1 + 1000 * tenant, prefix(tenant))
        file = folder / "gateway.yaml"
        backends: list[dict[str, object]] = [
            {"url": url, "labels": {"events": str(engine.events), "replay": str(engine.replay)}}
            for url, engine in zip(self.sim.urls, engines, strict=True)
        ]
        file.write_text(pool_of_the_page(backends, words(folder / "model")))
        return file

    def tokens(self) -> tuple[float, float]:
        """Prompt tokens that were cached, and all, of all replicas."""
        names = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
        hits, asked = (sum(metric(one, name) for one in self._replicas) for name in names)
        return hits, asked

    def is_idle(self) -> bool:
        return not any(metric(one, "vllm:num_requests_running") for one in self._replicas)


class Clients:
    """They ask again and again, each request at the one gateway or the other; where that is not
    there, or breaks off, at the one that is left.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.ends: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self._numbers = count(1)
        self._leaving = False

    async def run(self) -> None:
        fleet, shares = self.fleet, []
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._one())
            for stage in range(2):
                before = await asyncio.to_thread(fleet.tokens)
                await self._more(150)
                after = await asyncio.to_thread(fleet.tokens)
                hits, asked = (b - a for a, b in zip(before, after, strict=True))
                shares.append(hits / asked)
                if stage == 0:
                    await asyncio.to_thread(fleet.killed.destroy)
            self._leaving = True
        print("cached: {:.1%} with both, {:.1%} with the one that is left".format(*shares))
        assert min(shares) > 0.5

    async def _more(self, wanted: int) -> None:
        wanted += self.ends.total()
        async with asyncio.timeout(HANG):
            while self.ends.total() < wanted:
                await asyncio.sleep(0.01)

    async def _one(self) -> None:
        urls = [self.fleet.killed.url, self.fleet.other.url]
        async with httpx.AsyncClient(timeout=HANG) as client:
            while not self._leaving:
                number = next(self._numbers)
                for url in (urls[number % 2], urls[1 - number % 2]):
                    client.base_url = httpx.URL(url)
                    try:
                        found = await completion(client, body(number % TENANTS, number))
                    except httpx.ConnectError:
                        continue
                    except httpx.HTTPError:
                        self.broken[url] += 1
                        continue
                    self.ends[found.end] += 1
                    break
                else:
                    self.ends["nowhere"] += 1


@pytest.mark.parametrize("events", [False, True], ids=["without events", "with events"])
def test_one_that_is_killed_takes_only_its_open_streams_along(tmp_path: Path, events: bool) -> None:
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, events)
        clients = Clients(fleet)
        asyncio.run(clients.run())
        assert set(clients.ends) == {"finished"}
        assert set(clients.broken) <= {fleet.killed.url}
        assert clients.broken.total() <= CLIENTS
        eventually(fleet.is_idle, "replicas without the requests of the one that was killed")
