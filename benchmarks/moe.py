"""Speed of a mixture of experts beside llama.cpp and beside the roofline of the run.

    python benchmarks/moe.py [--file moe.gguf] [--shape small|30b-a3b|gpt-oss-20b] [--no-peer]

Writes a 4-bit checkpoint of random weights: `small` in the shape of a Qwen3-MoE (6.6B weights, of
which 1.2B are active, 3.7 GB), `30b-a3b` as Qwen3-30B-A3B (17 GB), `gpt-oss-20b` with experts in
MXFP4 (11 GB). In each repeat, first Penstock and then llama.cpp
(benchmarks/peers/install_llama_cpp.sh) loads the same file in a separate process, because two
loaded copies may not fit. Each decodes several streams and prefills 2,048 tokens. Penstock is
measured through its own API, including its scheduler. llama.cpp is measured with its
llama-batched-bench, without a server: random tokens, no sampling. The roofline is the bytes of
Penstock's weights that a step must read, counting the experts that its rows actually chose, divided
by the memory bandwidth measured around each repeat.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from support import facts
from support.random_gguf import GPT_OSS, Shape, tokenizer_values, write

from penstock import LLM, SamplingParams
from penstock_lab.bench.compare.machine import memory_bandwidth

SHAPES = {
    "small": Shape(20, 2048, 32, 4, 128, 64, 8, 768),
    "30b-a3b": Shape(48, 2048, 32, 4, 128, 128, 8, 768),
    "gpt-oss-20b": Shape(24, 2880, 64, 8, 64, 32, 4, 2880, architecture=GPT_OSS),
}
CENTRED, TABLED, BYTES = 4.5, 4.25, 8.5
"""Bits of a weight in the native decoder's formats s4, mx4 and w8."""
COLUMNS = (
    "load, tokens/s",
    "Penstock",
    "llama.cpp",
    "ratio",
    "experts a layer",
    "weights allow",
    "share",
)
PREFILL = 2048
PROMPT = 32
CONTEXT = 4096
"""Number of tokens in llama.cpp's KV cache, which all its sequences share."""
BENCH = "llama.cpp/build/bin/llama-batched-bench"
MIB = 1 << 20


def parse() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--file", type=Path, default=Path("moe.gguf"))
    made.add_argument(
        "--tokenizer",
        type=Path,
        default=Path("~/.cache/penstock/models/SmolLM2-135M-Instruct.Q4_1.gguf"),
        help="GGUF file whose tokenizer is copied; default: %(default)s",
    )
    made.add_argument("--shape", choices=SHAPES, default="small")
    made.add_argument("--layers", type=int, help="others than the shape's")
    made.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    made.add_argument("--tokens", type=int, default=48, help="decoded by each stream")
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    made.add_argument("--peers", type=Path, default=facts.DEFAULT_PEERS)
    made.add_argument("--no-peer", action="store_true", help="Penstock alone")
    made.add_argument("--results", type=Path, default=facts.RESULTS, help="default: %(default)s")
    return made.parse_args()


def prompts(count: int, length: int, vocab: int) -> list[dict[str, list[int]]]:
    """Prompts of random tokens that no earlier call used, so that no prefix is cached."""
    draw = random.Random(time.time_ns())
    rows = ([draw.randrange(100, vocab) for _ in range(length)] for _ in range(count))
    return [{"prompt_token_ids": row} for row in rows]


