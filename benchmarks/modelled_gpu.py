"""The product's server on a modelled GPU: `penstock serve` with a backend that only sleeps.

    python benchmarks/modelled_gpu.py [--repeats 2] [--output build/modelled-gpu.json]

The backend computes nothing; its steps take as long as on an H100. Two servers alternate. One
measures its step times and bounds the prompt tokens of mixed steps accordingly; the other's backend
reports no times, so nothing is bounded.

The step times were measured with Qwen3-0.6B on an H100 (benchmarks/results/gpu-h100-2026-11-26.md).
A step with prompt tokens costs 11 ms more for its kernel launches.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.config import EngineConfig
from penstock.core import StepPlan, StepResult
from penstock.model import ModelInfo

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.backends.toy import Counted, CountingBackend

DECODE_MS = ((1, 1.31), (8, 1.65), (32, 2.75), (64, 4.04), (128, 6.54), (256, 11.8))
"""(number of decodes, milliseconds of a step), with 1,024 tokens of context for each decode."""
LAUNCHES_MS, PROMPT_TOKEN_MS = 11.0, 0.003
LOADS = {
    "W2": "--random-input-len 256 --random-output-len 128 --max-concurrency 8 --num-prompts 192",
    "W3": "--random-input-len 256 --random-output-len 128 --max-concurrency 32 --num-prompts 384",
    "C128": "--random-input-len 512 --random-output-len 256 --max-concurrency 128 "
    "--num-prompts 512",
    "W5": "--random-prefix-len 1024 --random-input-len 128 --random-output-len 64 "
    "--max-concurrency 8 --num-prompts 192",
}
FIGURES = ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_itl_ms")
LEARNT, UNBOUNDED = "bound learnt", "no bound"
READY_S = 60.0
POLL_S = 0.05


def decode_ms(decodes: int) -> float:
    before = DECODE_MS[0]
    for point in DECODE_MS:
        if decodes <= point[0]:
            spread = max(point[0] - before[0], 1)
            return before[1] + (point[1] - before[1]) * (decodes - before[0]) / spread
        before = point
    return before[1] * decodes / before[0]


def step_ms(lengths: Sequence[int]) -> float:
    prompts = sum(length for length in lengths if length > 1)
    decodes = sum(length == 1 for length in lengths)
    if not prompts:
        return decode_ms(decodes)
    return LAUNCHES_MS + decode_ms(max(decodes, 1)) + PROMPT_TOKEN_MS * prompts


class ModelledGpu(CountingBackend):
    """A backend that answers each token with the next number. A step sleeps for its modelled time;
    with `timed`, the result also reports this time.
    """

    def __init__(self, config: EngineConfig, info: ModelInfo, *, timed: bool) -> None:
        super().__init__(config, info)
        self._timed = timed
        self._idle_from = 0.0

    def submit(self, plan: StepPlan) -> Step:
        result = super().submit(plan).result()
        seconds = step_ms(plan.lengths) / 1e3
        result.seconds = seconds if self._timed else 0.0
        self._idle_from = max(time.perf_counter(), self._idle_from) + seconds
        return Step(result, self._idle_from)


class Step(Counted):
    def __init__(self, result: StepResult, ends: float) -> None:
        super().__init__(result)
        self._ends = ends

    def result(self, timeout: float | None = None) -> StepResult:
        time.sleep(max(self._ends - time.perf_counter(), 0.0))
        return super().result(timeout)


def load_timed(config: EngineConfig, info: ModelInfo, rank: object, report: object) -> ModelledGpu:
    return ModelledGpu(config, info, timed=True)


def load_untimed(
    config: EngineConfig, info: ModelInfo, rank: object, report: object
) -> ModelledGpu:
    return ModelledGpu(config, info, timed=False)


MODULES = {
    LEARNT: ("modelled.timed", "load_timed"),
    UNBOUNDED: ("modelled.untimed", "load_untimed"),
}
"""Generated modules by name of the server: each exports one of the functions above as `load`,
because `--device` accepts a module with such a function.
"""


@contextmanager
def served(name: str, modules: Path) -> Iterator[str]:
    """Context with a running server. Yields its URL, and stops the server at the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    roots = (str(modules), str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", ""))
    command = [
        *(sys.executable, "-m", "penstock", "serve", "smollm2", "--device", MODULES[name][0]),
        *("--port", str(port), "--max-num-seqs", "256", "--max-num-batched-tokens", "8192"),
        *("--log-level", "error"),
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))}
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, env=environ) as process:
        try:
            wait(url, process)
            yield url
        finally:
            process.terminate()


def wait(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health"):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(POLL_S)
    raise SystemExit("the server did not get ready")


def measure(url: str, words: str, file: Path) -> dict[str, float]:
    command = [
        *(sys.executable, "-m", "penstock", "bench", "serve", "--base-url", url, "--prompt-ids"),
        *("--vocab-size", "49152", *words.split(), "--temperature", "0", "--disable-tqdm"),
        *("--save-result", "--result-dir", str(file.parent), "--result-filename", file.name),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = json.loads(file.read_text())
    if found["failed"]:
        raise SystemExit(f"{found['failed']} requests failed")
    return {figure: round(found[figure], 2) for figure in FIGURES}


def write_modules(directory: Path) -> None:
    for module, function in MODULES.values():
        package, _, name = module.partition(".")
        (directory / package).mkdir(exist_ok=True)
        text = f"from benchmarks.modelled_gpu import {function} as load\n"
        (directory / package / f"{name}.py").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("build/modelled-gpu.json"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        write_modules(Path(directory))
        for repeat in range(options.repeats):
            for name in MODULES:
                with served(name, Path(directory)) as url:
                    measure(url, LOADS["W2"].replace("96", "4"), Path(directory) / "first.json")
                    for load, words in LOADS.items():
                        figures = measure(url, words, Path(directory) / "load.json")
                        rows.append({"load": load, "server": name, "repeat": repeat, **figures})
                        print(*(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
