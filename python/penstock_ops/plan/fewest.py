"""The smallest number of devices that holds a model and one long sequence, and why fewer devices
are not sufficient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.core import InvalidValueError
from penstock_lab.bench.table import render
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.fitting import Placement
from penstock_ops.plan.lines import human
from penstock_ops.plan.memory import Memory

MOST_DEVICES = 64
"""Maximum number of devices that are tried."""
COLUMNS = ("model", "tokens", "weights", "KV", "one stage", "servers", "with stages", "servers")


@dataclass(frozen=True, slots=True)
class Fewest:
    """The smallest deployment that holds a model, and the reasons why a smaller one does not."""

    memory: Memory | None
    """None if MOST_DEVICES are too few."""
    reasons: tuple[str, ...]

    @property
    def devices(self) -> int:
        """Number of devices; 0 if MOST_DEVICES are too few."""
        return self.memory.cut.size if self.memory else 0


def fit_table(placements: Sequence[Placement]) -> list[str]:
    """Table with the fewest devices and servers for each placement, in one stage and with stages.
    The target's number of devices does not count, and all placements have the same hardware and
    engine settings.
    """
    first = placements[0]
    rows = []
    for placement in placements:
        one, staged = in_one_stage(placement), in_stages(placement)
        rows.append(
            [
                placement.subject.name,
                f"{placement.load.context:,}",
                placement.subject.weights.name,
                placement.kv,
                *_shown(one.memory, placement.target.per_node),
                *_shown(staged, placement.target.per_node),
                "; ".join(one.reasons),
            ]
        )
    node = first.target.node
    servers = node.title if node else f"servers of {first.target.per_node}"
    share = "" if first.load.fraction is None else f", memory fraction {first.load.fraction:g}"
    head = (
        f"Fewest {first.target.accelerator.title} for one sequence of this length, on {servers}, "
        f"by the rules of {first.rules.name}{share}:"
    )
    return [head, "", *render([*COLUMNS, "why no fewer in one stage"], rows)]


def _shown(memory: Memory | None, per_node: int) -> tuple[str, str]:
    if memory is None:
        return f"over {MOST_DEVICES}", f"over {MOST_DEVICES // per_node}"
    cut = memory.cut
    how = f" ({cut})" if cut.pp > 1 else ""
    return f"{cut.size}{how}", str(-(-cut.size // per_node))


def in_one_stage(placement: Placement) -> Fewest:
    """The fewest devices that share each layer, and why the engine takes no smaller number: too
    little memory, or heads that do not divide.
    """
    refused: dict[str, list[int]] = {}
    lacking: Cut | None = None
    size = _weight_bytes(placement)
    for count in range(1, MOST_DEVICES + 1):
        cut = _cut(placement, count, 1)
        memory = _held(placement, cut, size)
        if why := _refusal(placement, cut):
            if memory is not None:
                refused.setdefault(why, []).append(count)
        elif memory is not None:
            return Fewest(memory, _reasons(placement, lacking, refused))
        else:
            lacking = cut
    return Fewest(None, _reasons(placement, lacking, refused))


def in_stages(placement: Placement) -> Memory | None:
    """Memory of the cut on the fewest devices; among several such cuts, the one with the most space
    for KV.
    """
    size = _weight_bytes(placement)
    for count in range(1, MOST_DEVICES + 1):
        found = [
            memory
            for pp in range(1, min(count, len(placement.subject.spec.layers)) + 1)
            if count % pp == 0
            for cut in (_cut(placement, count // pp, pp),)
            if not placement.rules.refuses(placement.subject.spec, cut, placement.target.per_node)
            for memory in (_held(placement, cut, size),)
            if memory is not None
        ]
        if found:
            return max(found, key=lambda memory: memory.fullest.room)
    return None


def _cut(placement: Placement, tp: int, pp: int) -> Cut:
    return Cut(tp, pp, placement.by_experts, placement.by_requests)


def _weight_bytes(placement: Placement) -> int:
    subject = placement.subject
    return subject.weights.model_bytes(subject.spec)


def _held(placement: Placement, cut: Cut, size: int) -> Memory | None:
    """Memory of a cut that holds the sequence and the model, whose weights have `size` bytes. None
    if they do not fit, or for more ranks than heads.
    """
    device = placement.target.accelerator
    needs = placement.rules.rule(placement.subject.spec, device, cut, placement.load)
    if size // cut.size + sum(line.bytes for line in needs) > device.memory:
        return None  # Some rank has at least the average, which is cheaper to compute.
    try:
        memory = placement.memory(cut)
    except InvalidValueError:
        return None
    return memory if placement.holds(memory) else None


def _refusal(placement: Placement, cut: Cut) -> str:
    """Reason why the engine rejects a cut in one stage, without the number of ranks; empty if it
    accepts the cut.
    """
    spec, per_node = placement.subject.spec, placement.target.per_node
    if heads := placement.rules.indivisible(spec, cut):
        return f"{heads} do not divide by"
    if placement.rules.refuses(spec, cut, per_node):
        return f"servers of {per_node} do not take equal parts of"
    return ""


def _reasons(
    placement: Placement, lacking: Cut | None, refused: dict[str, list[int]]
) -> tuple[str, ...]:
    """The reasons as text, with ranges of numbers: `40 heads do not divide by 14-19, 21`."""
    found = [f"{why} {', '.join(_ranges(counts))}" for why, counts in refused.items()]
    if lacking is None:
        return tuple(found)
    try:
        missing = max(placement.memory(lacking).missing(placement.load.context))
    except InvalidValueError as error:
        return (str(error), *found)
    return (f"{lacking} lacks {human(missing)} on a device", *found)


def _ranges(counts: Sequence[int]) -> Iterator[str]:
    first = last = counts[0]
    for count in counts[1:]:
        if count != last + 1:
            yield _range(first, last)
            first = count
        last = count
    yield _range(first, last)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
