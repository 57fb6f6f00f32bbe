"""Text of a plan: whether and how a model fits, the alternatives that were tried, and changes that
would help if nothing fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock_ops.plan.cut import deployed
from penstock_ops.plan.fitting import Placement, Remedy
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.lines import columns, human
from penstock_ops.plan.memory import Memory
from penstock_ops.plan.prices import closest
from penstock_ops.plan.search import Question, SearchResult

VENDORS = ("NVIDIA ", "AMD ")


def place(target: Target, devices: int | None = None) -> str:
    """The target in words, such as `4 of 8 H100 SXM`."""
    device = target.accelerator
    if device.is_cpu:
        return "this machine"
    title = device.title
    for vendor in VENDORS:
        title = title.removeprefix(vendor)
    return f"{target.count if devices is None else f'{devices} of {target.count}'} {title}"


def fits(memory: Memory, placement: Placement) -> str:
    """The verdict about a model without a load."""
    target, spec = placement.target, placement.subject.spec
    length = placement.load.context or spec.max_position
    at_once = memory.concurrency(length)
    head = f"Fits: {place(target, memory.cut.size)}"
    head += f" ({memory.cut})" if memory.cut.size > 1 else ""
    if at_once:
        many = f"up to {at_once:,} sequences" if at_once > 1 else "1 sequence"
        return f"{head}. {many[0].upper()}{many[1:]} of {length:,} tokens at once."
    longest = memory.longest(length)
    return (
        f"{head}. Sequences of up to {longest:,} of the model's {length:,} tokens: serve with "
        f"--max-model-len {longest}."
    )


def misfit(memory: Memory, placement: Placement) -> str:
    """The verdict about a model that does not fit: how much the fullest device lacks."""
    subject, tokens = placement.subject, max(placement.load.context, 1)
    missing = memory.missing(tokens)
    lacking = [each for each in missing if each > 0]
    size = human(subject.weights.model_bytes(subject.spec))
    where = place(replace(placement.target, count=memory.cut.size))
    if not placement.target.accelerator.is_cpu and memory.cut.size > 1:
        every = len(lacking) == len(missing)
        where = f"{'each' if every else len(lacking)} of {where} ({memory.cut})"
    needed = f" for one sequence of {tokens:,} tokens" if tokens > 1 else ""
    return (
        f"Does not fit: {subject.name} ({subject.weights.name}, {size}) lacks "
        f"{human(max(lacking))} on {where}{needed}."
    )


def fails(question: Question, found: SearchResult) -> str:
    """The verdict if nothing on the target meets the goal: how close the best one came."""
    why = closest(found)
    return f"Does not hold the goal: {place(question.target)}{f'; {why}' if why else ''}."


def suggestions(title: str, found: Sequence[Remedy]) -> list[str]:
    """Lines with suggested changes, in columns."""
    rows = [(f"  {each.flags}", _reached(each)) for each in found]
    return [title, *columns(rows, left=(0, 1))] if found else []


def _reached(remedy: Remedy) -> str:
    how = deployed(str(remedy.cut), remedy.replicas, remedy.devices)
    text = f"fits on {remedy.devices}{f' ({how})' if how else ''}"
    return f"{text}; {remedy.caveat}" if remedy.caveat else text
