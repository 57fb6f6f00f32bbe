"""Time of a step by roofline: bytes and operations of each rank, sums between ranks, overheads.

A step of `decodes` sequences and `prefill` prompt tokens takes the longer of reading and computing,
a constant for each layer, two sums over the ranks of a stage for each, and a constant. The last
stage gathers the logits of its ranks.
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
"""Bytes of an exchange over those in bf16: tokens go to experts in FP8 and return in bf16."""
RATES = {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp8", "int8": "int8"}
"""Unit that computes with weights of a type; others, and types without a unit, use bf16's."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What an engine reaches on accelerators, and its overheads."""

    memory: float
    """Share of the bandwidth that a step reaches."""
    compute: float
    """Share of the operations."""
    link: float = 0.5
    """Share of the links' bandwidth that a sum over ranks reaches."""
    hop: float = 10e-6
    """Seconds of a sum over ranks, whatever its size."""
    across: float = 0.0
    """Seconds more for each doubling of the domains that the ranks are in."""
    layer: float = 0.0
    """Seconds of a layer, whatever it computes."""
    step: float = 0.0
    """Seconds of a step."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What one rank of a stage reads and computes, the slowest one."""

    layers: int
    always: float
    """Bytes of weights that every step reads."""
    experts: float
    """Bytes of all routed experts."""
    each_token: float
    """Operations on weights for a token."""
    attended: float
    """Operations of attention for a token and a token that it sees."""
    kv: KvSpec


class Steps(Protocol):
    """Times of a replica's steps."""

    def seconds(
        self, decodes: float, context: float, prefill: float = 0.0, pairs: float = 0.0
    ) -> float:
        """A step of so many decodes that see `context` tokens each, and so many prompt tokens with
        so many pairs of a prompt token and a token before its chunk.
        """

    def settling(self, decodes: float, since: float) -> float:
        """What a decode step takes longer so many steps after one with prompt tokens."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds of steps of one replica."""

    spec: DecoderSpec
    cut: Cut
    device: Accelerator
    stages: tuple[Stage, ...]
    constants: Constants
    flops: float
    """Operations a second of the device with the weights' type."""
    missed: float
    """Share of the experts that a token does not choose; 1: there are none."""
    copies: int
    """Experts that a token chooses."""
    group: Group = field(init=False)
    """Ranks of a stage."""

    def __post_init__(self) -> None:
        c = self.constants
        found = group(self.device, self.cut.tp, c.link, c.hop, c.across)
        object.__setattr__(self, "group", found)

    def stage(
        self, stage: Stage, decodes: float, context: float, prefill: float, pairs: float = 0.0
    ) -> float:
        """One stage of a step: `context` tokens seen by each sequence, on average."""
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
        """Weights and KV that a rank of the stage reads in a step."""
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
        """As `Steps` has it: weights of models for accelerators do not stay in caches."""
        return 0.0

    def seconds(
        self, decodes: float, context: float, prefill: float = 0.0, pairs: float = 0.0
    ) -> float:
        """A step, until its tokens are there. Stages share the sequences of a step evenly."""
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
        """Seconds between tokens under a closed loop of so many clients."""
        context = isl + osl / 2
        return self.seconds(clients, context) + clients * self.prefill(isl) / osl

    def prefill(self, tokens: float) -> float:
        """What a prompt adds to the steps that compute it: no overheads of a step of its own."""
        return self.seconds(0, 0, tokens) - self.seconds(0, 0, 0)

    def _distinct(self, tokens: float) -> float:
        """Share of the experts that so many tokens choose between them, evenly at random."""
        return 1.0 - math.pow(self.missed, tokens)

    def all_reduce(self, tokens: float) -> float:
        """An all-reduce of the hidden states, or with attention by requests half an exchange."""
        size = tokens * self.spec.hidden * 2
        if self.cut.by_requests:
            return self.group.exchange(size * self.copies * EXCHANGED)
        return self.group.all_reduce(size)

    def gather(self, decodes: float) -> float:
        """An all-gather of the logits, where ranks have parts of the vocabulary."""
        if self.cut.tp == 1 or self.cut.by_requests:
            return 0.0
        return self.group.all_gather(decodes * self.spec.vocab * 2)

    def _hop(self, tokens: float) -> float:
        """Hidden states to the next stage."""
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
    """The step times of a replica."""
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
    """KV that a sequence of so many tokens reads in a step."""
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
    """Operations for a token: a product and a sum for each weight that it meets."""
    if matrix.part == "vectors":
        return 0.0
    copies = matrix.copies if matrix.active is None else matrix.active
    return 2.0 * matrix.outputs * matrix.inputs * copies


def _attended(spec: DecoderSpec, share: Share) -> float:
    """Operations for a pair of tokens, of the layers that see everything."""
    total = 0.0
    for i in share.layers:
        mixer = spec.layers[i].mixer
        if isinstance(mixer, Attention) and mixer.window is None and mixer.chunk is None:
            total += 2.0 * mixer.heads * (mixer.head_dim + (mixer.value_dim or mixer.head_dim))
        elif isinstance(mixer, LatentAttention):
            total += 2.0 * mixer.heads * (2 * mixer.kv_rank + mixer.rope_dim)
    return total / (1 if share.cut.by_requests else share.cut.tp)
