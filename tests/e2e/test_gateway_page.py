"""Every YAML of docs/gateway.md as the configuration of a gateway, and what it brings about."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.e2e import test_extproc, test_failover_text, test_gateway_policies, test_kv_events
from tests.e2e.echo import FULL, Echo
from tests.e2e.gateway import Gateway
from tests.e2e.page import example, examples, placed, requested
from tests.e2e.server import eventually, metric
from tests.e2e.sim import Sim
from tests.e2e.sse import Completion, completion
from tests.limits import HANG

BODY: dict[str, object] = {"model": "llama", "prompt": "t1 t2 t3", "max_tokens": 4}
LLAMA = ("--served-model-name", "llama")
SATURATED = "Queues and priorities"
KINDS = "Kinds of the inference extension"
OPEN = re.compile(
    r"^(?:penstock:gateway_queue_requests|vllm:num_requests_(?:running|waiting))\{.*\} (\S+)$", re.M
)
"""Requests in a gateway's queue, or of a replica."""


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    with Sim(*LLAMA, replicas=2) as started:
        yield started


def run(text: str, urls: list[str], folder: Path, *flags: str) -> Gateway:
    file = folder / "gateway.yaml"
    file.write_text(placed(text, urls))
    return Gateway("--config", str(file), *flags)


def ask(client: httpx.Client, **more: object) -> httpx.Response:
    return client.post("/v1/completions", json={**BODY, **more})


def test_retries(tmp_path: Path) -> None:
    with ExitStack() as stack:
        echoes = [stack.enter_context(Echo(("llama",), status=503)) for _ in range(3)]
        text = example("Retries")
        gateway = stack.enter_context(run(text, [echo.url for echo in echoes], tmp_path))
        client = stack.enter_context(gateway.client())
        assert ask(client).status_code == 503
        assert sorted(len(echo.seen) for echo in echoes) == [0, 1, 1]
        for echo in echoes[1:]:
            echo.status = 200
        for _ in range(20):
            assert ask(client).status_code == 200


async def crowd(url: str, replicas: list[str]) -> list[str]:
    """Tenants in the order of their answers: 40 requests of one at once, then one each of two
    others, the last of which is the page's. Until all have come, streams that are left then keep
    the replicas busy.
    """
    path, headers, body = requested(SATURATED)
    limits = httpx.Limits(max_connections=None)
    order: list[str] = []
    async with httpx.AsyncClient(base_url=url, timeout=HANG, limits=limits) as client:

        async def send(name: str, headers: dict[str, str]) -> None:
            kind = {"content-type": "application/json"}
            answer = await client.post(path, content=body, headers=kind | headers)
            assert answer.status_code == 200, answer.text
            order.append(name)

        async def stay() -> None:
            long = {**json.loads(body), "stream": True, "max_tokens": 3000}
            many = {"x-gateway-inference-fairness-id": "many"}
            async with client.stream("POST", path, json=long, headers=many) as answer:
                async for _ in answer.aiter_raw():
                    pass

        async def arrived(count: int) -> None:
            """Wait until the gateway's queue and the replicas have `count` requests."""
            open_ = 0
            while open_ < count:
                assert not any(task.done() for task in busy), "a stream has ended"
                await asyncio.sleep(0.02)
                pages = [(await client.get(f"{one}/metrics")).text for one in (url, *replicas)]
                open_ = sum(int(float(found)) for found in OPEN.findall("\n".join(pages)))

        async def refused() -> bool:
            """Whether a sheddable request is: not in the moment in which a replica has room."""
            post = client.post(path, json=json.loads(body), headers=batch)
            try:
                answer = await asyncio.wait_for(post, timeout=10)
            except TimeoutError:
                return False
            return answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1

        many = {"x-gateway-inference-fairness-id": "many"}
        batch = {"x-gateway-inference-objective": "batch"}
        busy = [asyncio.create_task(stay()) for _ in range(24)]
        await arrived(24)
        while not await refused():
            assert not any(task.done() for task in busy), "a stream has ended"
        tasks = [asyncio.create_task(send("many", many)) for _ in range(40)]
        await arrived(64)
        fair = dict(headers)
        del fair["x-gateway-inference-objective"]
        tasks.append(asyncio.create_task(send("few", fair)))
        tasks.append(asyncio.create_task(send("interactive", headers)))
        await arrived(66)
        for task in busy:
            task.cancel()
        await asyncio.gather(*tasks)
    return order


