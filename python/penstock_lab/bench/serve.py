"""`penstock bench serve`: load on any OpenAI-compatible server, like `vllm bench serve`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock_lab.bench import block, flags, foreign_flags, result
from penstock_lab.bench.measure import add_serve_arguments, measure
from penstock_lab.bench.progress import progress
from penstock_lab.bench.runs import INTERRUPTED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_serve_arguments(parser)
    add_single(parser)
    foreign_flags.add_vllm(parser)
    foreign_flags.add_genai_perf(parser)


def add_single(parser: argparse.ArgumentParser) -> None:
    """Add flags of a single measurement, except its workload. `bench trace` uses them, too."""
    flags.add_target(parser)
    flags.add_results(parser)
    flags.add_display(parser)


def run(parsed: argparse.Namespace) -> int:
    """Run the measurement. Exit status: 0; 1 if no request succeeded; 130 after Ctrl-C, when the
    result so far is printed and written.
    """
    measured = measure(
        parsed,
        flags.target(parsed),
        seed=parsed.seed,
        tags={},
        progress=progress(parsed.disable_tqdm),
        keep_text=parsed.save_detailed,
    )
    print(block.render(measured, parsed.percentile_metrics))
    if parsed.save_result or parsed.append_result:
        name = parsed.result_filename or result.file_name(measured)
        path = Path(parsed.result_dir or "") / name
        kept = measured if parsed.save_detailed else result.slim(measured)
        result.write(kept, path, append=parsed.append_result)
        print(f"result: {path}", file=sys.stderr)
    if measured["penstock"]["partial"]:
        return INTERRUPTED
    return 0 if measured["completed"] else 1
