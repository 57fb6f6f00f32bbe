"""Predicts the time of a step by a roofline model: bytes that each rank reads, operations that it
computes, all-reduces, and fixed times.

A step of `decodes` sequences and `prefill` prompt tokens takes the larger of its read time and its
compute time, plus fixed seconds and two all-reduces for each layer, plus fixed seconds for the
step. The last stage also gathers the logits of its ranks.
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
"""Bytes of an all-to-all relative to bf16 in both directions: tokens go to experts in FP8 and
return in bf16.
"""
RATES = {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp8", "int8": "int8"}
"""Number type in which a product with weights of a type is computed; bf16 for types that are not
listed.
"""


@dataclass(frozen=True, slots=True)
class Constants:
    """Which shares of an accelerator's rates an engine reaches, and its fixed times."""

    memory: float
    """Share of the data sheet's memory bandwidth that is reached (0 to 1)."""
    compute: float
    """Share of the data sheet's operations per second that is reached (0 to 1)."""
    link: float = 0.5
    """Share of the data sheet's link bandwidth that an all-reduce reaches (0 to 1)."""
    hop: float = 10e-6
    """Fixed seconds of an all-reduce inside a domain of linked devices."""
    across: float = 0.0
    """Seconds that each doubling of the number of domains adds to an all-reduce."""
    layer: float = 0.0
    """Fixed seconds for each layer."""
    step: float = 0.0
    """Fixed seconds for each step."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The work of one rank of a pipeline stage in each step; the first rank stands for all."""

    layers: int
    always: float
    """Bytes of the weights that every step reads, independent of the chosen experts."""
    experts: float
    """Bytes of all experts that a router may choose."""
    each_token: float
    """Operations with weights for each token."""
    attended: float
    """Operations of attention for each pair of a token and a token that it attends to."""
    kv: KvSpec


class Steps(Protocol):
    """How long the steps of a replica take; implemented by a model and by measurements."""

    def seconds(
        self, decodes: float, context: float, prefill: float = 0.0, pairs: float = 0.0
    ) -> float:
        """Seconds of a step with `decodes` decodes, each of which attends to `context` tokens, and
        `prefill` prompt tokens. `pairs` is the number of pairs of one of these prompt tokens and an
        earlier token outside the step's chunk.
        """

    def settling(self, decodes: float, since: float) -> float:
        """Additional seconds of a step with `decodes` decodes, if the last step with prompt tokens
        was `since` steps before.
        """


