"""The product's server on the shapes of the other parts: `penstock serve` and `penstock bench
serve` as separate processes, as users run them. Does not need torch itself.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.items import ABSENT, LEFT_OUT, Results, add_arguments
from benchmarks.gpu.loads import FIRST, LARGE, Workload, workloads
from benchmarks.gpu.product import ABSENT as NO_PRODUCT
from benchmarks.gpu.product import Product, find
from benchmarks.gpu.room import NoRoomError, room_for, small_room
from benchmarks.gpu.shapes import shape_of
from benchmarks.gpu.sizes import DRY, FULL
from benchmarks.gpu.weights import NUMBERS, size_of, write_random

PREFIX = "serve-"
"""Prefix of the names of these parts; the name of a model follows."""
NOT_SERVED = "the product's server was not measured"
SAME_SOURCES = "its Python files are this source tree's"
STARTS, RUNS, LOG = "starts", "runs", "log of the start"
COLD, WARM = "none", "all"
"""Which of the model's kernels Triton's cache has when a server starts."""
HOST = "127.0.0.1"
POLL_S = 0.005
STOP_S = 5.0
LOG_LINES = 20
STAGE = r" (?:INFO|DEBUG) penstock\.(?:server|engine): (.*)"
TINY_NUMBERS = 1 << 16
# Orders of the loads: those that users notice most come first.
ORDER = ("first", "P128", "W2", "W3", "C128", "rate20", "W1", "W4", "W5", "C256")
SHORT_ORDER = ("first", "P128", "W2", "W3", "C128", "rate20")
LARGE_ORDER = ("first", "P128", "W2", "W3", "W1")
DRY_ORDER = ("first", "W2", "rate20")
DRY_MODEL = "Qwen3-0.6B"
"""The only model in a dry run, because each start takes seconds of CPU time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    logs: Path = options.out.with_suffix("")
    logs.mkdir(exist_ok=True)
    name = options.part.removeprefix(PREFIX)
    results = Results(options.out, options.end)
    product = find(options.wheel)
    if product is None:
        results.note(NOT_SERVED, NO_PRODUCT)
    elif options.dry and name != DRY_MODEL:
        results.row(ABSENT, item=name, reason=f"a dry run serves {DRY_MODEL}")
    else:
        measure(results, product, name, logs, dry=options.dry, short=options.short)


def measure(
    results: Results, product: Product, name: str, logs: Path, *, dry: bool, short: bool
) -> None:
    """Start the server twice, the second time with compiled kernels in the cache, and then run all
    loads.
    """
    results.note("product", product.origin)
    results.note(SAME_SOURCES, product.is_this_tree())
    shape, owner = shape_of(name, dry), os.getppid()
    try:
        with room_for(size_of(shape), owner) as directory, small_room(owner) as kernels:
            began = time.perf_counter()
            numbers = TINY_NUMBERS if dry else NUMBERS
            write_random(directory, shape, (DRY if dry else FULL).longest, numbers)
            results.note("checkpoint written in s", time.perf_counter() - began)
            run = Run(results, product, directory, shape.vocabulary, dry, logs, kernels)
            run.start(COLD, [FIRST])
            run.start(WARM, loads(name, dry, short))
    except NoRoomError as error:
        results.note(NOT_SERVED, str(error))


def loads(name: str, dry: bool, short: bool) -> list[Workload]:
    known = workloads()
    order = LARGE_ORDER if name in LARGE else SHORT_ORDER if short else ORDER
    found = [known[each] for each in (DRY_ORDER if dry else order)]
    return [each.tiny() for each in found] if dry else found


