"""Rules of each engine: the memory that it needs besides weights and KV, and the partitions
("cuts") that it accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.config import ON_GPUS, ranks_of_nodes
from penstock.core import InvalidValueError
from penstock.model.spec import DecoderSpec
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.hardware import GIB, Accelerator
from penstock_ops.plan.lines import Line

MIB = 2**20
ACTIVATIONS = {1: 10, 2: 6, 4: 5}
"""Number of copies of a chunk's hidden states that are alive at once during a pass, by
tensor-parallel size; COPIES for other sizes.
"""
COPIES = 5
COMMUNICATORS = {1: 0, 2: 342 * MIB}
COMMUNICATOR = 392 * MIB
"""Bytes of NCCL's buffers on a device, for 4 ranks and more."""
ACROSS = 1.75 * GIB
"""Bytes for communication on a device if ranks are on several nodes; from logs of the guide "Deploy
Distributed LLM Inference with GPUDirect RDMA".
"""
REST = 3.5 * GIB
"""Bytes of other memory that engines based on torch need on a device: CUDA modules, workspaces,
graphs.
"""
LARGE_GPU = 60_000 * MIB
LEAST_ON_LARGE = 10 * GIB
PROCESS = 100 * MIB
"""Resident bytes of API server and engine without weights and KV: 96 MiB were measured with a
vocabulary of 49,152.
"""
KEPT_FREE = 0.10
"""Share of this machine's free memory that a plan for its CPUs leaves free."""


@dataclass(frozen=True, slots=True)
class Load:
    """Settings of an engine that affect its memory."""

    chunk: int = ON_GPUS.tokens
    """Maximum number of tokens in a step."""
    sequences: int = ON_GPUS.sequences
    context: int = 0
    """Maximum length of a sequence in tokens."""
    fraction: float | None = None
    """Share of the device memory that the engine may use, as in its flag; None for the engine's
    default.
    """


