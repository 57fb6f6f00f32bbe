"""Measures a model with random weights on the torch backend, without a server: start-up, steps,
requests.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import serving
from benchmarks.gpu.driver import Driver, Rank, decode_plans, fill, open_backend, requests
from benchmarks.gpu.items import Results
from benchmarks.gpu.loads import LARGE, workloads
from benchmarks.gpu.machine import Ceilings
from benchmarks.gpu.native import stand_in
from benchmarks.gpu.shapes import Shape, shape_of, write_checkpoint
from benchmarks.gpu.sizes import DRY, FULL, Sizes, blocks_of
from benchmarks.gpu.timing import Compiler, Timing
from penstock.backends.torch.startup.memory import step_bytes
from penstock.core import Allocation, StepPlan

CONTEXT = 1024
"""Context length in tokens of each sequence in the tables of decode steps."""
STEPS = 20
LONGEST = 1280
"""Maximum length of a sequence in tokens, in the load with 256 concurrent requests."""


@dataclass
class Model:
    """A started model, and the ceilings to which its results are compared."""

    name: str
    shape: Shape
    driver: Driver
    timing: Timing
    ceilings: Ceilings
    sizes: Sizes
    blocks: int


def measure(
    results: Results,
    timing: Timing,
    name: str,
    ceilings: Ceilings,
    imported_s: float,
    short: bool,
) -> None:
    """Run all items for a model on one GPU, the most important ones first."""
    results.row("start-up", phase="import torch", seconds=imported_s, compiler=0.0)
    with tempfile.TemporaryDirectory() as temporary:
        directory, shape = Path(temporary), shape_of(name, timing.dry)
        write_checkpoint(directory, shape, (DRY if timing.dry else FULL).longest)
        model = start(results, timing, name, ceilings, directory)
    results.item("graphs", lambda: graphs(results, model))
    results.item("waits", lambda: waits(results, model))
    results.item("decode steps", lambda: decode_steps(results, model), least=5)
    results.item("prefill steps", lambda: prefill_steps(results, model), least=5)
    # Run only loads that the benchmark of Penstock's server runs, too.
    large = name in LARGE
    loops(results, model, ("W2", "W3") if large else ("W2", "W3", "C128"))
    results.item("single stream", lambda: single(results, model), least=5)
    if not short:
        loops(results, model, ("W1",) if large else ("W1", "W4", "W5"))
        results.item("offline", lambda: serving.offline(results, model), least=20)
        loops(results, model, () if large else ("C256",))


def loops(results: Results, model: Model, names: Sequence[str]) -> None:
    """Run the loads of the server's benchmark without the server, to compare them."""
    known = workloads()
    for name in names:
        own = known[name]
        results.item(name, lambda own=own: serving.closed_loop(results, model, own), least=10)


def start(
    results: Results,
    timing: Timing,
    name: str,
    ceilings: Ceilings,
    directory: Path,
    rank: Rank | None = None,
) -> Model:
    """Start the model and record the seconds of each phase, up to the first token and the first
    decode step.
    """
    stand_in()
    shape, sizes = shape_of(name, timing.dry), DRY if timing.dry else FULL
    clock, compiler = time.perf_counter, Compiler()

    def phase(title: str, began: float) -> None:
        timing.wait()
        seconds, compiled = clock() - began, compiler.seconds
        compiler.seconds = 0.0
        results.row("start-up", phase=title, seconds=seconds, compiler=compiled)

    began = clock()
    torch.zeros(1, device=timing.device)
    phase("CUDA context", began)
    began = clock()
    backend = open_backend(directory, sizes, rank)
    phase("weights loaded", began)
    with torch.no_grad():
        fill(backend._weights)
    timing.wait()
    began = clock()
    blocks = torch.tensor([_pool(backend, sizes)], device=timing.device)
    blocks = int(backend._ranks.share(blocks))
    _note_memory(results, timing, backend, sizes, blocks)
    backend.allocate(Allocation((blocks,)))
    phase("KV pool", began)
    for pool in backend._model.pools:
        # Fill the KV blocks with numbers, because decode steps read contexts that no prompt has
        # written.
        pool.blocks.normal_()
    driver = Driver(backend, blocks, sizes)
    began = clock()
    prompt = sizes.budget // 4
    driver.run(requests([(prompt, 1)], shape.vocabulary), 1)
    phase(f"first prompt, of {prompt} tokens", began)
    rows = results.rows("start-up")
    results.note("first token after s", sum(row["seconds"] for row in rows))
    began = clock()
    driver.run(requests([(1, 2)], shape.vocabulary), 1)
    phase("first decode step", began)
    return Model(name, shape, driver, timing, ceilings, sizes, blocks)


