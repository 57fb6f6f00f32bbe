"""Decode speed of a latent attention layer, beside the same heads with KV of their own in the pool.

    python benchmarks/latent.py [--program target/release/examples/latent_speed] [--context 4096]

Build the program with `cargo build --release -p penstock-kernels --example latent_speed`. Heads are
DeepSeek's: 128 dimensions without and 64 with rotation, values of 128 (stored as 192 in a pool of
equal keys and values), a latent of 512. Both forms use bf16. The latent's time includes two
products for each head that the other form does not need in a decode. Projections and output are
equal and left out. A run alternates between 8 layers, so that keys come from memory. The best round
of a run counts; the median of three runs is shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path

HEADS, ROWS = (16, 64, 128), (1, 8)
REPEATS = 3
LARGEST = 6 << 30
"""Maximum bytes of a KV pool to allocate."""
LAYERS, EACH = 8, 2 * 192 * 2


def measured(program: Path, heads: int, rows: int, context: int) -> list[dict[str, float | str]]:
    command = [str(program), str(heads), str(context), str(rows)]
    runs = []
    for _ in range(REPEATS):
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        runs.append([json.loads(line) for line in text.splitlines()])
    return [
        same[0] | {"microseconds": statistics.median(run["microseconds"] for run in same)}
        for same in zip(*runs, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--program", type=Path, default=Path("target/release/examples/latent_speed")
    )
    parser.add_argument("--context", type=int, default=4096)
    options = parser.parse_args()
    print("| heads | sequences | form | us a layer | times as fast | KV bytes a token and layer |")
    print("|--:|--:|---|--:|--:|--:|")
    for heads in HEADS:
        for rows in ROWS:
            if heads * rows * options.context * LAYERS * EACH > LARGEST:
                continue
            forms = measured(options.program, heads, rows, options.context)
            slowest = forms[0]["microseconds"]
            for form in forms:
                time = form["microseconds"]
                print(
                    f"| {heads} | {rows} | {form['form']} | {time:,.0f} | {slowest / time:.1f} | "
                    f"{form['kv_bytes']:,} |"
                )


if __name__ == "__main__":
    main()