def test_queues_and_objectives(tmp_path: Path) -> None:
    """Replicas run two requests at once, and have room for few more."""
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"max_num_seqs": 2, "timing": {"base_us": 50_000}}))
    with ExitStack() as stack:
        sim = stack.enter_context(Sim(*LLAMA, "--profile", str(profile), replicas=2))
        gateway = stack.enter_context(run(example(SATURATED), sim.urls, tmp_path))
        order = asyncio.run(crowd(gateway.url, sim.urls))
    assert Counter(order) == {"many": 40, "few": 1, "interactive": 1}
    # both overtook requests that had come before them
    for name in ("interactive", "few"):
        assert order[order.index(name) :].count("many") >= 10, order


def broken(url: str, dies: Sim | None = None) -> list[Completion]:
    """Twelve streams, of which those of a replica that dies break off."""

    async def run() -> list[Completion]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=HANG, limits=limits) as client:
            bodies = [{**BODY, "prompt": f"t{at} t2", "max_tokens": 100} for at in range(12)]
            tasks = [asyncio.create_task(completion(client, body)) for body in bodies]
            if dies is not None:
                await until_it_has_some(dies)
                dies.process.kill()
            return await asyncio.gather(*tasks)

    return asyncio.run(run())


async def until_it_has_some(sim: Sim) -> None:
    """Wait for three requests, whether they are computed by now or not."""
    taken = re.compile(r"^vllm:(?:num_requests_running|request_success_total)\{.*\} (\S+)", re.M)
    count = 0.0
    async with httpx.AsyncClient(timeout=HANG) as client:
        while count < 3:
            page = (await client.get(f"{sim.url}/metrics")).text
            count = sum(map(float, taken.findall(page)))


@pytest.mark.parametrize("goes_on", [True, False])
def test_failover(tmp_path: Path, goes_on: bool) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"timing": {"base_us": 20_000}}))
    flags = (*LLAMA, "--profile", str(profile))
    text = example("Failover")
    if not goes_on:
        assert "resume_timeout_s: 10" in text
        text = text.replace("resume_timeout_s: 10", "resume_timeout_s: 0")
    with ExitStack() as stack:
        # Its streams are under way when it dies, however late that is.
        dies = Sim(*flags, "--fault", "stall:1:5")
        stack.callback(dies.destroy)
        dies.wait_ready()
        stays = stack.enter_context(Sim(*flags))
        logs = ("--access-log", "--log-format", "json")
        gateway = stack.enter_context(run(text, [dies.url, stays.url], tmp_path, *logs))
        expected = [one.text for one in broken(stays.url)]
        found = broken(gateway.url, dies)
        client = stack.enter_context(gateway.client())
        went_on = metric(client, "penstock:gateway_failover_seconds_count")
        rows = client.get("/replicas").json()["pools"][0]["replicas"]
        logged = gateway.lines('"path":"/v1/completions"', '"ms":', least=12)
    dead, alive = (one.url.removeprefix("http://") for one in (dies, stays))
    moved = [one for one in map(json.loads, logged) if "continued_on" in one]
    assert len(moved) == went_on
    assert {(one["replica"], one["continued_on"]) for one in moved} <= {(dead, alive)}
    assert all(f", from {dead}, continued on {alive}; " in one["message"] for one in moved)
    by_address = {row["address"]: row for row in rows}
    assert not by_address[dead]["takes_requests"]
    assert by_address[dead]["last_error"] is not None
    assert by_address[alive]["condition"] == "ready"
    ends = Counter(one.end for one in found)
    if goes_on:
        assert [one.text for one in found] == expected
        assert ends == {"finished": 12}
        assert went_on >= 3
    else:
        assert ends["failed"] >= 3, ends
        assert ends["finished"] >= 3, ends
        assert went_on == 0


def pools(client: httpx.Client) -> dict[str, int]:
    """Requests that were served by each pool."""
    page = client.get("/metrics").text
    pattern = r'^penstock:gateway_requests_total\{.*pool="(\w+)".*outcome="served"\} (\d+)$'
    return {pool: int(count) for pool, count in re.findall(pattern, page, re.M)}


def two_pools(sim: Sim, canary: list[str], folder: Path) -> Gateway:
    """The example of gateway.yaml; its canaries are in a file, as its comment says."""
    listed = folder / "replicas.txt"
    listed.write_text("\n".join(canary))
    text = example("gateway.yaml")
    assert "dns: canary.default.svc:8000        # or file: replicas.txt" in text
    text = text.replace("dns: canary.default.svc:8000", f"file: {listed}")
    return run(text, sim.urls, folder, "--port", "0", "--explain")


