"""`penstock model show MODEL`: describes a model and its memory needs without loading weights.

A directory with only `config.json` is sufficient. Of a GGUF file, only the part before the tensors'
data is read.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.core import KvSpec, PenstockError
from penstock.model.quantization import cpu_form
from penstock.model.sharding import Grid, plan_grid
from penstock.model.sizing import (
    active_parameters,
    kv_spec,
    matrices,
    parameters,
    state_bytes,
    whole,
)
from penstock.model.spec import (
    Attention,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    Mlp,
    ShortConvolution,
)
from penstock_ops.plan.contents import (
    Tensors,
    count,
    printable,
    read_contents,
    show_contents,
    size,
    tensor_lines,
)
from penstock_ops.plan.subject import Subject, read_subject

GROUP = "Look inside"
SUMMARY = "look at a model without loading it: show"
MOST_RANGES = 4
Kind = tuple[str, str]
"""Part of a matrix in the model, and its role."""
KV_BYTES = {"bfloat16": 2, "float32": 4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Look at a model without loading its weights."
    acts = parser.add_subparsers(required=True, metavar="ACT")
    show = acts.add_parser("show", help="layers, sizes, KV, what each rank would hold")
    show.description = (
        "Show a model's layers, parameters, bytes of weights and KV, and what each rank would "
        "hold. Nothing but config.json is needed, or the header of a GGUF file. Of a model that "
        "cannot be served, show what can be read and the reason; the exit status is 1."
    )
    show.add_argument("model", metavar="MODEL", help="as for serve, or a config.json")
    show.add_argument(
        "--tensor-parallel-size",
        "-tp",
        type=int,
        default=1,
        metavar="N",
        help="ranks that share the work of each layer (default: 1)",
    )
    show.add_argument(
        "--pipeline-parallel-size",
        "-pp",
        type=int,
        default=1,
        metavar="N",
        help="stages of layers (default: 1)",
    )
    show.add_argument(
        "--enable-expert-parallel", action="store_true", help="ranks have whole experts"
    )
    show.add_argument(
        "--kv-cache-dtype",
        choices=tuple(KV_BYTES),
        default="bfloat16",
        help="type of keys and values (default: %(default)s)",
    )
    show.add_argument("--json", action="store_true", help="print the report as JSON")
    show.set_defaults(command=_show)


def _show(parsed: argparse.Namespace) -> int:
    try:
        subject = read_subject(parsed.model)
    except PenstockError as error:
        show_contents(parsed.model, error, as_json=parsed.json)
        raise
    tp, pp = parsed.tensor_parallel_size, parsed.pipeline_parallel_size
    grid = plan_grid(subject.spec, tp, pp, by_experts=parsed.enable_expert_parallel)
    report = Report.of(subject, grid, KV_BYTES[parsed.kv_cache_dtype])
    if parsed.json:
        print(json.dumps(report.data(), indent=2))
    else:
        print("\n".join(report.lines()))
    return 1 if subject.refused else 0


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the model on one rank."""

    rank: int
    what: str
    weights: int
    """Bytes of all weights on the rank."""
    parts: dict[str, int]
    """Bytes of the weights by part of the model."""
    kv: KvSpec
    """KV layout with blocks of one token, so that block sizes are bytes for each token."""
    state: int
    """Bytes of the state of each sequence in layers with a state instead of KV."""


