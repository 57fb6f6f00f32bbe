"""Speed of a mixture of experts beside the roofline of the run.

    python benchmarks/moe.py [--file moe.gguf] [--layers 20] [--experts 64] [--streams 1 8 32]

Writes a 4-bit checkpoint of random weights in the shape of a Qwen3-MoE (about 6.6B weights of which
1.2B are active; `--layers 48 --experts 128` is that of Qwen3-30B-A3B) and measures Penstock in this
process: decode of several streams, and prefill of 2,048 tokens. The roofline is the bytes of the
weights that a step must read, over the memory bandwidth measured before and after.

Beside llama.cpp (benchmarks/peers/install_llama_cpp.sh), over HTTP, with the same file:

    penstock bench compare --model moe.gguf --server penstock --server RECIPE ...
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from penstock import LLM, SamplingParams
from support import facts
from support.random_gguf import Shape, tokenizer_values, write

BITS = 5.0
"""A weight in the decoder's w4 form: a code, and a scale and minimum for 32 of them."""
PREFILL = 2048
PROMPT = 32
READ_BYTES = 1 << 30


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
    made.add_argument("--layers", type=int, default=20)
    made.add_argument("--hidden", type=int, default=2048)
    made.add_argument("--experts", type=int, default=64)
    made.add_argument("--experts-per-token", type=int, default=8)
    made.add_argument("--width", type=int, default=768, help="of an expert")
    made.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    made.add_argument("--tokens", type=int, default=48, help="decoded by each stream")
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    made.add_argument("--results", type=Path, default=facts.RESULTS, help="default: %(default)s")
    return made.parse_args()


def bandwidth(threads: int) -> float:
    """Bytes per second that so many threads read from memory, each from numbers of its own."""
    numbers = [np.ones(READ_BYTES // 8 // threads, dtype=np.uint64) for _ in range(threads)]

    def lap() -> float:
        readers = [threading.Thread(target=np.add.reduce, args=(own,)) for own in numbers]
        began = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return READ_BYTES / (time.perf_counter() - began)

    return max(lap() for _ in range(5))


def prompts(count: int, length: int, vocab: int) -> list[dict[str, list[int]]]:
    """Random tokens that no earlier call had, so that nothing is cached."""
    draw = random.Random(time.time_ns())
    rows = ([draw.randrange(100, vocab) for _ in range(length)] for _ in range(count))
    return [{"prompt_token_ids": row} for row in rows]


def seconds(llm: LLM, streams: int, length: int, tokens: int, vocab: int) -> float:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    given = prompts(streams, length, vocab)
    began = time.perf_counter()
    llm.generate(given, params, use_tqdm=False)
    return time.perf_counter() - began


def step_bytes(shape: Shape, streams: int, vocab: int) -> float:
    """Weights that a decoding step reads, with the router in f32."""
    experts = shape.touched(streams) * shape.expert()
    layer = (shape.attention() + experts) * BITS / 8 + 4 * shape.experts * shape.hidden
    return shape.layers * layer + shape.hidden * vocab * BITS / 8


@dataclass(frozen=True, slots=True)
class Measured:
    """Rates in tokens per second, in the order in which they were measured."""

    weights: float
    active: float
    ready_s: float
    read_bytes_per_s: float
    decode: dict[int, list[float]]
    """By streams."""
    roof: dict[int, float]
    prefill: list[float]


def measure(args: argparse.Namespace, shape: Shape) -> Measured:
    tokenizer = args.tokenizer.expanduser()
    write(args.file, shape, tokenizer)
    _, vocab = tokenizer_values(tokenizer)
    table = shape.hidden * vocab
    total = shape.layers * (shape.attention() + shape.experts * shape.expert())
    active = shape.layers * (shape.attention() + shape.experts_per_token * shape.expert())
    before = bandwidth(args.threads)
    began = time.perf_counter()
    llm = LLM(
        str(args.file),
        threads=args.threads,
        max_num_seqs=max(args.streams),
        kv_cache_memory_bytes="1GiB",
        enable_prefix_caching=False,
    )
    ready = time.perf_counter() - began
    decode: dict[int, list[float]] = {streams: [] for streams in args.streams}
    prefill = []
    for repeat in range(args.repeats):
        for streams, rates in decode.items():
            first = seconds(llm, streams, PROMPT, 1, vocab)
            whole = seconds(llm, streams, PROMPT, args.tokens + 1, vocab)
            rates.append(streams * args.tokens / (whole - first))
            print(f"{repeat + 1}/{args.repeats} {streams} streams: {rates[-1]:.1f}/s", flush=True)
        prefill.append(PREFILL / seconds(llm, 1, PREFILL, 1, vocab))
        print(f"{repeat + 1}/{args.repeats} prefill: {prefill[-1]:.1f}/s", flush=True)
    read = max(before, bandwidth(args.threads))
    roof = {n: n * read / step_bytes(shape, n, vocab) for n in decode}
    return Measured(total + 2 * table, active + table, ready, read, decode, roof, prefill)


def lines(args: argparse.Namespace, shape: Shape, found: Measured) -> list[str]:
    def row(name: str, rates: list[float], roof: float | None) -> list[str]:
        middle = statistics.median(rates)
        spread = f"{min(rates):.1f} to {max(rates):.1f}"
        share = (f"{roof:.1f}", f"{middle / roof:.0%}") if roof else ("", "")
        return [name, f"{middle:.1f}", spread, *share]

    rows = [row(f"decode, {n} streams", found.decode[n], found.roof[n]) for n in found.decode]
    rows.append(row(f"prefill of {PREFILL}", found.prefill, None))
    columns = ("load", "tokens/s", "of the repeats", "weights allow", "share")
    size = (
        f"{found.weights / 1e9:.2f} billion weights, {found.active / 1e9:.2f} billion active: "
        f"{shape.layers} layers, hidden {shape.hidden}, {shape.experts} experts of {shape.width}, "
        f"{shape.experts_per_token} for a token; Q4_0, random."
    )
    machine = (
        f"{args.threads} threads read {found.read_bytes_per_s / 1e9:.1f} GB/s from memory; the "
        f"model was ready after {found.ready_s:.1f} s ({args.file.stat().st_size / 1e9:.1f} GB)."
    )
    return [size, machine, "", *facts.table(columns, rows)]


def main(argv: Sequence[str]) -> None:
    args = parse()
    shape = Shape(
        layers=args.layers,
        hidden=args.hidden,
        heads=32,
        kv_heads=4,
        head_dim=128,
        experts=args.experts,
        experts_per_token=args.experts_per_token,
        width=args.width,
    )
    known = facts.gather(facts.DEFAULT_PEERS, [], argv)
    found = measure(args, shape)
    said = ["# Mixture of experts", "", *facts.said(known), "", *lines(args, shape, found)]
    print("\n".join(said))
    data = {**known, "shape": asdict(shape), **asdict(found)}
    facts.write(facts.stem("moe", args.results), said, data)


if __name__ == "__main__":
    main(sys.argv)
