"""`/v1/kv` and hits by tier, from a real server with a RAM tier."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.server import eventually
from tests.e2e.stores import Redis
from tests.limits import HANG

COMPLETIONS = "/v1/completions"
PROMPT = " ".join(f"Item {n} costs {n * 7 % 100} coins." for n in range(40))
BLOCK = 32
ADMIN = {"Authorization": "Bearer root-key"}


@pytest.fixture(scope="module")
def door(serve: Serve) -> Iterator[httpx.Client]:
    with (
        serve("--kv-tier", "ram:64MiB", "--admin-api-key", "root-key") as server,
        server.client() as client,
    ):
        engine = Path(f"/proc/{server.engine()}/cmdline").read_bytes()
        assert b"root-key" not in engine, "every user of the machine may read it"
        yield client


def usage(client: httpx.Client, prompt: str, **more: object) -> dict[str, Any]:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 2, **more}
    details: dict[str, Any] = sse.post(client, COMPLETIONS, body)["usage"]["prompt_tokens_details"]
    return details


def kv(client: httpx.Client, method: str, path: str = "", body: object = None) -> dict[str, Any]:
    answer = client.request(method, f"/v1/kv{path}", headers=ADMIN, json=body)
    assert answer.status_code == httpx.codes.OK, answer.text
    said: dict[str, Any] = answer.json()
    return said


def test_without_an_admin_key_the_cache_is_nobodys(serve: Serve) -> None:
    with serve() as server, server.client() as client:
        refused = client.delete("/v1/kv", headers=ADMIN)
        assert refused.status_code == httpx.codes.FORBIDDEN
        assert "--admin-api-key" in refused.json()["error"]["message"]


def test_only_the_admin_key_clears(door: httpx.Client) -> None:
    usage(door, PROMPT)
    assert door.delete("/v1/kv").status_code == httpx.codes.UNAUTHORIZED
    wrong = {"Authorization": "Bearer root"}
    assert door.delete("/v1/kv", headers=wrong).status_code == httpx.codes.UNAUTHORIZED
    again = usage(door, PROMPT)
    assert again["cached_tokens"] > 0
    tiers = again["cached_tokens_by_tier"]
    assert set(tiers) == {"pool", "ram"}
    assert sum(tiers.values()) == again["cached_tokens"]
    kv(door, "DELETE")
    assert usage(door, PROMPT)["cached_tokens"] == 0


def test_clearing_a_salt_leaves_the_others(door: httpx.Client) -> None:
    for salt in ["one", "two"]:
        usage(door, PROMPT, cache_salt=salt)
        assert usage(door, PROMPT, cache_salt=salt)["cached_tokens"] > 0
    kv(door, "DELETE", "?salt=one")
    assert usage(door, PROMPT, cache_salt="two")["cached_tokens"] > 0
    assert usage(door, PROMPT, cache_salt="one")["cached_tokens"] == 0


def finds_all(client: httpx.Client, salt: str) -> bool:
    """Whether all blocks of the prompt that may be found are."""
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 2, "cache_salt": salt}
    used = sse.post(client, COMPLETIONS, body)["usage"]
    found: int = used["prompt_tokens_details"]["cached_tokens"]
    return found == (used["prompt_tokens"] - 1) // BLOCK * BLOCK


class Disk:
    def __init__(self, at: Path) -> None:
        self._at = at / "kv"
        self.place = f"disk:{self._at},1GiB"

    def names(self) -> set[str]:
        return {str(path) for path in self._at.glob("*/*/*/*") if path.is_file()}


class InRedis:
    def __init__(self, at: Path) -> None:
        self.server = Redis(at)
        self.server.start()
        self.place = self.server.place()

    def names(self) -> set[str]:
        words = ["redis-cli", "-p", str(self.server.port), "--raw", "KEYS", "*"]
        listed = subprocess.run(words, check=True, capture_output=True, text=True, timeout=HANG)
        return set(listed.stdout.split())


@pytest.fixture(params=["disk", "redis"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk | InRedis]:
    if request.param == "disk":
        yield Disk(tmp_path)
        return
    redis = InRedis(tmp_path)
    yield redis
    redis.server.kill()


def test_a_salt_is_cleared_in_tiers_that_outlive_the_engine(
    serve: Serve, kept: Disk | InRedis
) -> None:
    words = ("--kv-tier", kept.place, "--no-enable-prefix-caching", "--admin-api-key", "root-key")
    words += ("--block-size", str(BLOCK))

    def found(client: httpx.Client, salt: str) -> int:
        return int(usage(client, PROMPT, cache_salt=salt)["cached_tokens"])

    of: dict[str, set[str]] = {}
    with serve(*words) as server, server.client() as client:
        for salt in ("one", "two"):
            assert found(client, salt) == 0
            eventually(partial(finds_all, client, salt), "a hit of all blocks")
            of[salt] = kept.names().difference(*of.values())
        kv(client, "DELETE", "?salt=one")
        eventually(lambda: not kept.names() & of["one"], "nothing of the first")
        assert kept.names() == of["two"]
        assert found(client, "two") > 0
    with serve(*words) as server, server.client() as client:
        assert found(client, "two") > 0
        assert found(client, "one") == 0
        kv(client, "DELETE", "?salt=two")
        eventually(lambda: not kept.names() & of["two"], "nothing of the second")


def test_clearing_a_prefix_leaves_the_others(door: httpx.Client) -> None:
    other = "Quite another story. " + PROMPT
    for prompt in [PROMPT, other]:
        usage(door, prompt)
    kv(door, "DELETE", body={"prompt": PROMPT})
    assert usage(door, other)["cached_tokens"] > 0
    assert usage(door, PROMPT)["cached_tokens"] == 0


def test_what_is_pinned_is_counted_until_it_is_not(door: httpx.Client) -> None:
    kv(door, "DELETE")
    usage(door, PROMPT)
    kv(door, "POST", "/pin", {"prompt": PROMPT})
    report = kv(door, "GET")
    assert report["pinned_blocks"] > 0
    assert [tier["kind"] for tier in report["tiers"]] == ["ram"]
    name = "penstock:kv_pinned_blocks"

    def on_the_page() -> bool:
        lines = door.get("/metrics").text.splitlines()
        return any(line.startswith(name) and not line.endswith(" 0") for line in lines)

    eventually(on_the_page, "a report of pinned blocks")
    kv(door, "POST", "/unpin", {"prompt": PROMPT})
    assert kv(door, "GET")["pinned_blocks"] == 0


def test_a_prefix_without_a_whole_block_is_refused(door: httpx.Client) -> None:
    answer = door.post("/v1/kv/pin", headers=ADMIN, json={"prompt": "Hi"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "kv_refused")