def seconds(llm: LLM, streams: int, length: int, tokens: int, vocab: int) -> float:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    given = prompts(streams, length, vocab)
    began = time.perf_counter()
    llm.generate(given, params, use_tqdm=False)
    return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Load:
    """What each repeat measures."""

    file: Path
    streams: tuple[int, ...]
    tokens: int
    threads: int
    vocab: int
    layers: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Result of one system in one repeat. Rates are in tokens per second."""

    ready_s: float
    """Seconds until the model answered, including the time to read its file."""
    peak_rss: int
    """Maximum resident bytes, including pages of the file that were mapped at the same time."""
    decode: dict[int, float]
    """Output tokens per second of all streams together, by number of streams."""
    prefill: float
    experts: dict[int, float] = field(default_factory=dict)
    """Average number of experts whose weights a decode step reads in each layer, by number of
    streams.
    """
    read_bytes_per_s: float = 0.0
    """Memory bandwidth in bytes per second: the higher value measured just before and just after,
    because it varies by the minute.
    """


def penstock(load: Load) -> Repeat:
    """Measure Penstock. Runs in a separate process."""
    began = time.perf_counter()
    llm = LLM(
        str(load.file),
        threads=load.threads,
        max_num_seqs=max(load.streams),
        kv_cache_memory_bytes="512MiB",
        enable_prefix_caching=False,
    )
    seconds(llm, 1, PROMPT, 1, load.vocab)
    ready = time.perf_counter() - began
    decode, experts = {}, {}
    for streams in load.streams:
        before = experts_read(llm)
        first = seconds(llm, streams, PROMPT, 1, load.vocab)
        prompts_only = experts_read(llm) - before
        whole = seconds(llm, streams, PROMPT, load.tokens + 1, load.vocab)
        decode[streams] = streams * load.tokens / (whole - first)
        decoded = experts_read(llm) - before - 2 * prompts_only
        experts[streams] = decoded / (load.tokens * load.layers)
    prefill = PREFILL / seconds(llm, 1, PREFILL, 1, load.vocab)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Repeat(ready, peak, decode, prefill, experts)


def experts_read(llm: Any) -> int:
    """Total number of experts read, as the native decoder counts them. No server reports this
    number.
    """
    read: int = llm._started.executor._backend._decoder.experts_read
    return read


def llama_cpp(program: Path, load: Load) -> Repeat:
    """Measure llama.cpp with all prompt lengths and numbers of streams that fit into its
    context.
    """
    command = [str(program), "-m", str(load.file), "-c", str(CONTEXT), "--kv-unified"]
    command += ["-npp", f"{PROMPT},{PREFILL}", "-ntg", str(load.tokens)]
    command += ["-npl", ",".join(map(str, load.streams)), "-fa", "on"]
    command += ["-t", str(load.threads), "-tb", str(load.threads), "--output-format", "jsonl"]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took = time.perf_counter() - began
    text = done.stdout + done.stderr
    rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"n_kv_max"')]
    short = [row for row in rows if row["pp"] == PROMPT]
    prefill = next(row["speed_pp"] for row in rows if row["pp"] == PREFILL)
    measured = sum(row["t"] for row in rows)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    decode = {row["pl"]: row["speed_tg"] for row in short}
    return Repeat(took - measured, peak, decode, prefill)


def step_bytes(shape: Shape, experts: float, vocab: int) -> float:
    """Bytes of weights that a decode step reads if it uses `experts` experts in each layer. Routers
    are f32.
    """
    gpt_oss = shape.architecture == GPT_OSS
    dense, expert = (BYTES, TABLED) if gpt_oss else (CENTRED, CENTRED)
    bits = dense * shape.attention() + expert * experts * shape.expert()
    layer = bits / 8 + 4 * shape.experts * shape.hidden
    return shape.layers * layer + shape.hidden * vocab * dense / 8


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of all repeats, and the roofline."""

    weights: float
    active: float
    read_bytes_per_s: float
    experts: dict[int, float]
    """Number of experts that a step reads in each layer, by number of streams."""
    roof: dict[int, float]
    repeats: dict[str, list[Repeat]]
    """Repeats by system, in order of execution."""