@dataclass(frozen=True, slots=True)
class StepModel:
    """Predicted step times of one replica on accelerators."""

    spec: DecoderSpec
    cut: Cut
    device: Accelerator
    stages: tuple[Stage, ...]
    constants: Constants
    flops: float
    """Operations per second of the device by its data sheet, for the weights' number type."""
    missed: float
    """Share of the experts that a single token does not choose; 1 without experts."""
    copies: int
    """Number of experts that each token chooses."""
    group: Group = field(init=False)
    """The ranks of a stage, for the time of their collective operations."""

    def __post_init__(self) -> None:
        c = self.constants
        found = group(self.device, self.cut.tp, c.link, c.hop, c.across)
        object.__setattr__(self, "group", found)

    def stage(
        self, stage: Stage, decodes: float, context: float, prefill: float, pairs: float = 0.0
    ) -> float:
        """Seconds of one stage in a step. `context` is the average number of tokens that a decode
        attends to.
        """
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
        """Bytes of weights and KV that a rank of the stage reads in a step."""
        read = stage.always + stage.experts * self._distinct(decodes + prefill)
        return read + decodes / self.cut.shares * seen_bytes(stage.kv, context)

    def operations(
        self, stage: Stage, decodes: float, context: float, prefill: float = 0.0, pairs: float = 0.0
    ) -> float:
        """Number of operations that a rank of the stage computes in a step."""
        shared = self.cut.shares
        decodes, prefill = decodes / shared, prefill / shared
        work = (decodes + prefill) * stage.each_token + decodes * context * stage.attended
        return work + (prefill * prefill / 2 + pairs / shared) * stage.attended

    def settling(self, decodes: float, since: float) -> float:
        """Always 0: the weights of models for accelerators are too large to stay in caches."""
        return 0.0

    def seconds(
        self, decodes: float, context: float, prefill: float = 0.0, pairs: float = 0.0
    ) -> float:
        """Seconds of a step until its tokens are available. The stages work at the same time, each
        on an equal share of the sequences.
        """
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
        """Seconds between two tokens of a sequence, if `clients` clients each send a new request
        when their last one has ended.
        """
        return closed_loop_tpot(self, clients, isl, osl)

    def _distinct(self, tokens: float) -> float:
        """Expected share of the experts that at least one of `tokens` tokens chooses, if tokens
        choose uniformly at random.
        """
        return 1.0 - math.pow(self.missed, tokens)

    def all_reduce(self, tokens: float) -> float:
        """Seconds of an all-reduce of the hidden states of `tokens` tokens. With data-parallel
        attention: half of the exchange of tokens with experts.
        """
        size = tokens * self.spec.hidden * 2
        if self.cut.by_requests:
            return self.group.exchange(size * self.copies * EXCHANGED)
        return self.group.all_reduce(size)

    def gather(self, decodes: float) -> float:
        """Seconds to gather the logits of `decodes` tokens, if each rank has a part of the
        vocabulary; else 0.
        """
        if self.cut.tp == 1 or self.cut.by_requests:
            return 0.0
        return self.group.all_gather(decodes * self.spec.vocab * 2)

    def _hop(self, tokens: float) -> float:
        """Seconds to send the hidden states of `tokens` tokens to the next stage."""
        across = self.cut.size > self.device.linked
        link = (self.device.network if across else self.device.link) * self.constants.link
        return self.constants.hop + tokens * self.spec.hidden * 2 / max(link, 1.0)


def prompt_seconds(steps: Steps, tokens: float) -> float:
    """Seconds that a prompt of `tokens` tokens adds to the steps that compute it, without the fixed
    times of a step.
    """
    return steps.seconds(0, 0, tokens) - steps.seconds(0, 0, 0)


def closed_loop_tpot(steps: Steps, clients: float, isl: float, osl: float) -> float:
    """Seconds between two tokens of a sequence, if `clients` clients each send a new request when
    their last one has ended.
    """
    context = isl + osl / 2
    return steps.seconds(clients, context) + clients * prompt_seconds(steps, isl) / osl


def step_model(
    spec: DecoderSpec,
    weights: WeightTypes,
    device: Accelerator,
    cut: Cut,
    constants: Constants,
    kv: str = "bf16",
) -> StepModel:
    """The step time model of a replica with this partition on this device."""
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
    """Bytes of KV that a decode with `context` tokens reads in a step."""
    return sum(
        min(context, group.window or context) * group.block_bytes / kv.block_size
        for group in kv.groups
    )


def _stage(spec: DecoderSpec, share: Share, weights: WeightTypes, number_bytes: int) -> Stage:
    always = experts = work = 0.0
    for matrix, count in share.matrices(weights.by_layer):
        if matrix.part == "embedding" and not spec.tied_embeddings:
            continue
        size = count * weights.size(matrix)
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
    """Operations with a matrix for each token: one multiplication and one addition for each weight
    that the token uses.
    """
    if matrix.part == "vectors":
        return 0.0
    copies = matrix.copies if matrix.active is None else matrix.active
    return 2.0 * matrix.outputs * matrix.inputs * copies


def _attended(spec: DecoderSpec, share: Share) -> float:
    """Operations of attention for each pair of tokens on one rank, in the layers with full
    attention.
    """
    total = 0.0
    for i in share.layers:
        mixer = spec.layers[i].mixer
        if isinstance(mixer, Attention) and mixer.window is None and mixer.chunk is None:
            total += 2.0 * mixer.heads * (mixer.head_dim + (mixer.value_dim or mixer.head_dim))
        elif isinstance(mixer, LatentAttention):
            total += 2.0 * mixer.heads * (2 * mixer.kv_rank + mixer.rope_dim)
    return total / (1 if share.cut.by_requests else share.cut.tp)