@dataclass(frozen=True, slots=True)
class Report:
    """The data that `penstock model show` prints."""

    subject: Subject
    whole: Share
    ranks: tuple[Share, ...]
    stored: Mapping[str, Tensors]
    """Tensors of the checkpoint by number type; empty for a model that is not refused."""

    @classmethod
    def of(cls, subject: Subject, grid: Grid, number_bytes: int) -> Report:
        alone = _share(subject, plan_grid(subject.spec, 1, 1), 0, number_bytes)
        ranks = (_share(subject, grid, rank, number_bytes) for rank in range(grid.size))
        stored = read_contents(subject.path).tensors if subject.refused and subject.path else {}
        return cls(subject, alone, tuple(ranks) if grid.size > 1 else (), stored)

    def data(self) -> dict[str, Any]:
        subject, spec = self.subject, self.subject.spec
        return {
            "name": subject.name,
            "family": spec.family,
            "supported": not subject.refused,
            "unsupported": subject.refused or None,
            "notes": list(subject.notes),
            "unread_keys": list(subject.unread),
            "tensors": {kind: asdict(held) for kind, held in self.stored.items()},
            "parameters": parameters(spec),
            "active_parameters": active_parameters(spec),
            "weights_type": subject.weights.name,
            "quantization": _quantization(subject),
            "file_bytes": subject.file_bytes,
            **_held(self.whole),
            "ranks": [
                {"rank": share.rank, "what": share.what, **_held(share)} for share in self.ranks
            ],
            "spec": json.loads(spec.to_json()),
        }

    def lines(self) -> Iterator[str]:
        subject, spec = self.subject, self.subject.spec
        known = subject.is_of_family
        family = spec.family if known else "cannot be served here"
        yield f"{subject.name}: {family}; {len(spec.layers)} layers, hidden {spec.hidden:,}"
        tied = ", which is the output head too" if spec.tied_embeddings else ""
        yield f"  {spec.vocab:,} tokens in the embedding{tied}; {spec.max_position:,} positions"
        for layer, where in _kinds(spec.layers):
            yield f"  {spans(where)}: {mixer(layer.mixer, known)};"
            yield f"    {feed_forward(layer.feed_forward, known)}"
        active = count(active_parameters(spec))
        yield f"parameters: {count(parameters(spec))}, {active} read for a token"
        stored = f"; {size(subject.file_bytes)} in the file" if subject.file_bytes else ""
        yield f"weights: {size(self.whole.weights)}, most of them {subject.weights.name}{stored}"
        held = (f"{part} {size(taken)}" for part, taken in self.whole.parts.items())
        yield f"  {', '.join(held)}"
        yield from _quantization_lines(subject)
        yield from _kv_lines(self.whole)
        for share in self.ranks:
            yield f"{share.what}: {size(share.weights)} of weights"
            yield from _kv_lines(share, indent="  ")
        yield from (f"note: {note}" for note in subject.notes)
        if subject.refused:
            yield from tensor_lines(self.stored)
            yield f"unsupported: {subject.refused}"
        elif subject.unread:
            yield f"not read from config.json: {', '.join(map(printable, subject.unread))}"


def _quantization_lines(subject: Subject) -> Iterator[str]:
    for entry in _quantization(subject):
        yield f"  {entry['name']}: {entry['format']}, {entry['description']}"
        yield f"    {', '.join(entry['modules'])}"
        if entry["cpu_form"]:
            yield f"    on a CPU: {entry['cpu_form']}, {entry['cpu_exactness']}"


def _quantization(subject: Subject) -> list[dict[str, Any]]:
    """The schemes of a quantised checkpoint, with the kinds of modules that have each. Without a
    backend that runs the model, they have no form on a CPU.
    """
    weights = subject.weights
    return [
        {
            "name": name,
            "format": weights.method,
            "description": scheme.describe(),
            "bits": scheme.bits,
            "group_size": scheme.shared[1] if scheme.shared[0] == 1 else None,
            "zero_points": scheme.zero_points,
            "modules": _modules(subject, name),
            "cpu_form": form and form.form,
            "cpu_exactness": form and form.exactness,
        }
        for name, scheme in weights.schemes.items()
        for form in (None if subject.refused else cpu_form(scheme),)
    ]


def _modules(subject: Subject, name: str) -> list[str]:
    """The matrices of a type by part of the model, with their layers if other layers have the same
    matrices with another type.
    """
    every, own = defaultdict[Kind, list[int]](list), defaultdict[Kind, list[int]](list)
    for matrix in whole(subject.spec):
        layers = [] if matrix.layer is None else [matrix.layer]
        every[matrix.part, matrix.role] += layers
        if subject.weights.kind(matrix) == name:
            own[matrix.part, matrix.role] += layers
    roles = defaultdict[tuple[str, str], list[str]](list)
    for (part, role), layers in own.items():
        where = "" if layers == every[part, role] else f" ({spans(layers)})"
        roles[part, where].append(role)
    return [f"{part} {' '.join(found)}{where}" for (part, where), found in roles.items()]


def _share(subject: Subject, grid: Grid, rank: int, number_bytes: int) -> Share:
    spec, parts = subject.spec, Counter[str]()
    for matrix in matrices(spec, grid, rank):
        parts[matrix.part] += subject.weights.bytes([matrix])
    held = {part: taken for part, taken in parts.items() if taken}
    kv = kv_spec(spec, grid, rank, block_size=1, number_bytes=number_bytes)
    what = grid.describe(rank, spec)
    return Share(rank, what, sum(held.values()), held, kv, state_bytes(spec, grid, rank))


