"""Roofline model of step time: bytes and operations of each rank, all-reduces, overheads.

A step of `decodes` sequences and `prefill` prompt tokens takes the maximum of read time and compute
time, plus a constant for each layer, two all-reduces in the stage for each layer, and a constant.
The last stage also gathers the logits of its ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from penstock.core import KvSpec
from penstock.model.sizing import Matrix
from penstock.model.spec import Attention, DecoderSpec, Experts, LatentAttention
from penstock_ops.plan.collectives import Group, group
from penstock_ops.plan.cut import Cut, Share, Shares
from penstock_ops.plan.hardware import Accelerator
from penstock_ops.plan.weights import KV_BYTES, WeightTypes

EXCHANGED = 0.75
"""Bytes of an all-to-all relative to bf16: tokens go to experts in FP8 and return in bf16."""
RATES = {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp8", "int8": "int8"}
"""Number type that computes with weights of a type; by default bf16."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Efficiency of an engine on accelerators, and its overheads."""

    memory: float
    """Reached share of the memory bandwidth."""
    compute: float
    """Reached share of the operations per second."""
    link: float = 0.5
    """Reached share of the links' bandwidth in an all-reduce."""
    hop: float = 10e-6
    """Fixed seconds of an all-reduce."""
    across: float = 0.0
    """Additional seconds for each doubling of the domains that the ranks span."""
    layer: float = 0.0
    """Fixed seconds of a layer."""
    step: float = 0.0
    """Fixed seconds of a step."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Work of one rank of a stage, the slowest one."""

    layers: int
    always: float
    """Bytes of weights that every step reads."""
    experts: float
    """Bytes of all routed experts."""
    each_token: float
    """Operations on weights for each token."""
    attended: float
    """Attention operations for each pair of a token and a token that it sees."""
    kv: KvSpec


class Steps(Protocol):
    """Step times of a replica."""

    def seconds(
        self, decodes: float, context: float, prefill: float = 0.0, pairs: float = 0.0
    ) -> float:
        """Seconds of a step with `decodes` decodes that see `context` tokens each, `prefill` prompt
        tokens, and `pairs` pairs of a prompt token and a token before its chunk.
        """

    def settling(self, decodes: float, since: float) -> float:
        """Additional seconds of a decode step, `since` steps after one with prompt tokens."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """Step times of one replica in seconds."""

    spec: DecoderSpec
    cut: Cut
    device: Accelerator
    stages: tuple[Stage, ...]
    constants: Constants
    flops: float
    """Operations per second of the device for the weights' type."""
    missed: float
    """Share of the experts that a token does not choose; 1 without experts."""
    copies: int
    """Number of experts that a token chooses."""
    group: Group = field(init=False)
    """Ranks of a stage."""

    def __post_init__(self) -> None:
        c = self.constants
        found = group(self.device, self.cut.tp, c.link, c.hop, c.across)
        object.__setattr__(self, "group", found)

    def stage(
        self, stage: Stage, decodes: float, context: float, prefill: float, pairs: float = 0.0
    ) -> float:
        """Seconds of one stage of a step. `context` is the average number of tokens seen."""
        read = self.bytes_read(stage, decodes, context, prefill)
        work = self.operations(stage, decodes, context, prefill, pairs)
        longest = max(
            read / (self.device.bandwidth * self.constants.memory),
            work / (self.flops * self.constants.compute),
        )
        tokens = (decodes + prefill) / self.cut.shares
        sums = 2 * self.all_reduce(tokens) if self.cut.tp > 1 else 0.0
        return longest + stage.layers * (self.constants.layer + sums)

    def bytes_read(
        self, stage: Stage, decodes: float, context: float, prefill: float = 0.0
    ) -> float:
        """Weight and KV bytes that a rank of the stage reads in a step."""
        read = stage.always + stage.experts * self._distinct(decodes + prefill)
        return read + decodes / self.cut.shares * seen_bytes(stage.kv, context)

    def operations(
        self, stage: Stage, decodes: float, context: float, prefill: float = 0.0, pairs: float = 0.0
    ) -> float:
        """Operations of a rank of the stage in a step."""
        shared = self.cut.shares
        decodes, prefill = decodes / shared, prefill / shared
        work = (decodes + prefill) * stage.each_token + decodes * context * stage.attended
        return work + (prefill * prefill / 2 + pairs / shared) * stage.attended

    def settling(self, decodes: float, since: float) -> float:
        """Always 0: weights of models for accelerators do not stay in caches."""
        return 0.0

    def seconds(
        self, decodes: float, context: float, prefill: float = 0.0, pairs: float = 0.0
    ) -> float:
        """Seconds of a step until its tokens are available. Stages share its sequences evenly."""
        pp = self.cut.pp
        each = [
            self.stage(stage, decodes / pp, context, prefill / pp, pairs / pp)
            for stage in self.stages
        ]
        each[-1] += self.gather(decodes / pp)
        hops = (pp - 1) * self._hop((decodes + prefill) / pp)
        through = sum(each) + hops
        return max(through, pp * max(each)) + self.constants.step

    def tpot(self, clients: int, isl: int, osl: int) -> float:
        """Seconds between tokens in a closed loop of `clients` clients."""
        context = isl + osl / 2
        return self.seconds(clients, context) + clients * self.prefill(isl) / osl

    def prefill(self, tokens: float) -> float:
        """Seconds that a prompt adds to its steps, without a step's own overheads."""
        return self.seconds(0, 0, tokens) - self.seconds(0, 0, 0)

    def _distinct(self, tokens: float) -> float:
        """Expected share of the experts chosen by `tokens` tokens, with uniform random choices."""
        return 1.0 - math.pow(self.missed, tokens)

    def all_reduce(self, tokens: float) -> float:
        """An all-reduce of hidden states; half of an exchange with data-parallel attention."""
        size = tokens * self.spec.hidden * 2
        if self.cut.by_requests:
            return self.group.exchange(size * self.copies * EXCHANGED)
        return self.group.all_reduce(size)

    def gather(self, decodes: float) -> float:
        """An all-gather of the logits, if ranks have parts of the vocabulary."""
        if self.cut.tp == 1 or self.cut.by_requests:
            return 0.0
        return self.group.all_gather(decodes * self.spec.vocab * 2)

    def _hop(self, tokens: float) -> float:
        """Transfer of hidden states to the next stage."""
        across = self.cut.size > self.device.linked
        link = (self.device.network if across else self.device.link) * self.constants.link
        return self.constants.hop + tokens * self.spec.hidden * 2 / max(link, 1.0)


