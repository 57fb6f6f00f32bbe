"""The torch backend: executes step plans. docs/gpu.md."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from penstock.backends import KvMover, StepFuture
from penstock.backends.mover_options import direct_tiers
from penstock.backends.torch import shard as shards
from penstock.backends.torch.checks import GroupLimits, Limits, check
from penstock.backends.torch.inputs import first_rows, order_of, pack, to_device
from penstock.backends.torch.kv.pool import Layout, make_pools
from penstock.backends.torch.kv.tiers import FORMS, mover_settings, open_tiers
from penstock.backends.torch.layers.model import Model
from penstock.backends.torch.load.checkpoint import Checkpoint
from penstock.backends.torch.load.load import bytes_to_read, load_weights, reported, weight_bytes
from penstock.backends.torch.load.recipes import Source
from penstock.backends.torch.load.uploads import READERS, Uploads
from penstock.backends.torch.load.weights import Weights, kv_groups
from penstock.backends.torch.ranks.ranks import open_ranks, parsed
from penstock.backends.torch.sampling.grammars import Grammars, RowMasks, find_masks
from penstock.backends.torch.sampling.pooling import vectors, wanted_vectors
from penstock.backends.torch.sampling.sampling import (
    HEAD_ROWS,
    Draws,
    Scored,
    draw,
    note_last,
    plain_draws,
    score,
    wanted_draws,
    wanted_scores,
)
from penstock.backends.torch.sampling.slots import DeviceSlots, Slots, Updates
from penstock.backends.torch.startup.compiling import Rehearsal, compile_ahead
from penstock.backends.torch.startup.measuring import measure
from penstock.backends.torch.startup.memory import (
    FOR_POOLS,
    FOR_WEIGHTS,
    out_of_memory,
    sent_bytes,
    step_bytes,
)
from penstock.backends.torch.startup.warm_up import warm_up
from penstock.backends.torch.step.captures import Captures, Graph
from penstock.backends.torch.step.device import Device
from penstock.backends.torch.step.flash import FlashInfer, check_flash, kinds_of, planned
from penstock.backends.torch.step.graphs import DecodeGraphs
from penstock.backends.torch.step.prompt_graphs import PromptGraphs
from penstock.backends.torch.step.step import Pause, Step
from penstock.config import EngineConfig
from penstock.config.machine import available_memory
from penstock.core import (
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
from penstock.model.spec import Attention, LatentAttention

ALONE = {"group": None, "before": None, "after": None, "patience_s": 0}
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16"}


class TorchBackend:
    """One rank. `device` runs the steps; everything else runs on the caller's thread."""

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
        spec = info.spec
        self._config, self._spec, self._device = config, spec, device
        self._report = report
        self._shard = shards.whole(spec) if rank is None else shards.parse(rank[0], spec)
        exact = config.model.dtype == "float32" or config.model.quantization == "none"
        self._dtype = torch.float32 if exact else torch.bfloat16
        self._longest = config.model.max_model_len or spec.max_position
        """Maximum positions of a sequence; sizes the block and rotation tables."""
        self._kv_dtype = torch.float32 if config.kv_dtype == "float32" else torch.bfloat16
        self._flash: FlashInfer | None = None
        if config.compute.attention == "flashinfer":
            check_flash(spec, self._dtype, self._kv_dtype)
        began = time.perf_counter()
        checkpoint = Checkpoint(Path(info.paths[0]))
        groups = kv_groups(spec, self._shard.layers)
        self._layouts = [self._layout(len(group.layers)) for group in groups]
        self._compiled = self._compile_ahead(info, checkpoint)
        with ThreadPoolExecutor(1, "fingerprint") as beside:
            fingerprint = beside.submit(checkpoint.fingerprint)
            self._weights = self._load(info, checkpoint)
        seconds = time.perf_counter() - began
        size = weight_bytes(self._weights)
        name = NAMES[self._dtype]
        forms = (name,) if self._shard.layers or self._shard.has_head else ()
        self.facts = WorkerFacts(
            fingerprint=fingerprint.result(),
            numerics=Numerics(forms, name if forms else "none", FORMS[self._kv_dtype]),
            device=device.name,
            threads=config.compute.threads,
            weights_bytes=size,
            stages=(("weights loaded", seconds, f"{size >> 20} MiB as {name}"),),
            own_memory=device.torch.type == "cuda",
            host_memory=available_memory() // config.parallel.most_ranks_on_a_node,
        )
        wiring = ALONE if rank is None else parsed(rank[1])
        symmetric = not config.parallel.library_sums
        self._ranks, self._carried_in, self._carried_out = open_ranks(
            wiring, self._shard, device.torch, symmetric=symmetric
        )
        self._grammars: Grammars | None = None
        if self._shard.has_head and self._shard.rank == 0:
            self._grammars = Grammars(Path(info.paths[0]), config.compute.threads)
        self._last_step: Step | None = None
        self._graphs: DecodeGraphs | None = None
        self._prompt_graphs: PromptGraphs | None = None
        self._captures: Captures | None = None
        self._largest: list[Callable[[], Tensor]] = []
        self._make_tables()
        self._free: int | None = None
        if self.facts.own_memory:
            self._free = self._measure()

    def _load(self, info: ModelInfo, checkpoint: Checkpoint) -> Weights:
        readers = min(READERS, max(2, self._config.compute.threads))
        wanted, shard = (info.spec, info.weights), self._shard
        total = bytes_to_read(checkpoint, *wanted, shard)
        try:
            with (
                reported(total, self._report) as add,
                Uploads(self._device.way(), readers, on_bytes=add) as uploads,
            ):
                source = Source(checkpoint, self._dtype, uploads)
                return load_weights(source, *wanted, shard, self._longest)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, "the weights", FOR_WEIGHTS) from error

    def kv_spec(self) -> KvSpec:
        groups = zip(self._weights.kv_groups, self._layouts, strict=True)
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
        free = self._free
        if free is None:
            free = self._device.free_memory() // config.parallel.most_ranks_on_a_node
            tables = 4 * self._on_device.entries
            free -= step_bytes(self._spec, self._shard, tokens, self._dtype, tables)
        # Activations between stages that are held in separate buffers.
        handed = config.parallel.ray_overlap_comm + (not self._shard.embeds)
        return max(0, free - handed * sent_bytes(self._spec, tokens, self._dtype))

    def _measure(self) -> int:
        """`free_memory` of a GPU, measured by a warm-up with KV pools of one block."""
        began = time.perf_counter()
        self._place([1] * len(self._layouts))
        flash = 0 if self._flash is None else self._flash.graph_bytes(self._width)
        try:
            found = measure(self._device, self._warm_up, self._captures, flash)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, "graphs of steps") from error
        self._largest = found.largest
        detail = found.describe(self._limits.tokens)
        pauses = 0
        # A capture that has to compile its kernel would block requests for seconds. The kernels of
        # FlashInfer's steps are not compiled ahead.
        if self._captures is not None and self._flash is None and self._all_compiled():
            pauses = len(self._captures)
            detail += f", {pauses} graphs to capture in pauses"
        stage = ("largest step computed", time.perf_counter() - began, detail)
        self.facts = replace(self.facts, stages=(*self.facts.stages, stage), pauses=pauses)
        return found.free

    def _all_compiled(self) -> bool:
        """True if all ranks of the stage, which capture together, compiled their kernels ahead."""
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
        if self._device.torch.type != "cuda":
            return None
        shared = (self._shard, self._limits_of([]), self._layouts, self._dtype)
        captures = self._captures_steps and self._config.compute.attention != "flashinfer"
        rehearsal = Rehearsal(info.spec, info.weights, checkpoint, *shared, captures)
        return compile_ahead(rehearsal.run, self._device.torch, self._config.compute.threads)

    def _limits_of(self, blocks: Sequence[GroupLimits]) -> Limits:
        config = self._config
        return Limits(
            slots=config.scheduler.max_num_seqs,
            tokens=config.scheduler.max_num_batched_tokens,
            vocab=self._spec.vocab,
            max_position=self._longest,
            block_size=config.cache.block_size,
            groups=tuple(blocks),
            last_sampled=self._shard.embeds and self._shard.has_head,
        )

    def allocate(self, blocks: Sequence[int]) -> None:
        try:
            self._place(blocks)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, "the KV pools", FOR_POOLS) from error
        captures = self._captures
        if captures is not None and self.facts.own_memory and not self.facts.pauses:
            self._device.start(torch.inference_mode()(captures.capture_all)).result()

    def _make_tables(self) -> None:
        """Allocate the device tables of steps and graphs, other than the KV pools."""
        config, device = self._config, self._device.torch
        slots, size = config.scheduler.max_num_seqs, config.cache.block_size
        self._width = -(-self._longest // size)
        try:
            self._on_device = DeviceSlots(slots, self._width, len(self._layouts), device)
            if config.compute.attention == "flashinfer":
                self._flash = FlashInfer(kinds_of(self._weights), size, self._dtype, device)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, f"tables of {slots} sequences") from error

    def _place(self, blocks: Sequence[int]) -> None:
        """Allocate KV pools of `blocks` per group, and build the model and graphs over them."""
        groups = zip(self._weights.kv_groups, blocks, strict=True)
        limits = self._limits_of([GroupLimits(n, g.window, g.chunked) for g, n in groups])
        self._limits, self._slots = limits, Slots(limits, self._width, self._grammars)
        self._pools = make_pools(self._layouts, blocks, self._device.torch)
        own = (self._spec, self._shard, self._weights, self._pools, self._ranks, self._dtype)
        self._model = Model(*own)
        if self._captures is not None:
            self._captures.forget()
        capture = self._device.capture
        if capture is not None and self._captures_steps:
            kinds: list[DecodeGraphs | PromptGraphs] = []
            self._graphs = DecodeGraphs(self._model, self._on_device, self._flash)
            kinds.append(self._graphs)
            if self._flash is None:
                self._prompt_graphs = PromptGraphs(self._model, self._on_device, limits.tokens)
                kinds.append(self._prompt_graphs)
            self._captures = Captures(self._model, capture, kinds)
        self._device.synchronize()

    @property
    def _captures_steps(self) -> bool:
        """False without graphs on the device, or with stages: rows sent by the host are not
        captured.
        """
        alone = self._shard.embeds and self._shard.has_head
        return alone and self._device.capture is not None

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
        captures = self._captures
        if not plan.slots and captures is not None:
            return Pause(self._device.start(torch.inference_mode()(captures.capture_next)))
        check(plan, self._limits)
        updates = self._slots.apply(plan)
        step, order = Step(plan, self._last_step, self._grammars), order_of(plan)
        # Read the slots now: when the work runs, they may hold other sequences.
        firsts = first_rows(plan, order)
        if updates.plain and not any(plan.drafts):
            step.draws = plain_draws(plan, firsts)
        else:
            step.draws = wanted_draws(plan, self._slots, firsts)
            step.scores = wanted_scores(plan, self._slots, firsts)
            step.pooled = wanted_vectors(plan, self._slots, firsts)
        if captures is not None and not captures.complete:
            # Not counted in the time of the step.
            again = captures.capture_again
            self._device.start(lambda: self._work(plan, lambda: again(self._needed(step))))
        step.start(
            self._device,
            lambda: self._work(plan, lambda: self._compute(step, order, updates)),
        )
        self._last_step = step
        return step

    def open_tiers(self, tiers: OpenTiers) -> KvMover:
        copies = self._device.copies
        direct = direct_tiers(self._config, on_gpu=copies is not None)
        settings = mover_settings(self._config, tiers, self._spec, self._shard, self._pools)
        return open_tiers(settings, self._pools, copies, direct)

    def put(self, carried: bytes | Tensor) -> None:
        self._carried_in.put(
            carried if isinstance(carried, bytes) else self._device.handed(carried)
        )

    def fetch(self, timeout: float) -> bytes | Tensor:
        try:
            found: bytes | Tensor = self._carried_out.get(timeout=timeout)
            return found
        except queue.Empty:
            raise TimeoutError from None

    def close(self) -> None:
        self._device.close()
        # Free graphs before NCCL: they hold NCCL operations, and its shutdown would wait for them.
        if self._captures is not None:
            self._captures.forget()
        self._graphs = self._prompt_graphs = self._captures = None
        self._largest = []
        self._ranks.close()

    def _layout(self, layers: int) -> Layout:
        mixer, shard = self._spec.layers[0].mixer, self._shard
        size, kind = self._config.cache.block_size, self._kv_dtype
        if isinstance(mixer, LatentAttention):
            return Layout(layers, 1, mixer.kv_rank + mixer.rope_dim, True, size, kind)
        assert isinstance(mixer, Attention)
        heads = len(shard.kv_heads(mixer.heads // mixer.kv_heads))
        return Layout(layers, heads, mixer.head_dim, False, size, kind)

    def _work(self, plan: StepPlan, work: Callable[[], None]) -> None:
        """Run `work` of the plan's step. An error marks the plan's slots as failed."""
        try:
            with torch.inference_mode():
                work()
        except BaseException as error:
            self._slots.fail(plan)
            if isinstance(error, torch.OutOfMemoryError):
                what = f"a step of {len(plan.tokens)} tokens"
                raise out_of_memory(error, what) from error
            raise

    def _needed(self, step: Step) -> list[Graph]:
        """Graphs that the step replays."""
        plan = step.plan
        if self._graphs is not None and self._graphs.takes(plan):
            return self._graphs.needed(plan, draws=step.only_tokens)
        if self._prompt_graphs is not None and self._prompt_graphs.takes(plan):
            return self._prompt_graphs.needed(plan, self._drawn_in_graph(step))
        return []

    def _drawn_in_graph(self, step: Step) -> int:
        """Rows that a graph samples in a step with prompts; 0 if the graph does not sample."""
        rows, graphs = len(step.draws.rows), self._prompt_graphs
        fits = graphs is not None and rows <= graphs.most_draws
        return rows if fits and step.plain_draws else 0

    def _compute(self, step: Step, order: list[int], updates: Updates) -> None:
        plan, device = step.plan, self._on_device
        if step.draws.expected:
            step.settle_before()
        for constraint, drafts in step.draws.expected:
            constraint.masks.expect(drafts)
        device.apply(updates)
        if self._graphs is not None and self._graphs.takes(plan):
            if step.only_tokens:
                step.found.tokens = self._device.to_host(self._graphs.draw(plan))
                return
            x = self._graphs.run(plan)
        elif self._prompt_graphs is not None and self._prompt_graphs.takes(plan):
            if self._drawn_in_graph(step):
                drawn = self._prompt_graphs.draw(plan, order, step.draws)
                step.found.tokens = self._device.to_host(drawn)
                return
            x = self._prompt_graphs.run(plan, order)
        else:
            inputs = pack(plan, order, self._limits.block_size, self._device.torch)
            tables = device.tables(inputs.slots, inputs.blocks)
            inputs = planned(self._flash, inputs, plan, order, tables)
            x = self._model.forward(inputs, tables, device.last)
        self._draw(step, x, self._masks(step))
        self._score(step, x)
        if step.pooled and self._shard.has_head:
            made = vectors(step.pooled, x, self._model.final, self._weights.score)
            step.found.vectors = [self._device.to_host(vector) for vector in made]

    def _masks(self, step: Step) -> RowMasks:
        """Grammar masks of the rows. The device computes while earlier results are processed."""
        if not (step.draws.masked or step.draws.reads_output):
            return RowMasks()
        computed = self._device.mark()
        if step.draws.reads_output:
            step.settle_before()
        return find_masks(step.draws.masked, computed)

    def _draw(self, step: Step, x: Tensor, masks: RowMasks) -> None:
        draws = step.draws
        if not draws.rows or not self._shard.has_head:
            return
        tokens, scored, parts = [], [], _parts(len(draws.rows))
        # One row per sequence, all in one part: no gather is needed.
        whole = len(x) == len(draws.rows) == len(step.plan.slots) and len(parts) == 1
        for part in parts:
            drawn, chosen = self._draw_part(draws, part, x, masks, whole=whole)
            tokens.append(drawn)
            if chosen is not None:
                scored.append(chosen)
        drawn = torch.cat(tokens)
        note_last(drawn, draws, self._on_device)
        step.found.tokens = self._device.to_host(drawn)
        step.found.drawn = self._joined(scored)

    def _draw_part(
        self, draws: Draws, part: range, x: Tensor, masks: RowMasks, *, whole: bool
    ) -> tuple[Tensor, Scored | None]:
        """Sampled tokens of the rows `part`, and their log-probabilities if requested. `whole`:
        `part` covers all rows of `x`.
        """
        own = slice(part.start, part.stop)
        columns = [draws.rows[own], draws.slots[own], draws.positions[own]]
        rows, slots, positions = to_device(columns, x.device)
        states = x if whole else x[rows]
        logits = self._model.logits(states)
        drawn = torch.empty(len(part), dtype=torch.int32, device=x.device)
        if logits is not None:
            finite = states.isfinite().all(1)
            drawn = draw(logits, finite, draws, part, slots, positions, self._on_device, masks)
        drawn = self._ranks.share(drawn)
        if logits is None or draws.logprobs < 0:
            return drawn, None
        return drawn, score(logits, drawn, draws.logprobs)

    def _score(self, step: Step, x: Tensor) -> None:
        scores, scored = step.scores, []
        if not self._shard.has_head:
            return
        for part in _parts(len(scores.rows)):
            own = slice(part.start, part.stop)
            rows, tokens = to_device([scores.rows[own], scores.tokens[own]], x.device)
            found = self._score_part(x[rows], tokens, max(scores.alternatives))
            if found is not None:
                scored.append(found)
        step.found.scored = self._joined(scored)

    def _score_part(self, states: Tensor, tokens: Tensor, alternatives: int) -> Scored | None:
        logits = self._model.logits(states)
        return None if logits is None else score(logits, tokens, alternatives)

    def _joined(self, scored: list[Scored]) -> Scored | None:
        if not scored:
            return None
        one, two, three, four = (
            self._device.to_host(torch.cat(column)) for column in zip(*scored, strict=True)
        )
        return one, two, three, four


def _parts(rows: int) -> list[range]:
    return [range(at, min(rows, at + HEAD_ROWS)) for at in range(0, rows, HEAD_ROWS)]
