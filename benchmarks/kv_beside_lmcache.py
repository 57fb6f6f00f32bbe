"""A prompt whose KV is in a tier: Penstock beside vLLM with LMCache's multi-process server.

    python benchmarks/kv_beside_lmcache.py [--repeats 2] [--tokens 6000] [--directory DIR]

Install the peers with benchmarks/peers/install_vllm.sh and install_lmcache.sh; fio is a Debian
package. Servers run one at a time, alternating. Each gets a long prompt (cold), the same three
times again, three others, and the first once more. The engines' own prefix caches are off, so a
fast answer must come from a tier. TTFT is measured on a streamed completion of four tokens.
Penstock's disk tier is also read with a cold page cache.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import facts
from support.servers import Server

from penstock.config.machine import free_port
from penstock_lab.bench.compare.processes import ProcessTree, wait_until_quiet
from penstock_lab.bench.compare.server_under_test import answers, first_line_with_digit

VOCAB = 49000
OUTPUT = 4
START_S = 300.0
SETTLE_S = 3.0
"""Pause in seconds after an answer, in which the server finishes its stores to the tier."""
QUIET_WAIT_S, MAX_FOREIGN = 60.0, 0.05
OTHERS = 3
LMCACHE_L1_GB = {"ram": "4", "disk": "0.5"}
PARTS = ("cold", "repeated", "after others", "cold page cache")


@dataclass(frozen=True, slots=True)
class Endpoint:
    port: int
    model: str


@dataclass(frozen=True, slots=True)
class ServerUnderTest:
    title: str
    system: str
    tier: str


CONTENDERS = (
    ServerUnderTest("Penstock, RAM", "penstock", "ram"),
    ServerUnderTest("vLLM + LMCache, RAM", "lmcache", "ram"),
    ServerUnderTest("Penstock, disk", "penstock", "disk"),
    ServerUnderTest("vLLM + LMCache, disk", "lmcache", "disk"),
)


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", choices=("penstock", "lmcache"), help="one system")
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="of the disk tiers"
    )
    parsed = parser.parse_args()
    peers = parsed.peers.expanduser()
    stem = facts.stem("kv-beside-lmcache", parsed.results)
    measured: dict[str, list[dict[str, list[float]]]] = {each.title: [] for each in CONTENDERS}
    disk = fio(parsed.directory)
    for repeat in range(parsed.repeats):
        for each in CONTENDERS:
            if parsed.only not in (None, each.system):
                continue
            wait_until_quiet(QUIET_WAIT_S, MAX_FOREIGN)
            found = measure(each, parsed, peers)
            measured[each.title].append(found)
            said = ", ".join(f"{part} {_all(times)}" for part, times in found.items() if times)
            print(f"{repeat + 1} {each.title}: {said}", flush=True)
    about = facts.gather(peers, ("vllm",), sys.argv)
    about["versions"]["lmcache"] = first_line_with_digit(
        [
            str(peers / "vllm/bin/python"),
            "-c",
            "from importlib.metadata import version as v; print(v('lmcache'))",
        ]
    )
    about["versions"]["fio"] = first_line_with_digit(["fio", "--version"])
    facts.write(
        stem, lines(measured, disk, about, parsed), {**about, "fio": disk, "measured": measured}
    )


def measure(
    each: ServerUnderTest, parsed: argparse.Namespace, peers: Path
) -> dict[str, list[float]]:
    """Times to first token in milliseconds, by part of the measurement (PARTS)."""
    with tempfile.TemporaryDirectory(dir=parsed.directory) as name:
        scratch = Path(name)
        start = penstock if each.system == "penstock" else lmcache
        with start(each.tier, scratch, parsed, peers) as server:
            return rounds(each, server, scratch, parsed.tokens)


def rounds(
    each: ServerUnderTest, server: Endpoint, scratch: Path, tokens: int
) -> dict[str, list[float]]:
    drawn = random.Random(11)
    prompts = [[drawn.randrange(100, VOCAB) for _ in range(tokens)] for _ in range(1 + OTHERS)]
    ttft(server, prompts[0][:300])  # Allocate buffers and load code first.
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    found["cold"].append(settled(server, prompts[0]))
    found["repeated"] = [settled(server, prompts[0]) for _ in range(3)]
    found["cold"] += [settled(server, prompt) for prompt in prompts[1:]]
    found["after others"] = [settled(server, prompts[0]) for _ in range(2)]
    if each.system == "penstock" and each.tier == "disk":
        for _ in range(3):
            drop_pages(scratch)
            found["cold page cache"].append(settled(server, prompts[0]))
    return found


def drop_pages(directory: Path) -> None:
    """Write a directory's files to disk and drop them from the page cache."""
    os.sync()
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)


def settled(server: Endpoint, prompt: Sequence[int]) -> float:
    took = ttft(server, prompt)
    time.sleep(SETTLE_S)
    return took


