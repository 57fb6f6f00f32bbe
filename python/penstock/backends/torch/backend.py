"""The torch backend: executes step plans on a GPU or on torch's CPU device. See docs/gpu.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from penstock.backends import KvMover, StepFuture
from penstock.backends.mover_options import direct_tiers
from penstock.backends.torch.checks import GroupLimits, check
from penstock.backends.torch.inputs import first_rows, order_of, pack
from penstock.backends.torch.kernels.language import takes_kernels
from penstock.backends.torch.kv.pool import make_pools
from penstock.backends.torch.kv.tiers import FORMS, mover_settings, open_tiers
from penstock.backends.torch.layers.model import Model
from penstock.backends.torch.load.checkpoint import Checkpoint
from penstock.backends.torch.load.load import bytes_to_read, load_weights, reported, weight_bytes
from penstock.backends.torch.load.recipes import Source
from penstock.backends.torch.load.uploads import READERS, Uploads
from penstock.backends.torch.load.weights import Weights
from penstock.backends.torch.ranks.ranks import open_ranks, parsed
from penstock.backends.torch.runtime import accelerated
from penstock.backends.torch.sampling.grammars import Grammars
from penstock.backends.torch.sampling.pooling import wanted_vectors
from penstock.backends.torch.sampling.sampling import plain_draws, wanted_draws, wanted_scores
from penstock.backends.torch.sampling.slots import DeviceSlots, Slots, Updates
from penstock.backends.torch.startup.compiling import Rehearsal, compile_ahead
from penstock.backends.torch.startup.measuring import MemoryMeasurement, measure
from penstock.backends.torch.startup.memory import (
    FOR_POOLS,
    FOR_WEIGHTS,
    out_of_memory,
    sent_bytes,
    step_bytes,
)
from penstock.backends.torch.startup.rank_spec import rank_spec
from penstock.backends.torch.startup.warm_up import warm_up
from penstock.backends.torch.step.device import Device
from penstock.backends.torch.step.flash import FlashInfer, check_flash, kinds_of, planned
from penstock.backends.torch.step.graphs import BUCKETS
from penstock.backends.torch.step.outputs import Outputs
from penstock.backends.torch.step.step import Pause, Step
from penstock.backends.torch.step.step_graphs import StepGraphs
from penstock.config import EngineConfig
from penstock.config.machine import available_memory
from penstock.core import (
    Allocation,
    KvGroup,
    KvSpec,
    Numerics,
    PenstockError,
    StepPlan,
    WorkerFacts,
)
from penstock.core.progress import Report, silent
from penstock.core.transfer import OpenTiers
from penstock.model import ModelInfo

ALONE = {"group": None, "before": None, "after": None, "patience_s": 0}
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16"}


class TorchBackend:
    """The backend of one rank. `device` runs the steps; everything else runs on the caller's
    thread.
    """

    def __init__(
        self,
        config: EngineConfig,
        info: ModelInfo,
        rank: tuple[str, str] | None,
        device: Device,
        report: Report = silent,
    ) -> None:
        if config.model.quantization in ("int8", "int4"):
            raise PenstockError(
                f"--quantization {config.model.quantization}: the torch backend computes weights "
                "as the checkpoint stores them"
            )
        self._config, self._device = config, device
        self._spec = own = rank_spec(config, info.spec, None if rank is None else rank[0])
        if config.compute.attention == "flashinfer":
            check_flash(info.spec, own.dtype, own.kv_dtype)
        began = time.perf_counter()
        checkpoint = Checkpoint(Path(info.paths[0]))
        self._compiled = self._compile_ahead(info, checkpoint)
        with ThreadPoolExecutor(1, "fingerprint") as beside:
            fingerprint = beside.submit(checkpoint.fingerprint)
            self._weights = self._load(info, checkpoint, report)
        seconds = time.perf_counter() - began
        size = weight_bytes(self._weights)
        name, shard = NAMES[own.dtype], own.shard
        forms = (name,) if shard.layers or shard.has_head else ()
        self.facts = WorkerFacts(
            fingerprint=fingerprint.result(),
            numerics=Numerics(forms, name if forms else "none", FORMS[own.kv_dtype]),
            device=device.name,
            threads=config.compute.threads,
            weights_bytes=size,
            stages=(("weights loaded", seconds, f"{size >> 20} MiB as {name}"),),
            own_memory=accelerated(device.torch),
            host_memory=available_memory() // config.parallel.most_ranks_on_a_node,
        )
        wiring = ALONE if rank is None else parsed(rank[1])
        symmetric = not config.parallel.library_sums
        self._ranks, self._carried = open_ranks(wiring, shard, device.torch, symmetric=symmetric)
        self._grammars: Grammars | None = None
        if shard.has_head and shard.rank == 0:
            self._grammars = Grammars(Path(config.model.path), config.compute.threads)
        self._last_step: Step | None = None
        self._graphs = StepGraphs()
        self._make_tables()
        self._measured: MemoryMeasurement | None = None
        if self.facts.own_memory:
            self._measured = self._measure()

    def _load(self, info: ModelInfo, checkpoint: Checkpoint, report: Report) -> Weights:
        readers = min(READERS, max(2, self._config.compute.threads))
        wanted, spec = (info.spec, info.weights), self._spec
        total = bytes_to_read(checkpoint, *wanted, spec.shard)
        try:
            with (
                reported(total, report) as add,
                Uploads(self._device.way(), readers, on_bytes=add) as uploads,
            ):
                source = Source(checkpoint, spec.dtype, uploads)
                return load_weights(source, *wanted, spec.shard, spec.limits.max_position)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, "the weights", FOR_WEIGHTS) from error

    def kv_spec(self) -> KvSpec:
        groups = zip(self._weights.kv_groups, self._spec.layouts, strict=True)
        return KvSpec(
            self._config.cache.block_size,
            tuple(
                KvGroup(group.layers, layout.block_bytes, group.window, group.chunked)
                for group, layout in groups
            ),
        )

    def free_memory(self) -> int:
        """Bytes for the KV pools, after the memory of steps and graphs is set aside."""
        config, tokens = self._config, self._config.scheduler.max_num_batched_tokens
        spec, measured = self._spec, self._measured
        if measured is not None:
            free = measured.free
        else:
            free = self._device.free_memory() // config.parallel.most_ranks_on_a_node
            tables = 4 * self._on_device.entries
            free -= step_bytes(spec.model, spec.shard, tokens, spec.dtype, tables)
        # Activations that another stage sends or receives are held in separate buffers.
        handed = config.parallel.ray_overlap_comm + (not spec.shard.embeds)
        return max(0, free - handed * sent_bytes(spec.model, tokens, spec.dtype))

    def _measure(self) -> MemoryMeasurement:
        """Memory of a GPU, measured by a warm-up with KV pools of one block."""
        began = time.perf_counter()
        self._place([1] * len(self._spec.layouts))
        captures, flash = self._graphs.captures, 0
        if self._flash is not None:
            flash = self._flash.graph_bytes(BUCKETS, self._spec.table_width)
        try:
            found = measure(self._device, self._warm_up, captures, flash)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, "graphs of steps") from error
        detail = found.describe(self._limits.tokens)
        pauses = 0
        # A capture that had to compile its kernels would block requests for seconds. The kernels of
        # FlashInfer's steps are not compiled ahead of time.
        if captures is not None and self._flash is None and self._all_compiled():
            pauses = len(captures)
            detail += f", {pauses} graphs to capture in pauses"
        stage = ("largest step computed", time.perf_counter() - began, detail)
        self.facts = replace(self.facts, stages=(*self.facts.stages, stage), pauses=pauses)
        return found

    def _all_compiled(self) -> bool:
        """Whether all ranks of the stage have compiled their kernels ahead of time. The ranks
        capture graphs together, so one rank without compiled kernels prevents captures on all.
        """
        own = self._compiled is None or self._compiled.result()
        group, found = self._ranks.group, []
        if group is None:
            return own

        def add() -> None:
            missing = torch.full((8,), float(not own), device=self._device.torch)
            found.append(group.sum(missing))

        self._device.start(add).result()
        return not found[0].any().item()

    def _compile_ahead(self, info: ModelInfo, checkpoint: Checkpoint) -> Future[bool] | None:
        if not takes_kernels(self._device.torch):
            return None
        spec = self._spec
        shared = (spec.shard, spec.limits, spec.layouts, spec.dtype)
        captures = self._captures_steps and self._config.compute.attention != "flashinfer"
        rehearsal = Rehearsal(info.spec, info.weights, checkpoint, *shared, captures)
        return compile_ahead(rehearsal.run, self._device.torch, self._config.compute.threads)

    def allocate(self, allocation: Allocation) -> None:
        try:
            self._place(allocation.blocks)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, "the KV pools", FOR_POOLS) from error
        captures = self._graphs.captures
        if captures is not None and self.facts.own_memory and not self.facts.pauses:
            self._device.start(torch.inference_mode()(captures.capture_all)).result()

    def _make_tables(self) -> None:
        """Allocate the tables that steps and graphs keep on the device, without the KV pools."""
        spec, device = self._spec, self._device.torch
        slots, size = spec.limits.slots, spec.limits.block_size
        self._flash: FlashInfer | None = None
        try:
            self._on_device = DeviceSlots(slots, spec.table_width, len(spec.layouts), device)
            if self._config.compute.attention == "flashinfer":
                self._flash = FlashInfer(kinds_of(self._weights), size, spec.dtype, device)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, f"tables of {slots} sequences") from error

    def _place(self, blocks: Sequence[int]) -> None:
        """Allocate KV pools with `blocks[g]` blocks for group g, then build the model and its
        graphs on them.
        """
        groups = zip(self._weights.kv_groups, blocks, strict=True)
        spec, device = self._spec, self._device
        limits = spec.limits_with([GroupLimits(n, g.window, g.chunked) for g, n in groups])
        self._limits, self._slots = limits, Slots(limits, spec.table_width, self._grammars)
        pools = make_pools(spec.layouts, blocks, device.torch)
        model = Model(spec.model, spec.shard, self._weights, pools, self._ranks, spec.dtype)
        self._model, self._outputs = model, Outputs(device, model, self._on_device)
        self._graphs.forget()
        capture = device.capture
        if capture is not None and self._captures_steps:
            given = (model, self._on_device, limits.tokens, self._flash)
            self._graphs = StepGraphs.over(*given, capture)
        device.synchronize()

    @property
    def _captures_steps(self) -> bool:
        """Whether steps are captured as graphs. False if the device has no graphs. Also false with
        pipeline stages, because steps that receive activations through the host are not captured.
        """
        return self._spec.has_whole_steps and self._device.capture is not None

    def _warm_up(self) -> None:
        limits = self._limits
        if self._compiled is not None:
            self._compiled.result()
        try:
            given = (self._model, self._on_device, limits, self._flash)
            self._device.start(lambda: warm_up(*given)).result()
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, f"a step of {limits.tokens} tokens") from error

    def submit(self, plan: StepPlan) -> StepFuture:
        captures = self._graphs.captures
        if not plan.slots and captures is not None:
            return Pause(self._device.start(torch.inference_mode()(captures.capture_next)))
        check(plan, self._limits)
        updates = self._slots.apply(plan)
        step, order = Step(plan, self._last_step, self._grammars), order_of(plan)
        # Read the slots now. By the time the work runs, other sequences may occupy them.
        firsts = first_rows(plan, order)
        if updates.plain and not any(plan.drafts):
            step.draws = plain_draws(plan, firsts)
        else:
            step.draws = wanted_draws(plan, self._slots, firsts)
            step.scores = wanted_scores(plan, self._slots, firsts)
            step.pooled = wanted_vectors(plan, self._slots, firsts)
        if captures is not None and not captures.complete:
            # The capture is a separate piece of work, so that its time does not count as step time.
            again = captures.capture_again
            self._device.start(lambda: self._work(plan, lambda: again(self._graphs.needed(step))))
        step.start(
            self._device,
            lambda: self._work(plan, lambda: self._compute(step, order, updates)),
        )
        self._last_step = step
        return step

    def open_tiers(self, tiers: OpenTiers) -> KvMover:
        copies, spec, pools = self._device.copies, self._spec, self._model.pools
        direct = direct_tiers(self._config, supported=copies is not None and copies.gds)
        settings = mover_settings(self._config, tiers, spec.model, spec.shard, pools)
        return open_tiers(settings, pools, copies, direct)

    def put(self, carried: bytes | Tensor) -> None:
        handed = carried if isinstance(carried, bytes) else self._device.handed(carried)
        self._carried.inward.put(handed)

    def fetch(self, timeout: float) -> bytes | Tensor:
        return self._carried.fetch(timeout)

    def close(self) -> None:
        self._device.close()
        # Free the graphs before NCCL is shut down: they hold NCCL operations, and the shutdown
        # would wait for these.
        self._graphs.forget()
        self._measured = None
        self._ranks.close()

    def _work(self, plan: StepPlan, work: Callable[[], None]) -> None:
        """Run `work`, a part of the plan's step. On an error, the plan's slots are marked as
        failed.
        """
        try:
            with torch.inference_mode():
                work()
        except BaseException as error:
            self._slots.fail(plan)
            if isinstance(error, torch.OutOfMemoryError):
                what = f"a step of {len(plan.tokens)} tokens"
                raise out_of_memory(error, what) from error
            raise

    def _compute(self, step: Step, order: list[int], updates: Updates) -> None:
        plan, device, graphs = step.plan, self._on_device, self._graphs
        if step.draws.expected:
            step.settle_before()
        for constraint, drafts in step.draws.expected:
            constraint.masks.expect(drafts)
        device.apply(updates)
        if graphs.decodes is not None and graphs.decodes.takes(plan):
            if step.only_tokens:
                step.found.tokens = self._device.to_host(graphs.decodes.draw(plan))
                return
            x = graphs.decodes.run(plan)
        elif graphs.prompts is not None and graphs.prompts.takes(plan):
            if graphs.drawn(step):
                drawn = graphs.prompts.draw(plan, order, step.draws)
                step.found.tokens = self._device.to_host(drawn)
                return
            x = graphs.prompts.run(plan, order)
        else:
            inputs = pack(plan, order, self._limits.block_size, self._device.torch)
            tables = device.tables(inputs.slots, inputs.blocks)
            inputs = planned(self._flash, inputs, plan, order, tables)
            x = self._model.forward(inputs, tables, device.last)
        self._outputs.compute(step, x)