def _pool(backend: Any, sizes: Sizes) -> int:
    """Number of KV blocks that the offline table and the loads need, or as many as fit."""
    (group,) = backend.kv_spec().groups
    needed = sum(blocks_of(p + o) for p, o in serving.offline_lengths(sizes.dry))
    needed = max(needed, sizes.sequences * blocks_of(LONGEST))
    return int(min(needed, backend.free_memory() // group.block_bytes))


def _note_memory(results: Results, timing: Timing, backend: Any, sizes: Sizes, blocks: int) -> None:
    """Record the memory of the largest steps before KV pools exist: the tensors as computed from
    the model's spec and as the allocator counts them, and the GPU memory that the allocator keeps.
    """
    results.note("weights, bytes", backend.facts.weights_bytes)
    results.note("KV blocks", blocks)
    if timing.dry:
        return
    device, weights = backend._device.torch, backend.facts.weights_bytes
    spec = backend._spec
    tables = 4 * backend._on_device.entries
    results.note("largest step", backend.facts.stages[-1][2])
    results.row(
        "memory of a maximal step",
        computed=step_bytes(spec.model, spec.shard, sizes.budget, spec.dtype, tables),
        measured=torch.cuda.max_memory_allocated(device) - weights,
        kept=torch.cuda.memory_reserved(device) - weights,
        free=backend.free_memory(),
    )


def graphs(results: Results, model: Model) -> None:
    """Record the seconds to capture each CUDA graph, in pauses as in a server, and the memory of
    graphs in addition to the largest one, which is measured before KV pools are sized.
    """
    device, backend = model.timing.device, model.driver.backend
    before = 0 if model.timing.dry else torch.cuda.memory_reserved(device)
    for pause in range(backend.facts.pauses):
        began = time.perf_counter()
        backend.submit(StepPlan(0)).result()
        results.row("graphs", pause=pause + 1, seconds=time.perf_counter() - began)
    if not model.timing.dry:
        more = torch.cuda.memory_reserved(device) - before
        results.note("memory of graphs beside the largest", more)


def waits(results: Results, model: Model) -> None:
    """Submit decode steps while others run. torch raises an error if a submission waits for the
    GPU.
    """
    driver, plans = model.driver, decode_plans(4, 32, 4, model.shape.vocabulary)
    driver.submit(next(plans))
    driver.drain(0)
    for plan in plans:
        with _no_waits(model.timing):
            driver.submit(plan)
        driver.drain(1)
    driver.drain(0)
    results.note("a decode step is submitted without a wait", not model.timing.dry)


@contextmanager
def _no_waits(timing: Timing) -> Iterator[None]:
    if timing.dry:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def decode_steps(results: Results, model: Model) -> None:
    """Measure decode steps of one token per sequence, relative to the memory bandwidth."""
    context = 32 if model.timing.dry else CONTEXT
    for rows in (1, 4) if model.timing.dry else (1, 8, 32, 64, 128, 256):
        if rows * blocks_of(context + STEPS + 1) > model.driver.blocks:
            results.row("decode steps", rows=rows, ms="no room for their blocks")
            continue
        seconds = _decode(model, rows, context) / STEPS
        read = model.shape.step_bytes(rows) + rows * model.shape.kv_bytes(context)
        results.row(
            "decode steps",
            rows=rows,
            context=context,
            ms=seconds * 1e3,
            GB_per_s=read / seconds / 1e9,
            of_memory=share(read / seconds, model.ceilings.bandwidth),
        )


def _decode(model: Model, rows: int, context: int) -> float:
    """Seconds of STEPS decode steps of `rows` sequences, after a first step that does not count."""
    driver, began = model.driver, 0.0
    for plan in decode_plans(rows, context, STEPS + 1, model.shape.vocabulary):
        driver.submit(plan)
        driver.drain(1 if began else 0)
        # The clock starts after the first step, which may capture the graph.
        began = began or time.perf_counter()
    driver.drain(0)
    return time.perf_counter() - began


def prefill_steps(results: Results, model: Model) -> None:
    """Measure steps that prompts fill completely, relative to the rate of a large product."""
    budget = model.sizes.budget
    for count in (1, 8):
        prompt = min(budget // count, model.sizes.longest - 1)
        lengths = [(prompt, 1)] * (budget // prompt)
        model.driver.run(requests(lengths, model.shape.vocabulary), len(lengths))
        seconds = min(
            model.driver.run(requests(lengths, model.shape.vocabulary), len(lengths))
            for _ in range(3)
        )
        operations = len(lengths) * model.shape.prompt_operations(prompt)
        results.row(
            "prefill steps",
            prompts=len(lengths),
            tokens=prompt,
            ms=seconds * 1e3,
            TFLOP_per_s=operations / seconds / 1e12,
            of_gemm=share(operations / seconds, model.ceilings.rate),
        )


def single(results: Results, model: Model) -> None:
    """Measure a single request with and without CUDA graphs, and check that both give the same
    tokens.
    """
    backend = model.driver.backend
    graphs, tables = backend._graphs, backend._on_device.tables
    decodes, prompts = graphs.decodes, graphs.prompts
    try:
        _single(results, model, captured=decodes is not None)
        graphs.decodes = graphs.prompts = None
        _single(results, model, captured=False)
        # A graph reads whole block tables. Their width affects how attention splits, so the run
        # without graphs must read whole tables, too.
        backend._on_device.tables = lambda slots, _blocks: tables(slots, None)
        eager = _single(results, model, captured=False, whole_tables=True)
        graphs.decodes, graphs.prompts = decodes, prompts
        captured = _single(results, model, captured=decodes is not None, whole_tables=True)
    finally:
        graphs.decodes, graphs.prompts = decodes, prompts
        backend._on_device.tables = tables
    results.note("graphs draw the same tokens", captured == eager)
    if captured != eager:
        pairs = enumerate(zip(captured, eager, strict=False))
        first = next((i for i, (a, b) in pairs if a != b), -1)
        results.fail("single stream", f"graphs draw other tokens, from token {first} on")


def _single(
    results: Results, model: Model, *, captured: bool, whole_tables: bool = False
) -> list[int]:
    """Run a single request, record its speed, and return its tokens."""
    lengths = [(8, 6) if model.timing.dry else (128, 128)]
    (own,) = asked = requests(lengths, model.shape.vocabulary)
    model.driver.run(asked, 1)
    rate = (own.output - 1) / (own.last_s - own.first_s)
    results.row(
        "single stream",
        graphs=captured,
        whole_tables=captured or whole_tables,
        first_token_ms=(own.first_s - own.sent_s) * 1e3,
        tokens_per_s=rate,
        of_ceiling=share(rate * model.shape.step_bytes(1), model.ceilings.bandwidth),
    )
    return list(model.driver.tokens)


def share(found: float, ceiling: float) -> float | None:
    """`found` as a fraction of a ceiling; None if the ceiling is unknown."""
    return found / ceiling if ceiling else None