def ttft(server: Endpoint, prompt: Sequence[int]) -> float:
    body = {
        "model": server.model,
        "prompt": list(prompt),
        "max_tokens": OUTPUT,
        "temperature": 0,
        "stream": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=START_S)
    began = time.perf_counter()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.read()[:500]!r}")
    while not answer.readline().startswith(b"data: {"):
        pass
    took = (time.perf_counter() - began) * 1e3
    answer.read()
    connection.close()
    return took


@contextmanager
def penstock(
    tier: str, scratch: Path, parsed: argparse.Namespace, peers: Path
) -> Iterator[Endpoint]:
    place = "ram:4GiB" if tier == "ram" else f"disk:{scratch / 'kv'},8GiB"
    words = ["serve", parsed.model, "--served-model-name", "smol", "--no-enable-prefix-caching"]
    words += ["--kv-cache-memory-bytes", "1GiB", "--block-size", "16", "--kv-tier", place]
    with Server(words, (), scratch / "server.log") as server:
        yield Endpoint(server.port, "smol")


@contextmanager
def lmcache(
    tier: str, scratch: Path, parsed: argparse.Namespace, peers: Path
) -> Iterator[Endpoint]:
    port, cache = free_port(), free_port()
    words = [str(peers / "vllm/bin/lmcache"), "server", "--host", "127.0.0.1", "--port", str(cache)]
    words += ["--l1-size-gb", LMCACHE_L1_GB[tier], "--eviction-policy", "LRU"]
    words += ["--supported-transfer-mode", "engine_driven"]
    if tier == "disk":
        (scratch / "l2").mkdir()
        words += ["--l2-adapter", json.dumps({"type": "fs", "base_path": str(scratch / "l2")})]
    extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": cache}
    connector = {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }
    vllm = [
        str(peers / "vllm/bin/vllm"),
        "serve",
        str(peers / "hf-bf16"),
        "--served-model-name",
        "smol",
    ]
    vllm += [
        "--dtype",
        "bfloat16",
        "--max-model-len",
        "8192",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    vllm += ["--no-enable-prefix-caching", "--kv-transfer-config", json.dumps(connector)]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONHASHSEED": "0",
        "LMCACHE_TRACK_USAGE": "false",
    }
    with ExitStack() as stack:
        for command, log in ((words, "lmcache.log"), (vllm, "vllm.log")):
            tree = ProcessTree(command, environment, scratch / log, range(os.cpu_count() or 1))
            stack.callback(tree.end)
        deadline = time.monotonic() + START_S
        while not answers(f"http://127.0.0.1:{port}/health"):
            if not tree.alive() or time.monotonic() > deadline:
                raise RuntimeError(
                    f"vLLM is not ready:\n{(scratch / 'vllm.log').read_text()[-4000:]}"
                )
            time.sleep(0.5)
        yield Endpoint(port, "smol")


def fio(directory: Path) -> dict[str, float]:
    """Bytes per second at which fio reads files of 2 MiB blocks: bypassing the page cache, and from
    it.
    """
    found = {}
    with tempfile.TemporaryDirectory(dir=directory) as name:
        for title, words in (
            ("direct", ["--direct=1"]),
            ("cached", ["--direct=0", "--pre_read=1"]),
        ):
            command = [
                "fio",
                "--name=kv",
                f"--directory={name}",
                "--rw=read",
                "--bs=2m",
                "--size=1g",
            ]
            command += ["--numjobs=2", "--group_reporting", "--output-format=json", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[title] = float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])
    return found


def _gbps(rate: float) -> str:
    return f"{rate / 1e9:.2f} GB/s"


def _all(times: Sequence[float]) -> str:
    return "/".join(f"{each:,.0f}" for each in times)


def lines(
    measured: dict[str, list[dict[str, list[float]]]],
    disk: dict[str, float],
    about: dict[str, Any],
    parsed: argparse.Namespace,
) -> list[str]:
    rows = []
    for title, repeats in measured.items():
        cells = []
        for part in PARTS:
            times = [took for repeat in repeats for took in repeat[part]]
            cells.append(
                f"{statistics.median(times):,.0f} ({_all(sorted(times))})" if times else "-"
            )
        rows.append([title, *cells])
    return [
        f"# A prompt of {parsed.tokens:,} tokens whose KV is in a tier",
        "",
        *facts.fact_lines(about),
        f"* {parsed.repeats} repeat(s), by turns; medians (and all) of milliseconds to the first",
        "token",
        f"* fio, 2 MiB, two jobs: {_gbps(disk['direct'])} past the page cache,",
        f"{_gbps(disk['cached'])} in it",
        "",
        "Penstock computes with 4-bit weights, vLLM in bf16; KV is bf16 in both. What is compared",
        "is a prompt that is loaded; `cold` is one that is computed and stored.",
        "",
        *facts.table(("", *PARTS), rows),
    ]


if __name__ == "__main__":
    main()