def step_model(
    spec: DecoderSpec,
    weights: WeightTypes,
    device: Accelerator,
    cut: Cut,
    constants: Constants,
    kv: str = "bf16",
) -> StepModel:
    """The step model of a replica."""
    shares = Shares(spec, cut)
    stages = tuple(
        _stage(spec, shares[stage * cut.tp], weights, KV_BYTES[kv]) for stage in range(cut.pp)
    )
    rate = device.flops.get(RATES.get(weights.name, "bf16")) or device.flops.get("bf16", 0.0)
    forms = (layer.feed_forward for layer in spec.layers)
    form = next((form for form in forms if isinstance(form, Experts)), None)
    copies = form.experts_per_token if form else 1
    missed = 1 - copies / form.experts if form else 1.0
    return StepModel(spec, cut, device, stages, constants, rate, missed, copies)


def seen_bytes(kv: KvSpec, context: float) -> float:
    """KV bytes that a sequence of `context` tokens reads in a step."""
    return sum(
        min(context, group.window or context) * group.block_bytes / kv.block_size
        for group in kv.groups
    )


def _stage(spec: DecoderSpec, share: Share, weights: WeightTypes, number_bytes: int) -> Stage:
    always = experts = work = 0.0
    for matrix, count in share.matrices(weights.by_layer):
        if matrix.part == "embedding" and not spec.tied_embeddings:
            continue
        size = matrix.numbers * count * weights.size(weights.kind(matrix))
        if matrix.part == "experts":
            experts += size
        else:
            always += size
        work += _work(matrix) * count
    return Stage(
        len(share.layers),
        always,
        experts,
        work,
        _attended(spec, share),
        share.kv(number_bytes),
    )


def _work(matrix: Matrix) -> float:
    """Operations for each token: a multiplication and an addition for each weight it uses."""
    if matrix.part == "vectors":
        return 0.0
    copies = matrix.copies if matrix.active is None else matrix.active
    return 2.0 * matrix.outputs * matrix.inputs * copies


def _attended(spec: DecoderSpec, share: Share) -> float:
    """Operations for each pair of tokens, in the layers with full attention."""
    total = 0.0
    for i in share.layers:
        mixer = spec.layers[i].mixer
        if isinstance(mixer, Attention) and mixer.window is None and mixer.chunk is None:
            total += 2.0 * mixer.heads * (mixer.head_dim + (mixer.value_dim or mixer.head_dim))
        elif isinstance(mixer, LatentAttention):
            total += 2.0 * mixer.heads * (2 * mixer.kv_rank + mixer.rope_dim)
    return total / (1 if share.cut.by_requests else share.cut.tp)
