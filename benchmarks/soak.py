"""Memory of a saturated server over time.

    python benchmarks/soak.py [--minutes 20] [--clients 48] [--model smollm2]

Clients continuously send more requests than the server can take: streams and whole answers, several
choices, penalties, log-probabilities, long prompts, requests that are refused, clients that
disconnect. The KV pool is small, so that all of it is touched early. Reports the resident memory of
the API server and of the engine, its growth after a warm-up of a fifth of the time, and how
requests ended.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from support import facts, watching
from support.servers import Server

FLAGS = (
    "--max-num-seqs=16",
    "--max-num-queued-reqs=16",
    "--kv-cache-memory-bytes=64MiB",
    "--max-model-len=2048",
)
SAMPLE_S = 5.0
WARM_UP = 0.2
ALLOWED = 0.05
PAUSE_S = 0.05
"""Pause in seconds after a rejected request, so that rejections do not make up most of the load."""


def request(rng: random.Random) -> dict[str, Any]:
    """The body of one random request of the mix."""
    words = " ".join(rng.choice(("river", "stone", "light", "house")) for _ in range(200))
    kinds: tuple[dict[str, Any], ...] = (
        {"prompt": "Once upon a time", "max_tokens": 60, "stream": True},
        {"prompt": words[: rng.randint(20, 1000)], "max_tokens": 30},
        {"prompt": "A list:", "max_tokens": 20, "n": 3, "temperature": 1.0},
        {"prompt": "More", "max_tokens": 40, "frequency_penalty": 1.0, "stream": True},
        {"prompt": "Odds", "max_tokens": 10, "logprobs": 5, "echo": True},
        {"prompt": words, "max_tokens": 5, "logit_bias": {"5": -100}, "stop": ["river"]},
        {"prompt": words, "max_tokens": 100_000},
        {"prompt": "wrong", "temperature": -1},
    )
    return rng.choice(kinds)


async def client(url: str, seed: int, until: float, ends: Counter[str]) -> None:
    rng = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        while time.monotonic() < until:
            body = request(rng)
            leaves = body.get("stream") and rng.random() < 0.2
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                if leaves and answer.status_code == 200:
                    await anext(answer.aiter_raw())
                    ends["left"] += 1
                else:
                    await answer.aread()
                    ends[str(answer.status_code)] += 1
            if answer.status_code != 200:
                await asyncio.sleep(PAUSE_S)


async def watch(pids: dict[str, int], until: float, samples: dict[str, list[float]]) -> None:
    while time.monotonic() < until:
        await asyncio.sleep(SAMPLE_S)
        for name, pid in pids.items():
            samples[name].append(round(watching.resident_mib(pid), 1))
        print(*(f"{name} {sizes[-1]} MiB" for name, sizes in samples.items()), flush=True)


async def soak(server: Server, clients: int, seconds: float) -> tuple[dict[str, Any], Counter[str]]:
    front_door, engine = server.tree.pids()
    pids = {"API server": front_door, "engine": engine}
    samples: dict[str, list[float]] = {name: [] for name in pids}
    ends: Counter[str] = Counter()
    until = time.monotonic() + seconds
    load = (client(server.url, seed, until, ends) for seed in range(clients))
    await asyncio.gather(watch(pids, until, samples), *load)
    return samples, ends


def growth(sizes: list[float]) -> float:
    """Relative growth of memory: the median over the last fifth of `sizes`, divided by the median
    over the first fifth after the warm-up, minus 1.
    """
    part = max(1, len(sizes) // 5)
    first = sizes[int(len(sizes) * WARM_UP) :][:part]
    return statistics.median(sizes[-part:]) / statistics.median(first) - 1


def main() -> int:
    parser = facts.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=48)
    given = parser.parse_args()
    with TemporaryDirectory(prefix="soak-") as name:
        log = Path(name) / "server.log"
        words = ["serve", given.model, "--served-model-name=soak", *FLAGS]
        with Server(words, (), log) as server:
            samples, ends = asyncio.run(soak(server, given.clients, given.minutes * 60))
    grown = {process: growth(sizes) for process, sizes in samples.items()}
    known = facts.gather(given.peers, (), sys.argv)
    rows = [
        (name, sizes[int(len(sizes) * WARM_UP)], sizes[-1], f"{grown[name]:+.1%}")
        for name, sizes in samples.items()
    ]
    lines = [
        "# Memory of a saturated server",
        "",
        *facts.fact_lines(known),
        "",
        f"{given.minutes:g} minutes, {given.clients} clients without a pause, `{' '.join(FLAGS)}`.",
        f"Ends: {dict(sorted(ends.items()))}.",
        "",
        *facts.table(("process", "after warm-up, MiB", "last, MiB", "growth"), rows),
    ]
    data = {"facts": known, "samples_mib": samples, "every_s": SAMPLE_S, "ends": ends}
    facts.write(facts.stem("soak", given.results), lines, {**data, "growth": grown})
    print("\n".join(lines))
    return 0 if all(each <= ALLOWED for each in grown.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
