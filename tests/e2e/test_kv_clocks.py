"""Wall clocks that jump, and files whose times are far away: tiers take no notice."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import test_kv_tiers as kv
from tests.e2e.conftest import Serve
from tests.e2e.server import Server, eventually
from tests.e2e.stores import Redis
from tests.e2e.test_kv_tiers import FAMILY, PROMPTS, Answers, Open, answers, complete, prompt
from tests.limits import HANG

model, opened, expected = kv.model, kv.opened, kv.expected

YEAR = 365 * 86400
JUMPS = {"+20y": 20 * YEAR, "-20y": -20 * YEAR, "+0": 0, "+2d": 2 * 86400}
"""As faketime has them, and in seconds."""
ADMIN = {"Authorization": "Bearer secret"}
FLAGS = [
    *(
        "--block-size",
        "16",
        "--kv-chunk-tokens",
        "96",
        "--dtype",
        "float32",
        "--no-enable-prefix-caching",
    ),
    *("--max-num-batched-tokens", "32", "--max-num-seqs", "8"),
    *("--served-model-name", FAMILY, "--admin-api-key", "secret"),
]

Jump = Callable[[str], None]
OnFakedClock = Callable[..., Any]


@pytest.mark.parametrize("years", [-40, 40])
def test_times_of_files_say_nothing(
    opened: Open, tmp_path: Path, expected: Answers, years: int
) -> None:
    place = f"disk:{tmp_path / 'kv'},64MiB"
    first = opened(place)
    assert answers(first, PROMPTS) == expected
    first.close()
    age(tmp_path / "kv", years)
    second = opened(place)
    kv.assert_cached(second)
    assert answers(second, PROMPTS) == expected
    assert not kv.stats(second, 0).errors


@pytest.mark.parametrize("years", [-40, 40])
def test_a_full_tier_makes_room_whatever_the_times_of_its_files(
    opened: Open, tmp_path: Path, years: int
) -> None:
    llm = opened(f"disk:{tmp_path / 'kv'},256KiB")
    for seed in range(60):
        if seed == 8:
            age(tmp_path / "kv", years)
        answers(llm, [prompt(110, seed)])
        kv.settle(llm)
    stats = kv.stats(llm, 0)
    assert stats.evicted_chunks > 0
    assert stats.stored_bytes > stats.capacity_bytes
    bytes_there = sum(file.stat().st_size for file in kv.part_files(tmp_path / "kv"))
    assert bytes_there <= stats.capacity_bytes
    kv.forget(llm)
    eventually(lambda: kv.cached(llm, [prompt(110, 59)]) == [96], "what was stored last")


def age(directory: Path, years: int) -> None:
    moment = time.time() + years * YEAR
    for path in [
        *kv.part_files(directory),
        *(path for path in directory.rglob("*") if path.is_dir()),
    ]:
        os.utime(path, (moment, moment))


# A clock that jumps while a server runs
# -----------------------------------------------------------------


@pytest.fixture
def on_faked_clock(serve: Serve, model: Path, tmp_path: Path) -> OnFakedClock:
    """`with on_faked_clock(tier, ...) as (server, jump)`: `jump("+2d")` sets the wall clock of the
    server's processes only. Clocks that count from the machine's start cannot be
    set, and are not.
    """
    preload = faketime()
    clock = tmp_path / "clock"
    clock.write_text("+0\n")
    settings = [
        f"LD_PRELOAD={preload}",
        f"FAKETIME_TIMESTAMP_FILE={clock}",
        "FAKETIME_NO_CACHE=1",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
        "NO_FAKE_STAT=1",
    ]

    def jump(offset: str) -> None:
        # In one piece: a process may read it at any moment.
        clock.with_suffix(".new").write_text(f"{offset}\n")
        clock.with_suffix(".new").replace(clock)

    @contextmanager
    def run(*tiers: str) -> Iterator[tuple[Server, Jump]]:
        words = [word for tier in tiers for word in ("--kv-tier", tier)]
        with serve(*FLAGS, *words, model=model, prefix=["env", *settings]) as server:
            yield server, jump

    return run


def faketime() -> str:
    """The library that fakes the clock."""
    if shutil.which("faketime") is None:
        pytest.skip("no faketime: apt-get install faketime")
    done = subprocess.run(
        ["faketime", "-m", "-f", "+0", "env"], capture_output=True, text=True, check=True
    )
    return next(
        line for line in done.stdout.splitlines() if line.startswith("LD_PRELOAD=")
    ).partition("=")[2]


def test_hits_and_eviction_on_a_clock_that_jumps(
    on_faked_clock: OnFakedClock, tmp_path: Path
) -> None:
    with on_faked_clock("ram:64KiB", f"disk:{tmp_path / 'kv'},256KiB") as (server, jump):
        wanted = {seed: text(server, seed) for seed in range(4)}
        for number, offset in enumerate(JUMPS):
            jump(offset)
            assert_clock(server, offset)
            for seed in range(100 + 20 * number, 120 + 20 * number):
                text(server, seed)
            for seed, said in wanted.items():
                assert text(server, seed) == said
                eventually(lambda seed=seed: hits(server, seed), "a hit")
        disk = tier(server, 1)
        assert disk["evicted_chunks"] > 0
        assert disk["used_bytes"] <= disk["capacity_bytes"]
        assert not disk["errors"]


def test_a_daily_budget_is_not_renewed_by_the_wall_clock(
    on_faked_clock: OnFakedClock, tmp_path: Path
) -> None:
    budget = 128 << 10
    with on_faked_clock(f"disk:{tmp_path / 'kv'},64MiB,daily-writes={budget}") as (server, jump):
        for number, offset in enumerate(["+0", *JUMPS]):
            jump(offset)
            for seed in range(20 * number, 20 * number + 20):
                text(server, seed)
        eventually(lambda: tier(server, 0)["stored_bytes"], "a chunk on disk")
        disk = eventually(lambda: tier(server, 0), "a report")
        assert disk["stored_bytes"] <= budget
        assert disk["dropped_stores"] > 0, str(disk)
        assert not disk["errors"], disk


def test_a_breaker_opens_and_heals_on_a_clock_that_jumps(
    on_faked_clock: OnFakedClock, tmp_path: Path
) -> None:
    redis = Redis(tmp_path)
    redis.start()
    try:
        with on_faked_clock(redis.place()) as (server, jump):
            wanted = text(server, 0)
            eventually(lambda: hits(server, 0), "a hit")
            for offset in ("-20y", "+20y"):
                redis.kill()
                eventually(
                    lambda: text(server, 0) == wanted and skipped(server), "a tier that is skipped"
                )
                jump(offset)
                redis.start()
                eventually(lambda: hits(server, 0), "a hit again")
                assert text(server, 0) == wanted
    finally:
        redis.kill()


def text(server: Server, seed: int) -> str:
    said: str = complete(server.url, prompt(110, seed))["choices"][0]["text"]
    return said


def hits(server: Server, seed: int) -> int:
    by_tier = kv.hit_tokens(complete(server.url, prompt(110, seed)))
    return sum(tokens for kind, tokens in by_tier.items() if kind != "pool")


def tier(server: Server, at: int) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/v1/kv", headers=ADMIN, timeout=HANG)
    said: dict[str, Any] = answer.json()["tiers"][at]
    return said


def skipped(server: Server) -> bool:
    return tier(server, 0)["state"] != "serving"


def assert_clock(server: Server, offset: str) -> None:
    """The jump has reached the server: answers carry its time."""
    created = complete(server.url, prompt(5))["created"]
    assert abs(created - time.time() - JUMPS[offset]) < HANG
    assert "libfaketime" in Path(f"/proc/{server.engine()}/maps").read_text()
