"""Prefill and time saved by KV tiers of several sizes, on the conversations of a service.

    python benchmarks/kv_trace.py mooncake_conversation.jsonl [--sample 30] [--seconds 55] [--short]

Samples one in `--sample` of the trace's conversations with all their requests, so that shared
prefixes and order are preserved. Lengths are scaled so that a block of the trace is a block of the
server, and times so that the last request arrives after `--seconds`. Each server is fresh, and its
own prefix cache is off, so that all savings come from the tier. For comparison: the savings of an
infinite cache, derived from the trace, and those of LRU and our rule with only the index, without
time passing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kv_eviction import Workload, endless, name, replay
from support import facts
from support.servers import HERE, Server

from penstock.core import PenstockError
from penstock.model import load_model
from penstock.model.locate import locate
from penstock_lab.bench.compare.processes import wait_until_quiet
from penstock_lab.bench.report import drawing
from penstock_lab.bench.report.charts import Axis, Plot, Point, Series
from penstock_lab.bench.runs import cached_tokens
from penstock_lab.bench.traces import Arrival, Trace, read

SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""RAM tiers, as shares of all blocks that the requests produce."""
BEHIND = 1 / 8
"""The share of the RAM tier that has a disk behind it with room for everything."""
SHORT_SAMPLE, SHORT_SECONDS, SHORT_SHARES = 200, 12.0, (1 / 8, 1.0)
BLOCKS = (16, 32, 64)
CHUNK_BLOCKS = 2
"""Blocks in a disk chunk: with blocks of 16 tokens, the default would be 8192 of the trace."""
POOL = "512MiB"
KV_BYTES = 2
"""Bytes of a number in the KV cache (bfloat16)."""
WARMUPS = 4
QUIET_WAIT_S, MAX_FOREIGN = 60.0, 0.05


@dataclass(frozen=True, slots=True)
class Setting:
    """Tiers of a server. `slots` is the size of its RAM tier in blocks; 0 for none."""

    title: str
    slots: int
    disk: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    setting: Setting
    prompt_tokens: int
    saved_tokens: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    e2el_p50_ms: float
    failed: int
    counters: Mapping[str, float]
    """Counters of the server at the end."""


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("trace", type=Path, help="Mooncake's JSONL")
    parser.add_argument("--sample", type=int, default=30, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=55.0, metavar="S", help="default: %(default)s"
    )
    parser.add_argument(
        "--block",
        type=int,
        choices=BLOCKS,
        default=16,
        help="tokens of a block of the trace; default: 16",
    )
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="of the disk tier"
    )
    parser.add_argument("--quiet-wait", type=float, default=QUIET_WAIT_S, metavar="S")
    parser.add_argument("--short", action="store_true", help="few requests and sizes, to try it")
    parsed = parser.parse_args()
    if parsed.short:
        parsed.sample, parsed.seconds = SHORT_SAMPLE, SHORT_SECONDS
    trace = read(parsed.trace)
    arrivals = sampled(trace, parsed.sample)
    workload = scaled(arrivals, parsed)
    block_bytes = parsed.block * token_bytes(parsed.model)
    found = [
        measure(setting, arrivals, block_bytes, parsed) for setting in settings(workload, parsed)
    ]
    check_lengths(found, workload)
    simulated = simulate(workload, [one.setting for one in found])
    about = facts.gather(parsed.peers.expanduser(), (), sys.argv)
    stem = facts.stem("kv-trace", parsed.results)
    data = {
        **about,
        "block_bytes": block_bytes,
        "measured": list(map(asdict, found)),
        "simulated_saved_tokens": simulated,
    }
    facts.write(stem, lines(about, parsed, found, simulated, block_bytes, len(arrivals)), data)
    print(
        "wrote", *drawing.write(drawing.draw(charts(found, simulated, block_bytes)), stem).values()
    )


def sampled(trace: Trace, one_in: int) -> Sequence[Arrival]:
    """All requests of the sampled conversations. The second block identifies a conversation,
    because the first one is the service's common introduction.
    """
    if trace.format != "mooncake" or not all(arrival.hash_ids for arrival in trace.arrivals):
        raise PenstockError(f"{trace.path}: not a trace of Mooncake's with hash_ids in each line")
    firsts = ((arrival, arrival.hash_ids[:2][-1]) for arrival in trace.arrivals)
    found = [arrival for arrival, first in firsts if zlib.crc32(str(first).encode()) % one_in == 0]
    if len(found) < 2:
        raise PenstockError(f"{trace.path}: one in {one_in} conversations is none: lower --sample")
    return found


def write_trace(arrivals: Sequence[Arrival], path: Path) -> None:
    with path.open("w") as file:
        for arrival in arrivals:
            fields = {
                "timestamp": round(arrival.at * 1000),
                "input_length": arrival.input_tokens,
                "output_length": arrival.output_tokens,
                "hash_ids": arrival.hash_ids,
            }
            file.write(json.dumps(fields) + "\n")


