"""KV in Redis and in S3, by real servers: found again, shared, and missed when they are gone.

Whatever happens to the store, the answers are those of an engine without one.
"""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import pytest

from penstock import LLM
from tests.e2e import test_kv_tiers as kv
from tests.e2e.conftest import Serve
from tests.e2e.server import Server, eventually
from tests.e2e.stores import CREDENTIALS, KINDS, Store
from tests.e2e.test_kv_tiers import (
    FAMILY,
    Answers,
    Open,
    answers,
    cached,
    complete,
    prompt,
)
from tests.limits import HANG

model, all_opened = kv.model, kv.opened

SEEDS = range(3)
SLOW_PREFILL = ["--max-num-batched-tokens", "32", "--max-num-seqs", "8"]
"""Steps that are too short to learn from, so that a token is taken to cost a millisecond. In truth
computing these prompts is sooner done than loading them, and would be preferred.
"""
TOKENS, CHUNK = 2010, 2000
"""Tokens of a prompt, and of its only chunk, which is asked for at once. So long that its lookup
is awaited for 0.1 s: an S3 in Python on a busy machine does not answer in the 5 ms of short
prompts.
"""
PROMPTS = [
    prompt(TOKENS),
    [*prompt(TOKENS)[:-5], *prompt(5, seed=2)],
    prompt(TOKENS, seed=3),
    prompt(17),
]
ONE_CHUNK = ["--block-size", "16", "--kv-chunk-tokens", str(CHUNK), "--dtype", "float32"]
PAUSE = 0.2
"""Seconds between rounds of traffic: the store is found to be lost, and back, by what little there
is.
"""


@pytest.fixture
def long_model(model: Path) -> Path:
    path = model / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    return model


@pytest.fixture
def opened(all_opened: Open, long_model: Path) -> Open:
    return partial(all_opened, kv_chunk_tokens=CHUNK)


@pytest.fixture
def expected(opened: Open) -> Answers:
    return answers(opened(), PROMPTS)


def load(llm: LLM, tier: int) -> None:
    """Ask until a prompt comes from the tier: one that seems slow is tried once a second, and used
    again.
    """

    def is_hit() -> bool:
        kv.forget(llm)
        before = kv.stats(llm, tier).hit_tokens
        cached(llm, PROMPTS[:1])
        return bool(kv.stats(llm, tier).hit_tokens > before)

    eventually(is_hit, "a hit")


