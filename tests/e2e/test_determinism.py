"""The same request gives the same tokens, bit for bit, whatever else the server does."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.server import metric
from tests.limits import HANG

REQUESTS = 24
TEXT = """
the river runs past a mill where flour is made for bread and every morning carts come up the old
road with grain from farms beyond the hill while children wave at drivers who bring news of far
cities
"""
SMALL_KV = ["--max-model-len", "320", "--block-size", "16", "--kv-cache-memory-bytes", "8MiB"]
"""About 350 tokens, for requests that need about 1,500."""


MOST_ROUNDS = 12


def requests() -> list[dict[str, Any]]:
    """Half have long prompts, groups of which begin alike; the others outgrow the memory they began
    with.

    Greedy and seeded sampling in turn.
    """
    draw = random.Random(5)
    words = TEXT.split()
    openings = [" ".join(draw.choices(words, k=count)) for count in [16, 32, 64]]
    made = []
    for number in range(REQUESTS):
        if number % 4 < 2:
            own = " ".join(draw.choices(words, k=draw.choice([5, 20, 50, 90])))
            prompt, max_tokens = f"{openings[number % 3]} {own}", draw.randint(4, 10)
        else:
            prompt, max_tokens = (
                " ".join(draw.choices(words, k=draw.randint(1, 12))),
                draw.randint(24, 40),
            )
        sampling = (
            {"temperature": 0} if number % 2 else {"temperature": 0.9, "top_p": 0.95, "top_k": 200}
        )
        own_fields = {"prompt": prompt, "max_tokens": max_tokens, "seed": number}
        made.append(
            {**own_fields, **sampling, "ignore_eos": True, "return_token_ids": True, "logprobs": 0}
        )
    return made


Answer = tuple[list[int], list[float]]


def ask(client: httpx.Client, body: dict[str, Any]) -> Answer:
    """Token ids with log-probabilities, which show the smallest difference of arithmetic."""
    (choice,) = sse.post(client, "/v1/completions", body)["choices"]
    assert len(choice["token_ids"]) == body["max_tokens"]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def together(client: httpx.Client, numbers: list[int]) -> list[Answer]:
    """The answers to all requests, started at once in the order of `numbers`."""
    bodies = requests()
    with ThreadPoolExecutor(REQUESTS) as pool:
        started = {number: pool.submit(ask, client, bodies[number]) for number in numbers}
        return [started[number].result() for number in range(len(bodies))]


def orders(*, growing: bool) -> list[list[int]]:
    """A mixed order, and if `growing` one in which those that grow come first and so meet."""
    mixed = list(range(REQUESTS))
    random.Random(1).shuffle(mixed)
    return [mixed, sorted(mixed, key=lambda number: number % 4 < 2)][: 1 + growing]


@pytest.fixture(scope="module")
def alone(serve: Serve) -> list[Answer]:
    """The answers of a server that does one thing at a time and remembers nothing."""
    with (
        serve("--no-enable-prefix-caching", "--max-num-seqs", "1") as server,
        server.client() as client,
    ):
        return [ask(client, body) for body in requests()]


@pytest.mark.parametrize(
    ("flags", "preempts"),
    [
        ([], False),
        (["--no-enable-prefix-caching", "--max-num-batched-tokens", "64"], False),
        (["--max-num-batched-tokens", "72", "--threads", "1", "--block-size", "16"], False),
        (["--max-num-batched-tokens", "96", *SMALL_KV], True),
        (["--no-enable-prefix-caching", "--no-engine-process", *SMALL_KV], True),
    ],
    ids=[
        "defaults",
        "small steps",
        "small steps, one thread",
        "preemption",
        "preemption, nothing cached",
    ],
)
def test_company_changes_nothing(
    serve: Serve, alone: list[Answer], flags: list[str], preempts: bool
) -> None:
    caches = "--no-enable-prefix-caching" not in flags
    # As many sequences as tokens in a step allow.
    with serve("--max-num-seqs", "32", *flags) as server:
        limits = httpx.Limits(max_connections=REQUESTS)
        with httpx.Client(base_url=server.url, timeout=HANG, limits=limits) as client:
            for _ in range(MOST_ROUNDS):
                # A second order finds prompts in the cache, whole, and lets growing requests meet.
                for numbers in orders(growing=preempts or caches):
                    answers = together(client, numbers)
                    different = [
                        number for number in range(REQUESTS) if answers[number] != alone[number]
                    ]
                    assert not different
                # Whether growing requests meet depends on when they arrive: some rounds pass
                # without.
                if not preempts or metric(client, "vllm:num_preemptions_total") > 0:
                    break
            assert (metric(client, "vllm:num_preemptions_total") > 0) == preempts
            assert (metric(client, "vllm:prefix_cache_hits_total") > 0) == caches
            assert metric(client, "vllm:kv_cache_usage_perc") == 0


def test_a_seed_of_the_server_makes_its_answers_repeatable(serve: Serve) -> None:
    body = {
        "prompt": "Once",
        "max_tokens": 16,
        "temperature": 1.0,
        "return_token_ids": True,
        "logprobs": 0,
    }
    answers = []
    for _ in range(2):
        with serve("--seed", "3") as server, server.client() as client:
            answers += [ask_any(client, body), ask_any(client, body)]
    assert len(set(answers)) == 1


def ask_any(client: httpx.Client, body: dict[str, Any]) -> str:
    text: str = sse.post(client, "/v1/completions", body)["choices"][0]["text"]
    return text
