"""Streams that go on on another replica: three real engines, killed in turn under load.

Greedy and seeded streams of every endpoint have the texts that a server of its own gives them, and
end exactly once, whatever dies meanwhile: an engine, a whole server, one that is only stopped.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway
from tests.e2e.server import Server, eventually, metric
from tests.limits import HANG

Json = dict[str, Any]
TOKENS = 64
"""Length of every stream, so that the first replica's are still running when it is killed."""
BEGUN = 8
"""Tokens of a replica before it is killed."""

GREEDY: Json = {"temperature": 0}
SEEDED: Json = {"temperature": 0.9, "seed": 7}
FLAGS = (
    "--served-model-name",
    "smollm2",
    "--num-gpu-blocks-override",
    "256",
    "--no-enable-prefix-caching",
)


def requests() -> list[tuple[str, Json]]:
    made: list[tuple[str, Json]] = []
    for number in range(2):
        ask = f"Write a long story about the number {number}."
        messages = [{"role": "user", "content": ask}]
        common: Json = {"model": "smollm2", "stream": True, "ignore_eos": True}
        for sampling in (GREEDY, SEEDED):
            plain = {**common, **sampling, "max_tokens": TOKENS}
            penalty = {**plain, "frequency_penalty": 0.7, "min_tokens": TOKENS}
            made.append(("/v1/completions", {**penalty, "prompt": ask}))
            made.append(("/v1/chat/completions", {**plain, "messages": messages}))
        made.append(
            ("/v1/messages", {**common, **GREEDY, "max_tokens": TOKENS, "messages": messages})
        )
        own = {**common, **SEEDED, "max_output_tokens": TOKENS, "input": ask}
        made.append(("/v1/responses", own))
    return made


def piece(event: Json) -> str:
    """The text of an event of any endpoint."""
    if "choices" in event:
        choices = event["choices"]
        return "".join(
            one.get("text") or one.get("delta", {}).get("content") or "" for one in choices
        )
    kind, delta = event.get("type"), event.get("delta")
    if kind == "content_block_delta":
        return str(event["delta"]["text"])
    return str(delta) if kind == "response.output_text.delta" else ""


def ends(event: Json) -> bool:
    if event.get("type") in ("message_stop", "response.completed", "response.incomplete"):
        return True
    return any(one["finish_reason"] for one in event.get("choices", ()))


class Streams:
    """Requests under way at once."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests = requests()
        self.events = [0] * len(self.requests)

    async def one(self, client: httpx.AsyncClient, number: int) -> str:
        path, body = self.requests[number]
        text, finishes, done, sequence = "", 0, 0, []
        async with client.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                assert not line.startswith(":"), line
                if not line.startswith("data: "):
                    continue
                assert not done, "an event after the end"
                if line == "data: [DONE]":
                    done += 1
                    continue
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                self.events[number] += 1
                text += piece(event)
                finishes += ends(event)
                if "sequence_number" in event:
                    sequence.append(event["sequence_number"])
        assert finishes == 1, f"{path}: {finishes} ends"
        assert done == (1 if path.endswith("completions") else 0)
        assert sequence == list(range(len(sequence)))
        return text

    async def all(self, harm: Callable[[], object], victim: Server | None) -> list[str]:
        """The texts; `harm` is done to `victim` while it generates, unless it has ended before that
        was seen.
        """
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.url, timeout=HANG, limits=limits) as client:
            numbers = range(len(self.requests))
            tasks = [asyncio.create_task(self.one(client, number)) for number in numbers]
            if victim is not None:
                with victim.client() as watched:
                    begun = metric(watched, "vllm:generation_tokens_total") + BEGUN
                    # By the victim's own account: streams elsewhere may be ahead or behind.
                    while (
                        metric(watched, "vllm:num_requests_running") < 1
                        or metric(watched, "vllm:generation_tokens_total") < begun
                    ):
                        if all(task.done() for task in tasks):
                            await asyncio.to_thread(got_requests, watched, begun)
                            return await asyncio.gather(*tasks)
                        await asyncio.sleep(0.01)
                harm()
            return await asyncio.gather(*tasks)


def got_requests(watched: httpx.Client, tokens: float) -> None:
    """Wait until the server has generated `tokens` since its start."""
    eventually(lambda: metric(watched, "vllm:generation_tokens_total") >= tokens, "its tokens")


def texts(
    url: str, harm: Callable[[], object] = lambda: None, victim: Server | None = None
) -> list[str]:
    return asyncio.run(Streams(url).all(harm, victim))


@pytest.fixture(scope="module")
def engines(serve: Serve) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serve(*FLAGS)) for _ in range(3)]


def test_streams_survive_replicas_killed_in_turn(engines: list[Server], tmp_path: Path) -> None:
    expected = texts(engines[0].url)
    assert all(expected)
    flags = [word for engine in engines for word in ("--backend", engine.url)]
    # by requests inside alone: every replica has some of them
    profile = tmp_path / "running.yaml"
    profile.write_text("scorers: [{name: running}]")
    # Ten seconds, the default, are short for a replica that gets all streams of a busy machine.
    flags += ["--profile", str(profile), "--resume-timeout", str(HANG)]
    first, second, third = engines
    with ExitStack() as stack:
        gateway = stack.enter_context(Gateway(*flags))
        client = stack.enter_context(gateway.client())

        def freeze() -> None:
            stack.callback(third.signal, signal.SIGCONT)
            third.signal(signal.SIGSTOP)

        kills: list[tuple[str, Server, Callable[[], object]]] = [
            ("an engine", first, lambda: os.kill(first.engine(), signal.SIGKILL)),
            ("an API server", second, second.process.kill),
            ("an API server that hangs", third, freeze),
        ]
        went_on, took, before = 0.0, 0.0, Counter[str]()
        for what, victim, kill in kills:
            began, harmed = time.monotonic(), Event()

            def harm(kill: Callable[[], object] = kill, harmed: Event = harmed) -> None:
                harmed.set()
                kill()

            while not harmed.is_set():
                assert texts(gateway.url, harm, victim) == expected, what
            count = metric(client, "penstock:gateway_failover_seconds_count")
            total = metric(client, "penstock:gateway_failover_seconds_sum")
            assert count > went_on, f"{what}: nothing had to go on elsewhere"
            streams, mean = count - went_on, (total - took) / (count - went_on)
            within = bounds(client) - before
            before += within
            went_on, took = count, total
            print(f"\n{what}: {time.monotonic() - began:.1f} s, {streams:.0f} streams went on,")
            print(f"after {mean:.3f} s in the mean; by the bound in seconds: {dict(within)}")
            eventually(lambda: ready(client) >= 1, "a replica")
            if what == "an engine":
                eventually(lambda: ready(client) == 3, "the engine's successor")
        assert metric(client, "penstock:gateway_failovers_lost_total") == 0


def bounds(client: httpx.Client) -> Counter[str]:
    """Recoveries so far by the smallest bound, in seconds, that they stayed within."""
    page = client.get("/metrics").text
    pattern = r'^penstock:gateway_failover_seconds_bucket\{.*le="(.*)"\} (\d+)$'
    found: Counter[str] = Counter()
    before = 0
    for bound, count in re.findall(pattern, page, re.M):
        found[bound] = int(count) - before
        before = int(count)
    return found


def ready(client: httpx.Client) -> int:
    page = client.get("/metrics").text.splitlines()
    name = "penstock:gateway_replica_ready{"
    return sum(line.startswith(name) and line.endswith(" 1") for line in page)