def _held(share: Share) -> dict[str, Any]:
    return {
        "weights_bytes": share.weights,
        "weights_parts": share.parts,
        "kv_groups": [
            {
                "layers": list(group.layers),
                "bytes_per_token": group.block_bytes,
                "window": group.window,
                "chunked": group.chunked,
            }
            for group in share.kv.groups
        ],
        "state_bytes_per_sequence": share.state,
    }


def _kv_lines(share: Share, indent: str = "") -> Iterator[str]:
    for group in share.kv.groups:
        if not group.layers:
            continue
        each = f"{indent}KV of {spans(group.layers)}: {size(group.block_bytes)} a token"
        if group.window is None:
            yield each
            continue
        seen = f"chunks of {group.window:,}" if group.chunked else f"a window of {group.window:,}"
        yield f"{each}, in {seen}: at most {size(group.window * group.block_bytes)} a sequence"
    if share.state:
        yield f"{indent}state: {size(share.state)} a sequence of any length"


def _kinds(layers: Iterable[Layer]) -> list[tuple[Layer, list[int]]]:
    """The different kinds of layers, each with the indices of its layers."""
    found: dict[Layer, list[int]] = {}
    for i, layer in enumerate(layers):
        found.setdefault(layer, []).append(i)
    return list(found.items())


def spans(numbers: Iterable[int]) -> str:
    """Ascending layer numbers as text with ranges, such as `layers 0-3, 5, 7-8`. If there are more
    than MOST_RANGES ranges, the last ones are left out and the number of layers is added.
    """
    pairs = enumerate(numbers)
    runs = [list(run) for _, run in itertools.groupby(pairs, lambda pair: pair[1] - pair[0])]
    ends = [(run[0][1], run[-1][1]) for run in runs]
    words = [str(first) if first == last else f"{first}-{last}" for first, last in ends]
    if len(words) == 1 and "-" not in words[0]:
        return f"layer {words[0]}"
    if len(words) <= MOST_RANGES:
        return f"layers {', '.join(words)}"
    all_of_them = sum(last - first + 1 for first, last in ends)
    return f"layers {', '.join(words[: MOST_RANGES - 1])} and so on ({all_of_them})"


def mixer(form: Mixer, known: bool = True) -> str:
    """A layer's attention in words. If `known` is false, only sizes are reliable, so only they are
    shown.
    """
    if isinstance(form, LatentAttention):
        return (
            f"latent attention of {form.heads} heads, latents of {form.kv_rank} and "
            f"{form.rope_dim} rotated numbers"
        )
    if isinstance(form, ShortConvolution):
        return f"short convolution of {form.channels} channels over {form.kernel} tokens"
    if not isinstance(form, Attention):
        return f"linear attention of {form.value_heads} heads of {form.value_dim}"
    words = [f"attention of {form.heads} query and {form.kv_heads} KV heads of {form.head_dim}"]
    if form.window:
        words.append(f"window {form.window:,}")
    if form.chunk:
        words.append(f"chunks of {form.chunk:,}")
    if not known:
        return ", ".join(words)
    words.append(f"rope of theta {form.rope.theta:,.0f}" if form.rope else "no rope")
    if form.rope and form.rope.scaling:
        words.append(f"{form.rope.scaling.kind} scaling")
    told = {
        "biases": form.qkv_bias,
        "norms of queries and keys": form.qk_norm or form.qk_norm_after,
        "sinks": form.sinks,
        "capped scores": form.softcap,
        "growing queries": form.temperature,
    }
    return ", ".join([*words, *(word for word, has in told.items() if has)])


def feed_forward(form: FeedForward, known: bool = True) -> str:
    """A layer's feed-forward part in words; only its sizes if `known` is false."""
    if isinstance(form, Mlp):
        return f"a {form.kind} feed-forward of {form.intermediate:,}, {form.activation}"
    words = (
        f"{form.experts} experts of {form.expert.intermediate:,}, {form.experts_per_token} for a "
        "token"
    )
    if known:
        words += f", by {form.router.score}"
    if form.shared:
        words += f", and a shared one of {form.shared.intermediate:,}"
    return words