def scaled(arrivals: Sequence[Arrival], parsed: argparse.Namespace) -> Workload:
    """Workload with the blocks that each request produces: those of its prompt, then those of its
    own answer.
    """
    block = parsed.block
    requests, tokens = [], []
    for number, arrival in enumerate(arrivals):
        scale = block / arrival.block_tokens
        inputs, outputs = (
            max(1, round(n * scale)) for n in (arrival.input_tokens, arrival.output_tokens)
        )
        own = range(inputs // block, (inputs + outputs - 1) // block)
        names = [name(block_id) for block_id in arrival.hash_ids[: inputs // block]]
        requests.append((*names, *(name(f"{number}/{at}") for at in own)))
        # The last token of a prompt is always computed.
        tokens.append(inputs - 1)
    return Workload(parsed.trace.stem, block, tuple(requests), tuple(tokens))


def token_bytes(model: str) -> int:
    """KV bytes of a token."""
    spec = load_model(locate(model).path).spec
    return 2 * KV_BYTES * spec.layers * spec.attention.kv_heads * spec.attention.head_dim


def settings(workload: Workload, parsed: argparse.Namespace) -> Iterator[Setting]:
    distinct = len({block for request in workload.requests for block in request})
    yield Setting("none", 0)
    for share in SHORT_SHARES if parsed.short else SHARES:
        yield Setting("RAM", round(share * distinct))
    yield Setting("RAM + disk", round(BEHIND * distinct), disk=True)


def measure(
    setting: Setting, arrivals: Sequence[Arrival], block_bytes: int, parsed: argparse.Namespace
) -> Measured:
    wait_until_quiet(parsed.quiet_wait, MAX_FOREIGN)
    with tempfile.TemporaryDirectory(dir=parsed.directory) as scratch:
        words = serve_words(setting, block_bytes, Path(scratch), parsed)
        with Server(words, (), Path(scratch) / "server.log") as server:
            results, trace = Path(scratch) / "results", Path(scratch) / f"{parsed.trace.stem}.jsonl"
            write_trace(arrivals, trace)
            span = arrivals[-1].at - arrivals[0].at
            scales = (parsed.block / arrivals[0].block_tokens, parsed.seconds / span)
            subprocess.run(bench_words(server.url, trace, results, scales, parsed), check=True)
            counters = server.counters()
        (file,) = results.glob("*.json")
        said = json.loads(file.read_text())
    measured = Measured(
        setting,
        int(said["total_input_tokens"]),
        cached_tokens(said),
        float(said["p50_ttft_ms"]),
        float(said["p99_ttft_ms"]),
        float(said["p50_e2el_ms"]),
        int(said["failed"]),
        {
            key: value
            for key, value in counters.items()
            if "kv_tier" in key or "prompt_tokens" in key
        },
    )
    print(setting, f"saved {measured.saved_tokens:,} of {measured.prompt_tokens:,}", flush=True)
    return measured


def serve_words(
    setting: Setting, block_bytes: int, scratch: Path, parsed: argparse.Namespace
) -> list[str]:
    ram = ["--kv-tier", f"ram:{setting.slots * block_bytes}"] if setting.slots else []
    disk = ["--kv-tier", f"disk:{scratch / 'kv'},16GiB"] if setting.disk else []
    sizes = [
        "--block-size",
        str(parsed.block),
        "--kv-chunk-tokens",
        str(CHUNK_BLOCKS * parsed.block),
    ]
    pool = ["--kv-cache-memory-bytes", POOL, "--no-enable-prefix-caching"]
    return ["serve", parsed.model, *sizes, *pool, *ram, *disk]


def bench_words(
    url: str, trace: Path, results: Path, scales: tuple[float, float], parsed: argparse.Namespace
) -> list[str]:
    """Arguments for `penstock bench trace`. `scales` are those of lengths and times."""
    length, time = map(str, scales)
    return [
        *(*HERE, "bench", "trace", str(trace), "--base-url", url, "--tokenizer", parsed.model),
        *("--prompt-ids", "--disable-tqdm", "--num-warmups", str(WARMUPS)),
        *("--length-scale", length, "--time-scale", time),
        *("--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,99"),
        *("--save-result", "--result-dir", str(results)),
    ]


def check_lengths(found: Sequence[Measured], workload: Workload) -> None:
    """Check that the simulation has the same prompt lengths as the requests sent."""
    sent = sum(workload.tokens) + len(workload.tokens)
    for one in found:
        if not one.failed and one.prompt_tokens != sent:
            raise PenstockError(
                f"{one.setting}: {one.prompt_tokens} prompt tokens were sent, not {sent}"
            )


def simulate(workload: Workload, tried: Sequence[Setting]) -> dict[str, dict[int, int]]:
    """Tokens saved, by rule and slots."""
    slots = sorted({setting.slots for setting in tried if setting.slots})
    found = {
        rule: {size: replay(workload, rule, size)[0].tokens for size in slots}
        for rule in ("LRU", "Penstock")
    }
    return {**found, "infinite": {0: endless(workload).tokens}}


COLUMNS = (
    "tiers",
    "RAM, MiB",
    "tokens",
    "computed",
    "saved",
    "of infinite",
    "LRU alone",
    "our rule alone",
    "TTFT P50 ms",
    "P99 ms",
    "E2EL P50 ms",
    "failed",
)


def rows(
    found: Sequence[Measured],
    simulated: Mapping[str, Mapping[int, int]],
    block_bytes: int,
    block: int,
) -> Iterator[list[str]]:
    most = simulated["infinite"][0]
    for one in found:
        slots = one.setting.slots
        alone = [simulated[rule][slots] / most if slots else 0.0 for rule in ("LRU", "Penstock")]
        yield [
            one.setting.title,
            f"{slots * block_bytes / 2**20:,.0f}" if slots else "",
            f"{slots * block:,}" if slots else "",
            f"{one.prompt_tokens - one.saved_tokens:,}",
            f"{one.saved_tokens:,}",
            f"{one.saved_tokens / most:.1%}",
            *(f"{share:.1%}" if slots else "" for share in alone),
            f"{one.ttft_p50_ms:,.1f}",
            f"{one.ttft_p99_ms:,.1f}",
            f"{one.e2el_p50_ms:,.1f}",
            str(one.failed),
        ]


def lines(
    about: Mapping[str, Any],
    parsed: argparse.Namespace,
    found: Sequence[Measured],
    simulated: Mapping[str, Mapping[int, int]],
    block_bytes: int,
    requests: int,
) -> list[str]:
    prompt, most = found[0].prompt_tokens, simulated["infinite"][0]
    window = (
        f"one in {parsed.sample} conversations, {requests} requests within {parsed.seconds:g} s, "
        f"{parsed.block} tokens for each block of the trace"
    )
    return [
        "# Conversations of a service, by the size of the tier",
        "",
        *facts.said(about),
        f"* {parsed.trace.name}: {window}",
        f"* prompts of {prompt:,} tokens, of which an endless cache saves {most:,}",
        f"({most / prompt:.1%})",
        "",
        "`of infinite`: tokens saved, of those that an endless cache would save. `alone`: the",
        "same of the RAM tier's index without an engine, which keeps everything at once and in",
        "the order of arrival; it says nothing about the disk. `computed` and `saved`: prompt",
        "tokens by the server's usage. Servers have no prefix cache of their own. Sizes are those",
        "of the RAM tier; the disk has room for all.",
        "",
        *facts.table(COLUMNS, rows(found, simulated, block_bytes, parsed.block)),
    ]


def charts(
    found: Sequence[Measured], simulated: Mapping[str, Mapping[int, int]], block_bytes: int
) -> list[Plot]:
    most = simulated["infinite"][0]
    ram = [one for one in found if one.setting.title == "RAM"]
    sizes = {one.setting.slots: one.setting.slots * block_bytes / 2**20 for one in ram}
    tier = Axis("RAM tier", "MiB", log=True, ticks=tuple(round(size) for size in sizes.values()))
    measured = [Point(sizes[one.setting.slots], one.saved_tokens / most) for one in ram]
    shares = [Series("measured", 0, tuple(measured))]
    for style, (rule, title) in enumerate(
        (("LRU", "LRU alone"), ("Penstock", "our rule alone")), 1
    ):
        points = tuple(Point(size, simulated[rule][slots] / most) for slots, size in sizes.items())
        shares.append(Series(title, style, points))
    times = [
        Series("P50", 0, tuple(Point(sizes[one.setting.slots], one.ttft_p50_ms) for one in ram)),
        Series("P99", 1, tuple(Point(sizes[one.setting.slots], one.ttft_p99_ms) for one in ram)),
        *(
            Series(f"{title}, no tier", style, tuple(Point(size, value) for size in sizes.values()))
            for title, style, value in (
                ("P50", 2, found[0].ttft_p50_ms),
                ("P99", 3, found[0].ttft_p99_ms),
            )
        ),
    ]
    saved = "Prefill saved, of what an endless cache saves"
    first = "Time to first token by the size of the tier"
    return [
        Plot(
            "saved",
            saved,
            saved,
            tier,
            Axis("Saved", "", log=False, zero=True),
            tuple(shares),
        ),
        Plot("ttft", first, first, tier, Axis("TTFT", "ms", log=True), tuple(times)),
    ]


if __name__ == "__main__":
    main()