def measure(args: argparse.Namespace, shape: Shape) -> Measured:
    tokenizer = args.tokenizer.expanduser()
    write(args.file, shape, tokenizer)
    _, vocab = tokenizer_values(tokenizer)
    load = Load(args.file, tuple(args.streams), args.tokens, args.threads, vocab, shape.layers)
    program = args.peers.expanduser() / BENCH
    repeats: dict[str, list[Repeat]] = {"penstock": []}
    if not args.no_peer:
        repeats["llama.cpp"] = []
    fresh = multiprocessing.get_context("spawn")
    for repeat in range(args.repeats):
        read = memory_bandwidth(args.threads)
        for name, found in repeats.items():
            # In a separate process, so that its memory is free before the next system loads the
            # model.
            with ProcessPoolExecutor(1, fresh) as alone:
                if name == "penstock":
                    own = alone.submit(penstock, load).result()
                    read = max(read, memory_bandwidth(args.threads))
                    found.append(replace(own, read_bytes_per_s=read))
                else:
                    found.append(alone.submit(llama_cpp, program, load).result())
            print(f"{repeat + 1}/{args.repeats} {name}: {found[-1]}", flush=True)
    table = shape.hidden * vocab
    total = shape.layers * (shape.attention() + shape.experts * shape.expert())
    active = shape.layers * (shape.attention() + shape.experts_per_token * shape.expert())
    middle, all_own = statistics.median, repeats["penstock"]
    read = middle(own.read_bytes_per_s for own in all_own)
    experts = {n: middle(own.experts[n] for own in all_own) for n in load.streams}
    roof = {n: n * read / step_bytes(shape, experts[n], vocab) for n in load.streams}
    return Measured(total + 2 * table, active + table, read, experts, roof, repeats)


def lines(args: argparse.Namespace, shape: Shape, found: Measured) -> list[str]:
    own, other = found.repeats["penstock"], found.repeats.get("llama.cpp", [])

    def row(name: str, own: list[float], other: list[float], streams: int | None) -> list[str]:
        middle, share = statistics.median(own), ("", "", "")
        if streams is not None:
            roof = found.roof[streams]
            share = (f"{found.experts[streams]:.1f}", f"{roof:.1f}", f"{middle / roof:.0%}")
        peer = ("", "")
        if other:
            theirs = statistics.median(other)
            peer = (f"{theirs:.1f} ({spread(other)})", f"{middle / theirs:.2f}")
        return [name, f"{middle:.1f} ({spread(own)})", *peer, *share]

    rows = [
        row(
            f"decode, {n} streams",
            [repeat.decode[n] for repeat in own],
            [repeat.decode[n] for repeat in other],
            n,
        )
        for n in found.roof
    ]
    prefills = ([repeat.prefill for repeat in system] for system in (own, other))
    rows.append(row(f"prefill of {PREFILL}", *prefills, None))
    kind = "MXFP4 and Q8_0" if shape.architecture == GPT_OSS else "Q4_0"
    size = (
        f"{found.weights / 1e9:.2f} billion weights, {found.active / 1e9:.2f} billion active: "
        f"{shape.layers} layers, hidden {shape.hidden}, {shape.experts} experts of {shape.width}, "
        f"{shape.experts_per_token} for a token; {kind}, random, {gigabytes(args.file)} GB."
    )
    machine = (
        f"{args.threads} threads read {found.read_bytes_per_s / 1e9:.1f} GB/s from memory. Medians "
        f"of {args.repeats} repeats in turn, with the lowest and highest."
    )
    starts = [
        f"{name} was ready after {statistics.median(r.ready_s for r in system):.1f} s, "
        f"with at most {max(r.peak_rss for r in system) / MIB:,.0f} MiB resident."
        for name, system in found.repeats.items()
    ]
    return [size, machine, *starts, "", *facts.table(COLUMNS, rows)]


def spread(rates: list[float]) -> str:
    return f"{min(rates):.1f} to {max(rates):.1f}"


def gigabytes(file: Path) -> str:
    return f"{file.stat().st_size / 1e9:.1f}"


def main(argv: Sequence[str]) -> None:
    args = parse()
    shape = SHAPES[args.shape]
    if args.layers:
        shape = replace(shape, layers=args.layers)
    known = facts.gather(args.peers.expanduser(), [] if args.no_peer else ["llama.cpp"], argv)
    found = measure(args, shape)
    said = ["# Mixture of experts", "", *facts.fact_lines(known), "", *lines(args, shape, found)]
    print("\n".join(said))
    data = {**known, "shape": asdict(shape), **asdict(found)}
    name = "moe" if args.shape == "small" else f"moe-{args.shape}"
    facts.write(facts.stem(name, args.results), said, data)


if __name__ == "__main__":
    main(sys.argv)
