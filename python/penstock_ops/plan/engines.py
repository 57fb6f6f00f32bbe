"""Rules of each engine: the memory that it needs besides weights and KV, and the partitions
("cuts") that it accepts.
"""

from __future__ import annotations

import math
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
FREE = 6 * GIB
"""Bytes that a proposed fraction of SGLang leaves free on a large GPU after its start. SGLang's
"Hyperparameter tuning" recommends 5 to 8 GB, which hold the activations of prompts.
"""
SGLANG_GRAPH, VLLM_GRAPH = MIB, 0.45 * MIB
"""Bytes of the CUDA graph of one layer for one batch size: 1.34 GiB of 61 layers and 23 sizes in
the log of ACROSS's guide, 1.40 GiB of 48 layers and 67 sizes by vLLM 0.9.2 (sgl-project/sglang,
issue 8538).
"""
SGLANG_SIZES, VLLM_SIZES = 256, 512
"""Largest batch size for which an engine captures a graph."""
VLLM_FRACTION = 0.92
SEQUENCES = 1024
"""Default maximum number of sequences that a replica computes together."""
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
    """Share of the device memory that the engine may use, as in its flag; None for the one that the
    plan proposes.
    """

    @property
    def at_once(self) -> int:
        """Maximum number of sequences that are computed together."""
        return self.sequences or SEQUENCES


Rule = Callable[[DecoderSpec, Accelerator, Cut, Load], list[Line]]
Fraction = Callable[[DecoderSpec, Accelerator, Cut, Load], float | None]


