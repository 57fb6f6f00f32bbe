"""The arithmetic behind the predicted time of a decode step, as text for `--explain`."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ops.plan.collectives import Group
from penstock_ops.plan.search import Goal, Trial
from penstock_ops.plan.speed import Stage, StepModel
from penstock_ops.plan.thresholds import operating_point


def step_lines(trial: Trial, goal: Goal) -> list[str]:
    """Lines about a decode step of the chosen deployment at its average load; empty if steps were
    measured.
    """
    model = trial.candidate.model
    if not isinstance(model, StepModel):
        return []
    batch, context = operating_point(trial, goal)
    seconds = model.seconds(batch, context)
    head = (
        f"a step of {batch:.1f} sequences that see {context:,.0f} tokens each: "
        f"{1e3 * seconds:.2f} ms, the band's middle"
    )
    lines = [head, *_stage(model, batch, context)]
    if model.cut.pp > 1:
        lines.append(
            f"  {model.cut.pp} stages, each with {batch / model.cut.pp:.1f} of the sequences: the "
            "longer of the way through all and of all steps of the slowest"
        )
    if (gathered := model.gather(batch / model.cut.pp)) > 0:
        lines.append(f"  {'logits':<9}{_ms(gathered)}  = their all-gather, in the last stage")
    lines.append(f"  {'step':<9}{_ms(model.constants.step)}  = a constant")
    return lines


def _stage(model: StepModel, batch: float, context: float) -> Iterator[str]:
    """Lines about the slowest stage of the step."""
    each = batch / model.cut.pp
    stage = max(model.stages, key=lambda stage: model.stage(stage, each, context, 0.0))
    yield from _roofline(model, stage, each, context)
    layers, layer = stage.layers, model.constants.layer
    yield f"  {'layers':<9}{_ms(layers * layer)}  = {layers} x {1e6 * layer:g} us"
    if model.cut.tp > 1:
        tokens = each / model.cut.shares
        taken = model.all_reduce(tokens)
        yield f"  {'sums':<9}{_ms(2 * layers * taken)}  = {2 * layers} x {1e6 * taken:.1f} us"
        yield f"    {_sum(model, tokens)}"


def _roofline(model: StepModel, stage: Stage, batch: float, context: float) -> Iterator[str]:
    c, device = model.constants, model.device
    read = model.bytes_read(stage, batch, context)
    work = model.operations(stage, batch, context)
    rate = device.bandwidth * c.memory
    yield (
        f"  {'reading':<9}{_ms(read / rate)}  = {read / 1e9:.2f} GB of weights and KV / "
        f"({device.bandwidth / 1e9:g} GB/s x {c.memory:g})"
    )
    yield (
        f"  {'computing':<9}{_ms(work / (model.flops * c.compute))}  = {work / 1e9:.1f} G / "
        f"({model.flops / 1e12:g} T/s x {c.compute:g}); the longer of the two counts"
    )


def _sum(model: StepModel, tokens: float) -> str:
    group, size = model.group, tokens * model.spec.hidden * 2
    if model.cut.by_requests:
        return f"a sum: half an exchange of {tokens:.1f} tokens with {model.copies} experts each"
    return f"a sum of {size / 1e3:.1f} KB: {latency(group)} + {wire(group, size)}"


def latency(group: Group) -> str:
    if group.domains == 1:
        return f"{1e6 * group.hop:g} us"
    return f"{1e6 * group.hop:g} us + {1e6 * group.across:g} us x log2({group.domains} domains)"


def wire(group: Group, size: float) -> str:
    """Text for the transfer time of an all-reduce, inside a domain and between domains."""
    d, n = group.in_domain, group.domains
    inside = f"2 x {d - 1}/{d} x {size / 1e3:.1f} KB / {group.link / 1e9:g} GB/s"
    if n == 1:
        return inside
    between = f"2 x {n - 1}/{n} x {size / 1e3:.1f} KB / ({d} x {group.network / 1e9:g} GB/s)"
    return f"the longer of {inside} and {between}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:8.3f} ms"