@pytest.fixture(params=list(KINDS))
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    made = KINDS[request.param](tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.kill()


def test_hits_after_the_pool_forgot(opened: Open, store: Store, expected: Answers) -> None:
    llm = opened(store.place())
    assert answers(llm, PROMPTS) == expected
    kv.settle(llm)
    assert store.names() > 0
    for _ in range(2):
        load(llm, 0)
        kv.forget(llm)
        assert answers(llm, PROMPTS) == expected
    assert not kv.stats(llm, 0).errors


def test_behind_ram_and_disk(opened: Open, store: Store, tmp_path: Path, expected: Answers) -> None:
    llm = opened("ram:8MiB", f"disk:{tmp_path / 'kv'},64MiB", store.place())
    for _ in range(2):
        assert answers(llm, PROMPTS) == expected
        kv.forget(llm)
    llm.close()
    directories = (tmp_path / f"elsewhere{at}" for at in count())

    def is_hit() -> bool:
        """By an engine of another host: what it has computed itself it would find in its RAM."""
        other = opened("ram:8MiB", f"disk:{next(directories)},64MiB", store.place())
        assert answers(other, PROMPTS) == expected
        hit_tokens = kv.stats(other, 2).hit_tokens
        other.close()
        return bool(hit_tokens)

    eventually(is_hit, "a hit in the last tier")


def test_two_engines_share(opened: Open, store: Store, expected: Answers) -> None:
    one, other = opened(store.place()), opened(store.place())
    assert answers(one, PROMPTS) == expected
    kv.settle(one)
    load(other, 0)
    assert answers(other, PROMPTS) == expected
    stranger = opened(store.place(), kv_cache_dtype="bfloat16")
    assert cached(stranger, PROMPTS[:1]) == [0], "other numerics share nothing"


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_a_store_that_goes_and_comes_back(
    serve: Serve, long_model: Path, store: Store, death: signal.Signals
) -> None:
    """Answers stay right, the tier is skipped and says so, and heals by itself."""
    words = [*flags(store.place()), "--no-enable-prefix-caching"]
    with serve(*words, model=long_model) as server:
        wanted = {seed: text(server.url, seed) for seed in SEEDS}
        eventually(lambda: hits(server.url, 0), "a hit")
        with traffic(server.url, wanted) as answered:
            lose(store, death)
            eventually(lambda: sample(server, "skipped", store) == 1, "a tier that is skipped")
            before = answered()
            eventually(lambda: answered() > before + len(wanted), "answers without the store")
            revive(store, death)
            eventually(lambda: sample(server, "skipped", store) == 0, "a tier that has healed")
        eventually(lambda: hits(server.url, 0), "a hit again")
        # What a stopped store holds back may still succeed once it runs again.
        if death == signal.SIGKILL:
            eventually(lambda: sample(server, "errors_total", store) > 0, "a count of errors")
        name = store.place().split(",")[0]
        assert f"KV tier {name} is skipped: " in server.text()
        assert f"KV tier {name} is back" in server.text()


def test_an_engine_begins_with_whatever_the_store_still_holds(
    serve: Serve, long_model: Path, store: Store
) -> None:
    with serve(*flags(store.place()), model=long_model) as server:
        wanted = text(server.url, 0)
        assert server.stop() == 0
    assert store.names() > 0, "stores were flushed"
    logs: list[str] = []

    def text_of_a_hit() -> str:
        """By a new server each time: what one computes after a late answer, its pool has."""
        with serve(*flags(store.place()), model=long_model) as server:
            found = text(server.url, 0) if hits(server.url, 0) else ""
        logs.append(server.text())
        return found

    assert eventually(text_of_a_hit, "a hit") == wanted
    assert not any(CREDENTIALS["AWS_SECRET_ACCESS_KEY"] in log for log in logs)


def test_no_store_is_refused_at_the_start(serve: Serve, model: Path, store: Store) -> None:
    store.kill()
    server = serve(*flags(store.place()), model=model)
    assert server.wait() == 1
    assert f"127.0.0.1:{store.port}" in server.text(), server.text()


def flags(*tiers: str) -> list[str]:
    named = ["--served-model-name", FAMILY]
    return [
        *ONE_CHUNK,
        *SLOW_PREFILL,
        *named,
        *(word for tier in tiers for word in ("--kv-tier", tier)),
    ]


def text(url: str, seed: int) -> str:
    said: str = complete(url, prompt(TOKENS, seed))["choices"][0]["text"]
    return said


def hits(url: str, seed: int) -> int:
    return kv.hit_tokens(complete(url, prompt(TOKENS, seed)))["remote"]


def lose(store: Store, death: signal.Signals) -> None:
    if death is signal.SIGKILL:
        store.kill()
    else:
        store.signal(death)


def revive(store: Store, death: signal.Signals) -> None:
    if death is signal.SIGKILL:
        store.start()
    else:
        store.signal(signal.SIGCONT)


@contextmanager
def traffic(url: str, wanted: dict[int, str]) -> Iterator[Callable[[], int]]:
    """The same prompts again and again, and new ones; each answer must come and be right. Yields
    the number of answers so far, of the former.
    """
    over, wrong, count = threading.Event(), list[str](), 0

    def ask() -> None:
        nonlocal count
        while not over.is_set():
            seed = count % len(wanted)
            said = text(url, seed)
            count += 1
            if said != wanted[seed]:
                wrong.append(f"seed {seed}: {said!r}")
            complete(url, prompt(TOKENS, 1000 + count))
            over.wait(PAUSE)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield lambda: count
    finally:
        over.set()
        thread.join(HANG)
    assert not wrong
    assert count > 0


def sample(server: Server, name: str, store: Store) -> float:
    """Value of penstock:kv_tier_NAME for the store's tier."""
    page = httpx.get(f"{server.url}/metrics", timeout=HANG).text
    found = re.findall(
        rf'^penstock:kv_tier_{name}{{.*tier="([^"]*)".*}} (\S+)$', page, re.MULTILINE
    )
    tier = store.place().split(",")[0]
    values = [float(value) for label, value in found if label == tier]
    assert values, found
    return values[0]