@dataclass(frozen=True, slots=True)
class Engine:
    """Rules of one engine, for planning a deployment."""

    name: str
    divides: bool
    """Whether the number of ranks must divide the query heads, and whole hosts must fit whole
    stages or the reverse.
    """
    by_requests: bool
    """Whether the engine supports data-parallel attention, where each rank has all attention
    weights and its own sequences.
    """
    rule: Callable[[DecoderSpec, Accelerator, Cut, Load], list[Line]]
    paced: bool = False
    """Whether the engine limits the prompt tokens of a step, so that they do not delay decodes too
    much.
    """

    def refuses(self, spec: DecoderSpec, cut: Cut, per_node: int) -> str:
        """Explains why the engine does not accept a cut; empty if it does."""
        heads = max(getattr(layer.mixer, "heads", 0) for layer in spec.layers)
        if self.divides and not cut.by_requests and heads % cut.tp:
            return f"{heads} heads do not divide by {cut.tp}"
        shared = {getattr(layer.mixer, "kv_heads", 0) for layer in spec.layers} - {0}
        for kv in sorted(shared) if self.divides and not cut.by_requests else ():
            if kv % cut.tp and cut.tp % kv:
                return f"{kv} KV heads do not divide by {cut.tp}, nor {cut.tp} ranks by {kv}"
        hosts = -(-cut.size // per_node)
        if not self._covers(cut, hosts):
            return (
                f"{cut.pp} stages of {cut.tp} ranks do not divide over {hosts} hosts of {per_node} "
                "devices"
            )
        return ""

    def _covers(self, cut: Cut, hosts: int) -> bool:
        """Whether the cut divides evenly over `hosts` hosts: each host has whole stages, or each
        stage has whole hosts.
        """
        if not self.divides:
            return len(set(map(len, ranks_of_nodes(cut.tp, cut.pp, hosts)))) == 1
        if cut.pp % hosts == 0:
            return True
        return hosts % cut.pp == 0 and cut.tp % (hosts // cut.pp) == 0


def _vllm(spec: DecoderSpec, device: Accelerator, cut: Cut, load: Load) -> list[Line]:
    fraction = load.fraction or 0.92
    outside = round(device.memory * (1 - fraction))
    return [
        Line(
            "kept free",
            outside,
            f"{device.memory / GIB:.2f} GiB x (1 - {fraction:g}), --gpu-memory-utilization",
            "free",
        ),
        _activations(spec, cut, load),
        _communicators(device, cut),
        Line("rest", round(REST), "3.5 GiB: modules, workspaces, graphs"),
    ]


def _sglang(spec: DecoderSpec, device: Accelerator, cut: Cut, load: Load) -> list[Line]:
    """Memory lines of SGLang. Its pool is a share of the memory that is free before loading, minus
    the weights.
    """
    driver = device.memory - device.usable
    groups = _communicators(device, cut)
    before = device.usable - groups.bytes
    if load.fraction is None:
        kept = sglang_reserve(device, cut, load)
        how = "512 + 1.5 x chunk + 2 x graphs + 128 x ranks MiB, at least 10 GiB above 60 GB"
    else:
        kept = round(before * (1 - load.fraction))
        how = f"{before / GIB:.2f} GiB x (1 - {load.fraction:g}), --mem-fraction-static"
    return [
        Line("driver", driver, f"1% of {device.memory / GIB:.2f} GiB"),
        groups,
        Line("kept free", kept, f"{how}; activations, graphs and request tables live in it"),
    ]


def sglang_reserve(device: Accelerator, cut: Cut, load: Load) -> int:
    """Bytes that SGLang by default leaves free on a device, besides weights and KV."""
    graphs = min(load.sequences, 256)
    mib = 512 + 1.5 * max(load.chunk, 2048) + 2 * graphs + 1024 * cut.size / 8
    mib += 3 * graphs * cut.shares if cut.by_requests else 0
    least = LEAST_ON_LARGE if device.memory > LARGE_GPU else 0
    return max(round(mib * MIB), least)


def _penstock(spec: DecoderSpec, device: Accelerator, cut: Cut, load: Load) -> list[Line]:
    if not device.is_cpu:
        return [
            Line("driver", device.memory - device.usable, "1% of the memory"),
            _activations(spec, cut, load),
            _communicators(device, cut),
            Line("rest", round(REST), "3.5 GiB, as other torch engines"),
        ]
    part = -(-spec.vocab // cut.tp)
    numbers = max(load.chunk * spec.hidden, 32 * part)
    shared = 2 * cut.tp * 4 * numbers if cut.size > 1 else 0
    activations = 4 * load.chunk * (6 * spec.hidden + 2 * max(spec.widths) // cut.tp)
    return [
        Line(
            "kept free",
            round(device.memory * KEPT_FREE) // cut.size,
            f"10% of what is free now / {cut.size} ranks",
            "free",
        ),
        Line("process", PROCESS, "interpreter, extension, API server"),
        Line(
            "activations",
            activations,
            f"4 B x {load.chunk} tokens x (6 h + 2 inner)",
            "activations",
        ),
        Line(
            "shared memory",
            shared // max(cut.size, 1),
            f"2 x {cut.tp} ranks x 4 B x max({load.chunk} x h, 32 x vocabulary part) / ranks",
        ),
    ]


def _activations(spec: DecoderSpec, cut: Cut, load: Load) -> Line:
    width = max(
        (getattr(layer.mixer, "heads", 0) * _head(layer.mixer) for layer in spec.layers),
        default=spec.hidden,
    )
    copies = ACTIVATIONS.get(cut.tp, COPIES)
    size = 2 * load.chunk * max(width, spec.hidden) * copies
    return Line(
        "activations",
        size,
        f"2 B x {load.chunk} tokens x {max(width, spec.hidden)} x {copies} copies",
        "activations",
    )


def _head(mixer: object) -> int:
    return int(getattr(mixer, "head_dim", 0) or getattr(mixer, "value_dim", 0) or 0)


def _communicators(device: Accelerator, cut: Cut) -> Line:
    if cut.size > device.per_node:
        return Line("communicators", round(ACROSS), f"process groups of {cut.size} ranks on nodes")
    size = COMMUNICATORS.get(cut.size, COMMUNICATOR)
    return Line("communicators", size, f"NCCL's buffers of {cut.size} ranks")


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("penstock", divides=False, by_requests=False, rule=_penstock, paced=True),
        Engine("vllm", divides=True, by_requests=True, rule=_vllm),
        Engine("sglang", divides=True, by_requests=True, rule=_sglang),
    )
}


def engine(name: str) -> Engine:
    if name not in ENGINES:
        raise InvalidValueError("--engine", name, f"one of {', '.join(ENGINES)}")
    return ENGINES[name]