def test_weights_and_renamed_models(sim: Sim, tmp_path: Path) -> None:
    with ExitStack() as stack:
        canary = stack.enter_context(Echo(("llama-next",)))
        gateway = stack.enter_context(two_pools(sim, [canary.url], tmp_path))
        client = stack.enter_context(gateway.client())
        names = Counter(ask(client, prompt=f"t{at}").json()["model"] for at in range(200))
        assert names == {"llama": 200}
        served = pools(client)
        assert served["llama"] + served["canary"] == 200
        assert 6 <= served["canary"] <= 14, served
        assert len(canary.seen) == served["canary"]
        assert {json.loads(one.body)["model"] for one in canary.seen} == {"llama-next"}
        # the log of access, with decisions
        logged = gateway.lines("/v1/completions 200", least=200)
        assert len(logged) == 200
        assert all(" of 2" in line or ": the only replica (" in line for line in logged)


def test_profiles(sim: Sim, tmp_path: Path) -> None:
    """Its filter takes out a replica with nine requests waiting, its scorers are in decisions."""
    with ExitStack() as stack:
        full = stack.enter_context(Echo(("llama-next",), metrics=FULL))
        free = stack.enter_context(Echo(("llama-next",), metrics=FULL.replace(" 9\n", " 7\n")))
        gateway = stack.enter_context(two_pools(sim, [full.url, free.url], tmp_path))
        client = stack.enter_context(gateway.client())
        body = {**BODY, "model": "llama-next"}

        def removed() -> list[str]:
            found = client.post("/route/explain", json=body).json()["replicas"]
            return [one["removed_by"] for one in found if one["removed_by"] is not None]

        eventually(lambda: removed() == ["waiting-below"], "the reports of both")
        for _ in range(10):
            answer = ask(client, model="llama-next")
            place = free.url.removeprefix("http://")
            assert answer.headers["x-penstock-replica"] == place
            decision = answer.headers["x-penstock-decision"]
            assert decision.startswith(f"{place}: the only one left ("), decision
            assert decision.endswith("; 1 left out: queue too long"), decision
        assert not full.seen
        assert ask(client).status_code == 200
        last, *others = client.get("/replicas").json()["picks"]
        assert [one["name"] for one in last["scores"]] == ["cost"]
        weights = {one["name"]: one["weight"] for one in others[0]["scores"]}
        assert weights == {"queue": 2, "kv-use": 2, "prefix": 3}


def test_kinds(tmp_path: Path) -> None:
    kinds = tmp_path / "kinds.yaml"
    kinds.write_text(example(f"{KINDS} 2"))
    text = example(KINDS).replace("kinds.yaml", str(kinds))
    models = ("llama-8b", "llama-next")
    with ExitStack() as stack:
        echoes = [stack.enter_context(Echo(models, metrics=FULL)) for _ in range(2)]
        gateway = stack.enter_context(run(text, [echo.url for echo in echoes], tmp_path))
        client = stack.enter_context(gateway.client())
        for _ in range(100):
            assert ask(client, model="chat").json()["model"] == "chat"
        seen = [json.loads(one.body)["model"] for echo in echoes for one in echo.seen]
        shares = Counter(seen)
        assert shares.keys() == set(models)
        assert 5 <= shares["llama-next"] <= 15, shares

        def status(objective: str) -> int:
            headers = {"x-gateway-inference-objective": objective}
            body = {**BODY, "model": "chat"}
            return client.post("/v1/completions", json=body, headers=headers).status_code

        eventually(lambda: status("batch") == 429, "a refusal")
        assert status("unknown") == 200


RUN_BY: dict[str, Callable[..., object]] = {
    "Retries": test_retries,
    SATURATED: test_queues_and_objectives,
    "Failover": test_failover,
    "Failover by text": test_failover_text.test_a_stream_goes_on_behind_its_text,
    "Mirroring": test_gateway_policies.test_mirrors_that_answer_are_compared,
    "Hedging": test_gateway_policies.test_a_slow_replica_is_overtaken,
    "gateway.yaml": test_weights_and_renamed_models,
    "Inside Envoy": test_extproc.test_answers_are_those_of_the_replica_in_every_mode,
    KINDS: test_kinds,
    f"{KINDS} 2": test_kinds,
    "Exact prefixes": test_kv_events.test_events_of_vllm_decide,
}
"""The test of each example; those in other files read it from the page, too."""
NOT_RUN = {
    "In Kubernetes": "its replicas are pods of a cluster: tests/e2e/test_kubernetes.py has one",
}


def test_every_example_is_run() -> None:
    assert examples().keys() == RUN_BY.keys() | NOT_RUN.keys()
