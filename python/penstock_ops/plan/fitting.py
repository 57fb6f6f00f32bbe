"""Whether a model fits in the memory of given devices, and which changes would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.core import InvalidValueError, PenstockError
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Engine, Load
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.memory import Memory, plan_memory
from penstock_ops.plan.subject import Subject
from penstock_ops.plan.weights import as_packed, uniform

MOST_NODES = 8
"""Maximum number of nodes suggested."""
SMALL_CHUNK = 2048
NEEDS_CHECKPOINT = "needs a checkpoint in {} or quantisation at load, answers change a little"
KV_CAVEAT = "keys and values of 8 bits change answers a little: compare them on your own prompts"


@dataclass(frozen=True, slots=True)
class Placement:
    """What must fit: a model on a target, by the rules of an engine. A replica needs room for one
    sequence of `load.context` tokens, or for one block of KV if `context` is 0.
    """

    subject: Subject
    target: Target
    rules: Engine
    load: Load
    kv: str
    cut: Cut | None = None
    """The requested partition over devices; None for the smallest that fits."""
    by_experts: bool = False
    by_requests: bool = False

    def memory(self, cut: Cut) -> Memory:
        """Memory of this partition. Raises InvalidValueError for more ranks than heads or
        layers.
        """
        subject, device = self.subject, self.target.accelerator
        return plan_memory(
            subject.spec, subject.weights, device, cut, self.rules, self.load, self.kv
        )

    def holds(self, memory: Memory) -> bool:
        return memory.fits and memory.concurrency(max(self.load.context, 1)) > 0


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change with which the model fits: flags of `penstock plan`, their effect, and what to check
    first.
    """

    flags: str
    cut: Cut
    devices: int
    caveat: str = ""
    replicas: int = 1


def fit(placement: Placement) -> Memory:
    """Memory of the requested partition, else of the smallest one that fits: powers of two and
    whole nodes first. If none fits: of the one on the most devices. Raises PenstockError if the
    engine accepts no partition.
    """
    spec, per_node = placement.subject.spec, placement.target.per_node
    if placement.cut is not None:
        if why := placement.rules.refuses(spec, placement.cut, per_node):
            raise PenstockError(f"{placement.cut}: {why}")
        return placement.memory(placement.cut)
    largest, refused = None, ""
    for cut in _smallest_first(placement):
        refused = placement.rules.refuses(spec, cut, per_node)
        if refused:
            continue
        try:
            memory = placement.memory(cut)
        except InvalidValueError as error:
            refused = str(error)
            continue
        if placement.holds(memory):
            return memory
        if largest is None or (cut.is_usual(per_node), cut.size) > (
            largest.cut.is_usual(per_node),
            largest.cut.size,
        ):
            largest = memory
    if largest is None:
        raise PenstockError(f"{placement.rules.name} runs no cut of this model: {refused}")
    return largest


def _smallest_first(placement: Placement) -> list[Cut]:
    """Partitions in the order to try: powers of two and whole nodes, then the others; of these
    within one node, then stages of whole nodes, then stages of several nodes.
    """
    node, count = placement.target.per_node, placement.target.count
    found = [
        Cut(tp, pp, placement.by_experts, placement.by_requests)
        for tp in range(1, count + 1)
        for pp in range(1, count // tp + 1)
        if tp % node == 0 or (tp < node and pp == 1)
    ]
    return sorted(found, key=lambda cut: (not cut.is_usual(node), cut.size, cut.tp > node, cut.pp))


def remedies(placement: Placement) -> list[Remedy]:
    """Changes that make a model fit, each sufficient alone."""
    return [
        Remedy(flags, memory.cut, memory.cut.size, caveat)
        for changes in (_weights, _kv, _context, _chunk, _cut, _devices)
        for flags, memory, caveat in _first_that_holds(changes(placement))
    ]


Change = tuple[str, Placement, str]


def _first_that_holds(changes: Iterator[Change]) -> list[tuple[str, Memory, str]]:
    for flags, changed, caveat in changes:
        memory = _tried(changed)
        if memory is not None:
            return [(flags.format(memory=memory), memory, caveat)]
    return []


def _tried(placement: Placement) -> Memory | None:
    try:
        memory = fit(placement)
    except PenstockError:
        return None
    return memory if placement.holds(memory) else None


def _weights(placement: Placement) -> Iterator[Change]:
    subject, device = placement.subject, placement.target.accelerator
    size = subject.weights.model_bytes(subject.spec)
    for kind in ("fp8", "int4"):
        if kind == "fp8" and kind not in device.flops:
            continue
        weights = as_packed(uniform(kind)) if device.is_cpu else uniform(kind)
        if weights.model_bytes(subject.spec) < size:
            changed = replace(placement, subject=replace(subject, weights=weights))
            yield f"--weights {kind}", changed, NEEDS_CHECKPOINT.format(kind)


def _kv(placement: Placement) -> Iterator[Change]:
    if placement.kv == "bf16" and "fp8" in placement.target.accelerator.flops:
        yield "--kv-cache-dtype fp8", replace(placement, kv="fp8"), KV_CAVEAT


def _context(placement: Placement) -> Iterator[Change]:
    """A shorter maximum sequence length, as long as the memory allows."""
    asked, load = placement.load.context, replace(placement.load, context=0)
    if not asked:
        return
    memory = _tried(replace(placement, load=load))
    longest = memory.longest(asked) if memory else 0
    if longest:
        yield (
            f"--max-model-len {longest}",
            replace(placement, load=replace(load, context=longest)),
            "",
        )


def _chunk(placement: Placement) -> Iterator[Change]:
    if placement.load.chunk > SMALL_CHUNK:
        load = replace(placement.load, chunk=SMALL_CHUNK)
        caveat = "long prompts take more steps"
        yield f"--max-num-batched-tokens {SMALL_CHUNK}", replace(placement, load=load), caveat


def _cut(placement: Placement) -> Iterator[Change]:
    """Another partition than the requested one."""
    if placement.cut is not None:
        found = replace(placement, cut=None)
        yield "-tp {memory.cut.tp} -pp {memory.cut.pp}", found, ""


def _devices(placement: Placement) -> Iterator[Change]:
    target = placement.target
    if placement.cut is None and not target.accelerator.is_cpu:
        for count in counts(target):
            yield on(target, count), replace(placement, target=replace(target, count=count)), ""


def counts(target: Target) -> Iterator[int]:
    """Numbers of devices above the target's: powers of two in a node, then whole nodes."""
    node = target.per_node
    powers = (1 << at for at in range(node.bit_length()) if 1 << at < node)
    nodes = (node * count for count in range(1, MOST_NODES + 1))
    yield from (count for count in (*powers, *nodes) if count > target.count)


def on(target: Target, count: int) -> str:
    """The flag that names `count` devices of the target's kind."""
    number = count // target.node.count if target.node else count
    return f"--on {target.word or target.name}:{number}"
