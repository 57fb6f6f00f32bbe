"""Prefixes that come back from RAM, disk and remote stores: the tokens and log-probabilities of an
engine without tiers, bit for bit, whatever happened to what was stored.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from penstock import LLM, SamplingParams
from tests.e2e.conftest import Serve
from tests.e2e.server import Server, eventually
from tests.e2e.test_parallel import tiny
from tests.e2e.test_reference import greedy_entries
from tests.limits import HANG

FAMILY = "llama"
BLOCK, CHUNK = 16, 32
SIZES = {
    "block_size": BLOCK,
    "kv_chunk_tokens": CHUNK,
    "max_num_batched_tokens": 32,
    "max_num_seqs": 8,
}
"""Steps are too short to learn from, so that a token is taken to cost a millisecond. In truth
computing these prompts may be sooner done than loading them, and would be preferred.
"""
VOCAB = 256

Prompts = Sequence[list[int]]
Open = Callable[..., LLM]
Answers = list[tuple[list[int], list[Any], list[Any]]]


@pytest.fixture
def model(repository: Path, tmp_path: Path) -> Path:
    return tiny(repository, tmp_path, FAMILY)[0]


@pytest.fixture
def opened(model: Path) -> Iterator[Open]:
    made: list[LLM] = []

    def make(*tiers: str, **options: Any) -> LLM:
        tiers_option = {"kv_tier": list(tiers)} if tiers else {}
        made.append(LLM(str(model), **{"dtype": "float32", **SIZES, **tiers_option, **options}))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


def prompt(tokens: int, seed: int = 1) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(3, VOCAB) for _ in range(tokens)]


def answers(llm: LLM, prompts: Prompts, tokens: int = 6) -> Answers:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=2)
    results = llm.generate(prompts, params)
    return [(r.outputs[0].token_ids, r.outputs[0].logprobs, r.prompt_logprobs) for r in results]


def cached(llm: LLM, prompts: Prompts) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    return [result.num_cached_tokens for result in llm.generate(prompts, params)]


def assert_cached(llm: LLM) -> None:
    """The longest prompt comes from the cache: at once, unless a busy machine answers late."""
    eventually(lambda: cached(llm, PROMPTS[:1]) == [96], "a hit")


def settle(llm: LLM) -> None:
    """Everything that can be stored is."""
    tiers = llm._started.scheduler.tiers
    deadline = time.monotonic() + HANG
    while tiers.busy:
        tiers.poll()
        assert time.monotonic() < deadline, "transfers do not end"
        time.sleep(0.001)


def forget(llm: LLM) -> None:
    """The pool finds nothing any more."""
    settle(llm)
    llm._started.admin.kv.forget_all()


def stats(llm: LLM, at: int) -> SimpleNamespace:
    report: Any = llm._started.admin.report()
    return SimpleNamespace(**report["tiers"][at])


PROMPTS = [
    prompt(110),
    prompt(110)[:70] + prompt(30, seed=2),
    prompt(64, seed=3),
    prompt(65, seed=3),
    prompt(17),
]


@pytest.fixture
def expected(opened: Open) -> Answers:
    return answers(opened(), PROMPTS)


@pytest.mark.parametrize("tiers", [["ram:8MiB"], ["disk:{},64MiB"], ["ram:8MiB", "disk:{},64MiB"]])
@pytest.mark.parametrize("searched", [True, False])
def test_hits_and_parts_of_hits_change_nothing(
    opened: Open, tmp_path: Path, expected: Answers, tiers: list[str], searched: bool
) -> None:
    llm = opened(*(tier.format(tmp_path / "kv") for tier in tiers), enable_prefix_caching=searched)
    assert answers(llm, PROMPTS) == expected
    for _ in range(3):
        forget(llm)
        assert answers(llm, PROMPTS) == expected
    forget(llm)
    assert_cached(llm)
    assert stats(llm, 0).hit_tokens > 0
    assert not stats(llm, 0).errors


def test_a_restart_finds_what_is_on_disk(opened: Open, tmp_path: Path, expected: Answers) -> None:
    place = f"disk:{tmp_path / 'kv'},64MiB"
    first = opened(place)
    assert answers(first, PROMPTS) == expected
    first.close()
    second = opened(place)
    assert_cached(second)
    assert answers(second, PROMPTS) == expected


def test_two_replicas_share_a_directory(opened: Open, tmp_path: Path, expected: Answers) -> None:
    place = f"disk:{tmp_path / 'kv'},64MiB"
    one, other = opened(place), opened(place)
    assert answers(one, PROMPTS) == expected
    settle(one)
    assert_cached(other)
    assert answers(other, PROMPTS) == expected


def test_other_weights_or_numerics_share_nothing(opened: Open, tmp_path: Path) -> None:
    place = f"disk:{tmp_path / 'kv'},64MiB"
    one = opened(place)
    answers(one, PROMPTS)
    settle(one)
    assert cached(opened(place, kv_cache_dtype="bfloat16"), PROMPTS[:1]) == [0]
    assert cached(opened(place, block_size=32), PROMPTS[:1]) == [0]


def test_ram_that_is_too_small_changes_nothing(opened: Open, expected: Answers) -> None:
    block = opened()._started.kv.block_bytes
    llm = opened(f"ram:{max(7 * block, 2**16)}")
    for _ in range(3):
        assert answers(llm, PROMPTS) == expected
        forget(llm)
    assert stats(llm, 0).used_bytes <= stats(llm, 0).capacity_bytes


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "directory"])
def test_damaged_files_are_misses(
    opened: Open, tmp_path: Path, expected: Answers, damage: str
) -> None:
    place = f"disk:{tmp_path / 'kv'},64MiB"
    first = opened(place)
    answers(first, PROMPTS)
    first.close()
    drawn = random.Random(4)
    files = part_files(tmp_path / "kv")
    for file in files:
        data = bytearray(file.read_bytes())
        if damage == "flip":
            data[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)
            file.write_bytes(data)
        elif damage == "truncate":
            file.write_bytes(data[: drawn.randrange(len(data))])
        elif damage == "empty":
            file.write_bytes(b"")
        else:
            file.unlink()
            file.mkdir()
    second = opened(place)
    assert answers(second, PROMPTS) == expected
    if damage in ("flip", "truncate", "empty"):
        assert eventually(lambda: stats(second, 0).quarantined_chunks, "a chunk in quarantine")
    forget(second)
    assert answers(second, PROMPTS) == expected


def part_files(directory: Path) -> list[Path]:
    files = [
        path
        for path in directory.rglob("*.h*")
        if path.is_file() and "quarantine" not in path.parts
    ]
    assert files, "nothing was stored"
    return files


def test_a_disk_that_fills_up_is_no_error(opened: Open, tmp_path: Path, expected: Answers) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(mount)],
        check=False,
        capture_output=True,
    )
    if done.returncode:
        pytest.skip(f"no small file system: {done.stderr.decode().strip()}")
    try:
        llm = opened(f"disk:{mount},200KiB", kv_chunk_tokens=16)
        (mount / "other").write_bytes(bytes(250 << 10))
        for _ in range(3):
            assert answers(llm, PROMPTS) == expected
            forget(llm)
        llm.close()
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_tensor_parallel_ranks_and_one_rank_read_the_same_files(
    opened: Open, tmp_path: Path
) -> None:
    place = f"disk:{tmp_path / 'kv'},64MiB"
    grid = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp", "threads": 1}
    two = opened(place, **grid)
    said = answers(two, PROMPTS)
    two.close()
    one = opened(place)
    assert_cached(one)
    assert [tokens for tokens, _, _ in answers(one, PROMPTS)] == [tokens for tokens, _, _ in said]


@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2)])
def test_ranks_move_their_parts(opened: Open, tmp_path: Path, grid: tuple[int, int]) -> None:
    tp, pp = grid
    sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    options = {**sizes, "distributed_executor_backend": "mp", "threads": 1}
    plain = answers(opened(**options), PROMPTS)
    llm = opened("ram:8MiB", f"disk:{tmp_path / 'kv'},64MiB", **options)
    for _ in range(3):
        assert answers(llm, PROMPTS) == plain
        forget(llm)
    assert stats(llm, 0).hit_tokens > 0
    llm.close()
    again = opened(f"disk:{tmp_path / 'kv'},64MiB", **options)
    assert_cached(again)
    assert answers(again, PROMPTS) == plain


def test_the_default_model_gives_the_tokens_of_transformers_from_a_tier(
    model_file: Path, shared: Path, tmp_path: Path
) -> None:
    llm = LLM(
        str(model_file),
        quantization="none",
        kv_cache_memory_bytes="128MiB",
        max_model_len=1024,
        block_size=16,
        kv_chunk_tokens=64,
        enable_prefix_caching=False,
        kv_tier=["ram:256MiB", f"disk:{tmp_path / 'kv'},256MiB"],
    )
    entries = greedy_entries(shared)
    try:
        for _ in range(2):
            for entry in entries:
                params = SamplingParams(
                    temperature=0, max_tokens=len(entry["out_ids"]), ignore_eos=True
                )
                result = llm.generate([entry["prompt_ids"]], params)[0]
                assert result.outputs[0].token_ids == entry["out_ids"], entry["prompt_ids"][:8]
            settle(llm)
        assert stats(llm, 0).hit_tokens > 0
    finally:
        llm.close()


# Servers
# --------------------------------------------------------------------------------------------


def complete(url: str, tokens: list[int], **more: Any) -> dict[str, Any]:
    body = {
        "model": FAMILY,
        "prompt": tokens,
        "max_tokens": 5,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=HANG)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def hit_tokens(answer: dict[str, Any]) -> dict[str, int]:
    details = answer["usage"]["prompt_tokens_details"]
    return details["cached_tokens_by_tier"]  # type: ignore[no-any-return]


FLAGS = ["--block-size", "16", "--kv-chunk-tokens", "32", "--dtype", "float32"]
FLAGS += ["--max-num-batched-tokens", "32", "--max-num-seqs", "8"]


def flags(model: Path, *tiers: str) -> list[str]:
    return [
        *FLAGS,
        "--served-model-name",
        FAMILY,
        *(word for tier in tiers for word in ("--kv-tier", tier)),
    ]


def test_sigterm_flushes_and_kill_9_loses_no_more_than_was_not_stored(
    serve: Serve, model: Path, tmp_path: Path
) -> None:
    """An engine that is killed at random points never gives another answer than before."""
    place = f"disk:{tmp_path / 'kv'},64MiB"
    with serve(*flags(model, place), model=model) as server:
        wanted = {
            seed: complete(server.url, prompt(110, seed))["choices"][0]["text"] for seed in range(8)
        }
        assert server.stop() == 0
    assert part_files(tmp_path / "kv"), "stores were flushed"
    drawn = random.Random(5)
    with serve(*flags(model, place), "--no-enable-prefix-caching", model=model) as server:
        eventually(lambda: hit_tokens(complete(server.url, prompt(110, 0)))["disk"] == 96, "a hit")
        for _ in range(3):
            shutil.rmtree(tmp_path / "kv" / "penstock-kv-1", ignore_errors=True)
            for seed in range(8):
                _ask_and_leave(server.url, seed, drawn)
            engine = eventually(lambda: _ready_engine(server), "an engine")
            for seed in drawn.sample(range(8), 3):
                assert complete(server.url, prompt(110, seed))["choices"][0]["text"] == wanted[seed]
            os.kill(engine, signal.SIGKILL)
            eventually(
                lambda before=engine: _ready_engine(server) not in (None, before), "another engine"
            )
        for seed, text in wanted.items():
            assert complete(server.url, prompt(110, seed))["choices"][0]["text"] == text


def _ask_and_leave(url: str, seed: int, drawn: random.Random) -> None:
    body = {"model": FAMILY, "prompt": prompt(110, seed), "max_tokens": 1}
    with suppress(httpx.HTTPError):
        httpx.post(f"{url}/v1/completions", json=body, timeout=0.02 + drawn.random() * 0.05)


def _ready_engine(server: Server) -> int | None:
    """Its process, once it answers."""
    with suppress(httpx.HTTPError, ValueError):
        if httpx.get(f"{server.url}/health", timeout=HANG).status_code == 200:
            return server.engine()
    return None


def test_operators_can_forget_and_pin(serve: Serve, model: Path) -> None:
    words = [*flags(model, "ram:8MiB"), "--admin-api-key", "secret"]
    with serve(*words, model=model) as server:
        headers = {"Authorization": "Bearer secret"}
        complete(server.url, prompt(100))
        with httpx.Client(base_url=server.url, headers=headers, timeout=HANG) as admin:
            pinned = admin.post("/v1/kv/pin", json={"prompt": prompt(100)})
            assert pinned.status_code == 200, pinned.text
            report = admin.get("/v1/kv").json()
            assert report["pinned_blocks"] == 100 // BLOCK
            assert admin.delete("/v1/kv").status_code == 200
            assert admin.get("/v1/kv").json()["pool"]["named"] == 0
        assert httpx.delete(f"{server.url}/v1/kv").status_code in (401, 403)
        usage = hit_tokens(complete(server.url, prompt(100)))
        assert usage["pool"] == 0


def test_metrics_say_what_the_tiers_did(serve: Serve, model: Path) -> None:
    with serve(*flags(model, "ram:8MiB"), "--no-enable-prefix-caching", model=model) as server:
        complete(server.url, prompt(100))
        eventually(
            lambda: hit_tokens(complete(server.url, prompt(100)))["ram"] == 96, "a hit in RAM"
        )
        with server.client() as client:
            eventually(
                lambda: "penstock:kv_tier_hit_tokens_total{" in client.get("/metrics").text,
                "a metric",
            )


def test_what_cannot_be_opened_is_refused_at_the_start(
    serve: Serve, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    for place, word in (
        (f"disk:{tmp_path / 'nowhere' / 'kv'},64MiB", "nowhere"),
        (f"disk:{tmp_path / 'file'},64MiB", "directory"),
        ("redis://127.0.0.1:1/0", "127.0.0.1:1"),
    ):
        server = serve(*flags(model, place), model=model)
        eventually(lambda server=server: server.process.poll() is not None, "the end of the server")
        assert server.process.poll() == 1
        assert word in server.text(), server.text()