def _no_fraction(_spec: DecoderSpec, _device: Accelerator, _cut: Cut, _load: Load) -> float | None:
    return None


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
    rule: Rule
    """The engine's memory on a device, besides weights and KV."""
    paced: bool = False
    """Whether the engine limits the prompt tokens of a step, which bounds the delay of decodes."""
    fraction: Fraction = _no_fraction
    """The value of the engine's flag for its share of the device memory: the requested value, else
    a proposed one. None if the engine has no such flag.
    """

    def refuses(self, spec: DecoderSpec, cut: Cut, per_node: int) -> str:
        """Explains why the engine does not accept a cut; empty if it does."""
        if heads := self.indivisible(spec, cut):
            return f"{heads} do not divide by {cut.tp}"
        hosts = -(-cut.size // per_node)
        if not self._covers(cut, hosts):
            return (
                f"{cut.pp} stages of {cut.tp} ranks do not divide over {hosts} hosts of {per_node} "
                "devices"
            )
        return ""

    def indivisible(self, spec: DecoderSpec, cut: Cut) -> str:
        """The heads that do not divide over the ranks of a stage, such as `8 KV heads`; empty if
        all do. More ranks than KV heads may have copies of them, the same number of each.
        """
        if not self.divides or cut.by_requests:
            return ""
        heads = max(getattr(layer.mixer, "heads", 0) for layer in spec.layers)
        if heads % cut.tp:
            return f"{heads} heads"
        shared = {getattr(layer.mixer, "kv_heads", 0) for layer in spec.layers} - {0}
        uneven = (kv for kv in sorted(shared) if kv % cut.tp and cut.tp % kv)
        return next((f"{kv} KV heads" for kv in uneven), "")

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
    """Memory lines of vLLM. Its memory fraction covers CUDA graphs too (from version 0.21 on)."""
    fraction = _vllm_fraction(spec, device, cut, load)
    graphs = _graphs(spec, cut, min(2 * load.at_once, VLLM_SIZES), VLLM_GRAPH)
    return [
        _activations(spec, cut, load),
        _communicators(device, cut),
        graphs,
        Line(
            "rest",
            max(round(REST) - graphs.bytes, 0),
            "3.5 GiB: modules, workspaces and graphs, without the line above",
        ),
        Line(
            "free after start",
            round(device.memory * (1 - fraction)),
            f"{device.memory / GIB:.2f} GiB x (1 - {fraction:g}), --gpu-memory-utilization",
            "free",
        ),
    ]


def _vllm_fraction(_spec: DecoderSpec, _device: Accelerator, _cut: Cut, load: Load) -> float:
    """The fraction as requested, else vLLM's default: activations and graphs are within it."""
    return load.fraction or VLLM_FRACTION


def _sglang(spec: DecoderSpec, device: Accelerator, cut: Cut, load: Load) -> list[Line]:
    """Memory lines of SGLang. Its pool is a share of the memory that is free before loading, minus
    the weights. CUDA graphs, the table of requests and activations use the rest. If the rest is too
    small for a start, these lines give the pool less than SGLang would.
    """
    groups = _communicators(device, cut)
    before = device.usable - groups.bytes
    fraction = _sglang_fraction(spec, device, cut, load)
    kept = round(before * (1 - fraction))
    graphs, table = _sglang_graphs(spec, cut, load), _requests(spec, load)
    how = f"{before / GIB:.2f} GiB x (1 - {fraction:g}), --mem-fraction-static"
    return [
        Line("driver", device.memory - device.usable, f"1% of {device.memory / GIB:.2f} GiB"),
        groups,
        graphs,
        table,
        Line(
            "free after start",
            max(kept - graphs.bytes - table.bytes, 0),
            f"{how} - graphs - requests; activations live in it",
            "free",
        ),
    ]


def _sglang_fraction(spec: DecoderSpec, device: Accelerator, cut: Cut, load: Load) -> float:
    """The fraction as requested, else (in hundredths) the one that leaves FREE after the start. On
    small GPUs, and with data-parallel attention, the one that leaves SGLang's own reserve.
    """
    if load.fraction is not None:
        return load.fraction
    kept = sglang_reserve(cut, load)
    if device.memory > LARGE_GPU and not cut.by_requests:
        kept = _sglang_graphs(spec, cut, load).bytes + _requests(spec, load).bytes
        kept += max(round(FREE), _activations(spec, cut, load).bytes)
    before = device.usable - _communicators(device, cut).bytes
    return max(math.floor(100 * (1 - kept / before)), 1) / 100


def sglang_reserve(cut: Cut, load: Load) -> int:
    """Bytes that SGLang by default leaves free on a device, besides weights and KV."""
    graphs = min(load.at_once, SGLANG_SIZES)
    mib = 512 + 1.5 * max(load.chunk, 2048) + 2 * graphs + 1024 * cut.size / 8
    mib += 3 * graphs * cut.shares if cut.by_requests else 0
    return round(mib * MIB)


def _sglang_graphs(spec: DecoderSpec, cut: Cut, load: Load) -> Line:
    return _graphs(spec, cut, min(load.at_once, SGLANG_SIZES), SGLANG_GRAPH)


def _graphs(spec: DecoderSpec, cut: Cut, largest: int, each: float) -> Line:
    """CUDA graphs of decode steps of 1, 2, 4, 8, 16, ... sequences up to `largest`: from 8 on in
    steps of 8, above 256 in steps of 16. A layer of a graph has `each` bytes.
    """
    layers = -(-len(spec.layers) // cut.pp)
    sizes = sum(size <= largest for size in (1, 2, 4)) + min(largest, 256) // 8
    sizes += max(largest - 256, 0) // 16
    how = f"{layers} layers x {sizes} batch sizes x {each / MIB:g} MiB"
    return Line("graphs", round(layers * sizes * each), how)


def _requests(spec: DecoderSpec, load: Load) -> Line:
    """SGLang's table of the KV slots of each token of each request, in 4 bytes."""
    context = load.context or spec.max_position
    how = f"{load.at_once:,} requests x {context:,} tokens x 4 B"
    return Line("requests", 4 * load.at_once * context, how)


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
        Engine("vllm", divides=True, by_requests=True, rule=_vllm, fraction=_vllm_fraction),
        Engine("sglang", divides=True, by_requests=True, rule=_sglang, fraction=_sglang_fraction),
    )
}


def engine(name: str) -> Engine:
    if name not in ENGINES:
        raise InvalidValueError("--engine", name, f"one of {', '.join(ENGINES)}")
    return ENGINES[name]