@dataclass
class Run:
    """Starts servers with one checkpoint, and measures them."""

    results: Results
    product: Product
    checkpoint: Path
    vocabulary: int
    dry: bool
    logs: Path
    kernels: Path
    """Directory of Triton's kernel cache."""
    asked: int = 0

    def start(self, kernels: str, runs: Sequence[Workload]) -> None:
        """Start a server, run the loads `runs` on it, and stop it. RuntimeError with the end of its
        log if it does not become ready, or if it exits by itself.
        """
        log = self.logs / f"server-{kernels}.log"
        with served(self.product, self._words(), self.kernels, log, self.results) as server:
            self._note_start(kernels, server.ready_s, log)
            for load in runs:
                self.results.item(load.name, lambda load=load: self._run(kernels, server, load))
                server.check()

    def _words(self) -> list[str]:
        sizes = DRY if self.dry else FULL
        device = ["torch", "--dtype", "float32", "--threads", "1"] if self.dry else ["cuda"]
        return [
            *("serve", str(self.checkpoint), "--device", *device),
            *("--max-num-seqs", str(sizes.sequences)),
            *("--max-num-batched-tokens", str(sizes.budget)),
            *("--log-level", "debug"),  # has the stages of a start
        ]

    def _note_start(self, kernels: str, ready_s: float, log: Path) -> None:
        self.results.row(STARTS, compiled_kernels=kernels, ready_s=ready_s)
        lines = re.findall(STAGE, log.read_text(errors="replace"))
        for line in lines[:LOG_LINES]:
            self.results.row(LOG, compiled_kernels=kernels, line=line.partition(", listening")[0])

    def _run(self, kernels: str, server: Server, load: Workload) -> None:
        """Run a load with `penstock bench serve`, and record its results in a row."""
        file, left = self.logs / f"{load.name}.json", self.results.left - STOP_S
        file.unlink(missing_ok=True)
        self.asked += 1
        command = [
            *(*self.product.command, "bench", "serve", "--base-url", server.url),
            *("--prompt-ids", "--vocab-size", str(self.vocabulary), *load.words),
            # Each load has a different seed, so that no prompt shares a prefix with one of an
            # earlier load.
            *("--seed", str(self.asked), "--disable-tqdm", "--save-result"),
            *("--result-dir", str(self.logs), "--result-filename", file.name),
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                env=self.product.environment,
                timeout=max(left, 0.1),
            )
        except subprocess.TimeoutExpired:
            self.results.row(LEFT_OUT, item=load.name, reason=f"not done after {left:.0f} s")
            return
        if done.returncode:
            server.check()
            raise RuntimeError(f"the client ended with {done.returncode}: {done.stderr[-200:]}")
        self._note(kernels, load, json.loads(file.read_text()))

    def _note(self, kernels: str, load: Workload, found: dict[str, Any]) -> None:
        if load.name == FIRST.name:
            (*before, own) = self.results.rows(STARTS)
            after = own["ready_s"] + found["mean_ttft_ms"] / 1e3
            self.results.note(STARTS, [*before, {**own, "first_token_s": after}])
        if kernels == WARM:
            self.results.row(RUNS, **row_of(load, found))
        if found["completed"] < load.count:
            done, why = found["completed"], found["penstock"]["failures"]
            self.results.fail(load.name, f"{done} of {load.count} requests have succeeded: {why}")


def row_of(load: Workload, found: dict[str, Any]) -> dict[str, Any]:
    """The client's result as a row of the table. Times are in milliseconds."""
    return {
        "workload": load.name,
        "requests": found["completed"],
        "concurrency": load.concurrency,
        "seconds": found["duration"],
        "output_tokens_per_s": found["output_throughput"],
        "ttft_ms": found["mean_ttft_ms"],
        "median_ttft_ms": found["median_ttft_ms"],
        "p99_ttft_ms": found["p99_ttft_ms"],
        "tpot_ms": found["mean_tpot_ms"],
        "p99_itl_ms": found["p99_itl_ms"],
    }


class Server:
    """A process of `penstock serve`."""

    def __init__(self, product: Product, words: Sequence[str], kernels: Path, log: Path) -> None:
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        self._port, self._log = port, log
        self._began = time.monotonic()
        with log.open("w") as written:
            # The server stays in this process's session, so that it is killed with this process.
            self.process = subprocess.Popen(
                [*product.command, *words, "--host", HOST, "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                env={**product.environment, "TRITON_CACHE_DIR": str(kernels)},
            )
        self.ready_s = 0.0

    def wait(self, patience: float) -> None:
        """Wait until the server is ready. RuntimeError if it exits before that, or is not ready
        `patience` seconds after its start.
        """
        while not self._ready():
            self.check()
            if time.monotonic() - self._began > patience:
                raise RuntimeError(f"not ready after {patience:.0f} s{self._end_of_log()}")
            time.sleep(POLL_S)
        self.ready_s = time.monotonic() - self._began

    def check(self) -> None:
        status = self.process.poll()
        if status is not None:
            raise RuntimeError(f"the server ended with {status}{self._end_of_log()}")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _ready(self) -> bool:
        asked = http.client.HTTPConnection(HOST, self._port, timeout=2.0)
        try:
            asked.request("GET", "/health")
            return asked.getresponse().status == 200
        except OSError:
            return False
        finally:
            asked.close()

    def _end_of_log(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "; the end of its log:\n" + "\n".join(lines)


@contextmanager
def served(
    product: Product, words: Sequence[str], kernels: Path, log: Path, results: Results
) -> Iterator[Server]:
    """Context with a server that is ready. The server is stopped at the end."""
    server = Server(product, words, kernels, log)
    try:
        server.wait(results.left - STOP_S)
        yield server
    finally:
        server.stop()


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
