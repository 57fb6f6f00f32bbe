"""Exact prefixes: a gateway that follows the KV events of its replicas.

Tried: events as vLLM publishes them, by libzmq and msgspec, arrays and maps, with a gap that is
filled; two real engines, of which one evicts what the other computes; tiers of their own, and
a Redis that they share.
"""

from __future__ import annotations

import json
import re
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
import yaml
import zmq

from penstock.config.machine import free_port
from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway
from tests.e2e.page import example
from tests.e2e.server import Server, eventually
from tests.e2e.sim import Sim
from tests.e2e.stores import Redis

BLOCK = 16
PROMPT = [3 + n % 90 for n in range(20 * BLOCK)]


def words(directory: Path) -> Path:
    """A model directory whose tokens 0 to 99 are the words t0 to t99, as the simulator has them."""
    directory.mkdir()
    vocabulary = {f"t{number}": number for number in range(100)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "post_processor": None,
        "decoder": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t99"},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


def pool_of_the_page(backends: list[dict[str, object]], tokenizer: Path) -> str:
    """The example of docs/gateway.md, with these backends, and their labels instead of ports."""
    text = example("Exact prefixes").replace(":5557", ":{events}").replace(":5558", ":{replay}")
    found = yaml.safe_load(text)
    profile = {"scorers": [{"name": "prefix"}]}
    found["pools"][0] |= {"backends": backends, "tokenizer": str(tokenizer), "profile": profile}
    return yaml.safe_dump(found)


class Vllm:
    """vLLM's publisher: PUB and ROUTER of libzmq, batches of msgspec."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], maps: bool) -> None:
        self._pub, self._router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        for each in (self._pub, self._router):
            each.linger = 0
        self.events = self._pub.bind_to_random_port("tcp://127.0.0.1")
        self.replay = self._router.bind_to_random_port("tcp://127.0.0.1")
        self._maps = maps
        self._past: list[bytes] = []
        self._ended = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._ended = True
        self._thread.join()
        self._pub.close()
        self._router.close()

    def _serve(self) -> None:
        while not self._ended:
            if self._router.poll(20):
                peer, empty, first = self._router.recv_multipart()
                for number, payload in enumerate(self._past):
                    if number >= int.from_bytes(first, "big"):
                        name = number.to_bytes(8, "big")
                        self._router.send_multipart([peer, empty, name, payload])
                self._router.send_multipart([peer, empty, b"\xff" * 8, b""])

    def stored(self, name: int, tokens: list[int], *, lost: bool = False) -> None:
        names = [name + at for at in range(len(tokens) // BLOCK)]
        fields = {
            "block_hashes": names,
            "parent_block_hash": None,
            "token_ids": tokens,
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
        self._publish("BlockStored", fields, lost)

    def removed(self, names: list[int], *, lost: bool = False) -> None:
        self._publish("BlockRemoved", {"block_hashes": names, "medium": "GPU"}, lost)

    def _publish(self, kind: str, fields: dict[str, Any], lost: bool) -> None:
        """`lost`: no subscriber gets it."""
        batch: Any
        if self._maps:
            batch = {"ts": time.time(), "events": [{"type": kind, **fields}]}
        else:
            batch = [time.time(), [[kind, *fields.values()]]]
        payload = msgspec.msgpack.encode(batch)
        number = struct.pack(">Q", len(self._past))
        self._past.append(payload)
        if not lost:
            self._pub.send_multipart([b"kv-events", number, payload])


def value(client: httpx.Client, name: str, replica: str) -> float:
    page = client.get("/metrics").text
    found = re.search(rf'^penstock:gateway_{name}\{{.*replica="{replica}"\}} (\S+)', page, re.M)
    return float(found[1]) if found else -1.0


def decided(client: httpx.Client, body: dict[str, object]) -> tuple[str, dict[str, Any]]:
    """Where a completion went, and the answer."""
    kind = "chat/completions" if "messages" in body else "completions"
    answer = client.post(f"/v1/{kind}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-penstock-replica"], answer.json()


@pytest.mark.parametrize("maps", [False, True], ids=["arrays", "maps"])
def test_events_of_vllm_decide(tmp_path: Path, maps: bool) -> None:
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        sim = stack.enter_context(Sim(replicas=2))
        engines = [Vllm(context, maps) for _ in sim.urls]
        for engine in engines:
            stack.callback(engine.close)
        addresses = [url.removeprefix("http://") for url in sim.urls]
        labels = [{"events": str(one.events), "replay": str(one.replay)} for one in engines]
        backends: list[dict[str, object]] = [
            {"url": url, "labels": label} for url, label in zip(sim.urls, labels, strict=True)
        ]
        file = tmp_path / "gateway.yaml"
        file.write_text(pool_of_the_page(backends, words(tmp_path / "model")))
        # the past, before anybody subscribes
        engines[0].stored(1000, [90] * BLOCK)
        engines[1].stored(1, PROMPT)
        gateway = stack.enter_context(Gateway("--config", str(file), "--explain"))
        client = stack.enter_context(gateway.client())
        blocks = [0.0, 0.0]

        def until(*wanted: float) -> None:
            for place, count in enumerate(wanted):
                blocks[place] = count
            eventually(
                lambda: [value(client, "kv_events_blocks", one) for one in addresses] == blocks,
                f"{blocks} blocks",
            )

        until(1, 20)
        body: dict[str, object] = {"model": "sim", "prompt": PROMPT, "max_tokens": 1}
        texts = " ".join(f"t{token}" for token in PROMPT)
        for prompt in (PROMPT, texts, PROMPT):
            assert decided(client, body | {"prompt": prompt})[0] == addresses[1]
        engines[1].removed(list(range(1, 21)))
        engines[0].stored(1, PROMPT)
        until(21, 0)
        for _ in range(3):
            assert decided(client, body)[0] == addresses[0]
        # two that were not sent: the next one shows it, and they are asked for
        engines[0].removed(list(range(1, 21)), lost=True)
        engines[1].stored(1, PROMPT, lost=True)
        engines[0].stored(2000, [91] * BLOCK)
        engines[1].stored(2000, [91] * BLOCK)
        until(2, 21)
        assert decided(client, body)[0] == addresses[1]
        assert value(client, "kv_events_gaps_total", addresses[0]) == 1


def settings(ports: list[int]) -> str:
    return json.dumps(
        {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{ports[0]}",
            "replay_endpoint": f"tcp://*:{ports[1]}",
            "topic": "kv-events",
        }
    )


def story(number: int) -> list[dict[str, str]]:
    """A conversation of some 210 tokens."""
    text = " ".join(f"The {number}th story has a line {line}." for line in range(18))
    return [{"role": "user", "content": text}]


class Followed(NamedTuple):
    """A gateway that has read the events of two engines, and clients of all three."""

    client: httpx.Client
    direct: list[httpx.Client]
    addresses: list[str]


@contextmanager
def followed(serve: Serve, directory: Path, model_file: Path, tier: str = "") -> Iterator[Followed]:
    """Engines whose pools hold two stories; `tier` is a KV tier of each, `{}` its directory."""
    ports = [free_port() for _ in range(4)]
    pairs = (ports[:2], ports[2:])
    small = ("--served-model-name", "smollm2", "--max-model-len", "320")
    small += ("--kv-cache-memory-bytes", "11MiB")
    with ExitStack() as stack:
        engines: list[Server] = []
        for at, pair in enumerate(pairs):
            place = ("--kv-tier", tier.format(directory / str(at))) if tier else ()
            flags = (*small, *place, "--kv-events-config", settings(pair))
            engines.append(stack.enter_context(serve(*flags)))
        backends: list[dict[str, object]] = [
            {"url": engine.url, "labels": {"events": str(pair[0]), "replay": str(pair[1])}}
            for engine, pair in zip(engines, pairs, strict=True)
        ]
        file = directory / "gateway.yaml"
        file.write_text(pool_of_the_page(backends, model_file))
        gateway = stack.enter_context(Gateway("--config", str(file), "--explain"))
        client = stack.enter_context(gateway.client())
        direct = [stack.enter_context(engine.client()) for engine in engines]
        addresses = [engine.url.removeprefix("http://") for engine in engines]
        for address in addresses:
            eventually(lambda at=address: value(client, "kv_events_complete", at) == 1, "events")
        yield Followed(client, direct, addresses)


def test_a_prompt_that_was_evicted_is_computed_where_it_still_is(
    serve: Serve, tmp_path: Path, model_file: Path
) -> None:
    with followed(serve, tmp_path, model_file) as world:
        client, direct, addresses = world
        body: dict[str, object] = {"model": "smollm2", "messages": story(0), "max_tokens": 1}
        first, _ = decided(client, body)
        home = addresses.index(first)
        assert decided(client, body)[0] == first
        assert cached(decided(client, body)[1]) > 150
        # others drive it out there, and it is computed elsewhere
        for number in (1, 2, 3):
            other = body | {"messages": story(number)}
            assert direct[home].post("/v1/chat/completions", json=other).status_code == 200
        assert direct[1 - home].post("/v1/chat/completions", json=body).status_code == 200
        before = value(client, "kv_events_blocks", addresses[1 - home])
        assert before >= 0
        eventually(lambda: value(client, "kv_events_blocks", addresses[1 - home]) > 4, "its blocks")
        where, answer = decided(client, body)
        assert where == addresses[1 - home]
        assert cached(answer) > 150
        page = client.get("/metrics").text
        assert 'outcome="tokenized"} 4' in page


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def by_tier(answer: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = answer["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"]
    return found


def held(client: httpx.Client, body: dict[str, object]) -> dict[str, dict[str, int]]:
    """Tokens by tier that the gateway believes each replica to hold."""
    explained = client.post("/route/explain", json=body).json()
    return {one["address"]: one["held_tokens"] for one in explained["replicas"]}


@pytest.mark.parametrize("tier", ["ram:400MiB", "disk:{},1GiB"], ids=["ram", "disk"])
def test_a_prompt_that_a_tier_still_has_goes_to_its_replica(
    serve: Serve, tmp_path: Path, model_file: Path, tier: str
) -> None:
    with followed(serve, tmp_path, model_file, tier) as world:
        client, direct, addresses = world
        body: dict[str, object] = {"model": "smollm2", "max_tokens": 1}
        # four on each, of which a pool holds two; the gateway has sent none of them
        for number in range(8):
            asked = body | {"messages": story(number)}
            posted = direct[number % 2].post("/v1/chat/completions", json=asked)
            assert posted.status_code == 200
        for address in addresses:
            eventually(
                lambda at=address: value(client, "kv_events_blocks", at) > 20,
                "more blocks than the 15 of the pool",
            )
        for number in (0, 1, 2, 3):
            wanted = body | {"messages": story(number)}
            said = held(client, wanted)[addresses[number % 2]]
            where, answer = decided(client, wanted)
            assert where == addresses[number % 2]
            assert cached(answer) > 125
            assert said == {**dict.fromkeys(said, 0), **by_tier(answer)}
            # evicted from the pool: the tier has what the gateway counted
            assert by_tier(answer)[tier.split(":")[0]] > 125


def test_what_one_replica_stored_in_redis_counts_for_the_other(
    serve: Serve, tmp_path: Path, model_file: Path
) -> None:
    redis = Redis(tmp_path)
    redis.start()
    try:
        with followed(serve, tmp_path, model_file, redis.place()) as world:
            client, direct, addresses = world
            body: dict[str, object] = {"model": "smollm2", "max_tokens": 1}
            for number in (0, 1):
                asked = body | {"messages": story(number)}
                posted = direct[number].post("/v1/chat/completions", json=asked)
                assert posted.status_code == 200
            other = body | {"messages": story(0)}
            first = held(client, other)[addresses[0]]["pool"]
            assert first > 150

            def all_are_stored() -> bool:
                return held(client, other)[addresses[1]]["shared"] == first

            eventually(all_are_stored, "blocks in Redis")
            said = held(client, other)
            answer = direct[1].post("/v1/chat/completions", json=other).json()
            assert cached(answer) == said[addresses[1]]["shared"]
            assert by_tier(answer)["pool"] == 0
    finally:
        redis.kill()
