"""`penstock plan`: flags and output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from penstock.config import ON_CPUS, ON_GPUS
from penstock.config.terminal import draws_blocks
from penstock.core import InvalidValueError
from penstock.model.sizing import active_parameters, parameters
from penstock_ops.plan.bars import ASCII, BLOCKS, bars
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import ENGINES, Engine, Load, engine
from penstock_ops.plan.fewest import fit_table
from penstock_ops.plan.fitting import Placement, fit, remedies
from penstock_ops.plan.hardware import HERE, Target, parse_targets
from penstock_ops.plan.here import here
from penstock_ops.plan.lines import human
from penstock_ops.plan.lists import ListAction, hardware_lines, model_lines
from penstock_ops.plan.memory import Memory
from penstock_ops.plan.planning import add_goal, run_goal, speed_of, time_limit
from penstock_ops.plan.subject import Subject, read_subject
from penstock_ops.plan.sweep import add_sweep, run_sweep
from penstock_ops.plan.tables import concurrency_table, memory_table
from penstock_ops.plan.verdict import fits, misfit, suggestions
from penstock_ops.plan.weights import BYTES, KV_BYTES, as_packed, uniform

GROUP = "Size"
MOST_REPLICAS = 10_000
SUMMARY = "estimate memory, devices and latency of a model on given hardware"
DESCRIPTION = (
    "Size a model before it is served, from config.json, a Hugging Face directory, a GGUF file "
    "or a name of the catalogue alone: what fits on some hardware, where the memory goes, and with "
    "--rate the fewest devices whose latencies hold."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=run)
    parser.description = DESCRIPTION
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="a path, an alias (smollm2), or a name of --list-models, such as DeepSeek-R1; several "
        "with --table fit",
    )
    parser.add_argument(
        "--list-models",
        action=ListAction,
        lines=model_lines,
        help="print the models that are known by name, with their sizes, and end",
    )
    parser.add_argument(
        "--list-hardware",
        action=ListAction,
        lines=hardware_lines,
        help="print the accelerators and nodes that --on names, and end",
    )
    parser.add_argument(
        "--on",
        default=HERE,
        metavar="TYPE[:N][@PRICE],...",
        help=f"hardware; default: {HERE}; a name of --list-hardware, the beginning of one (h100:8) "
        "or a file FILE.yaml. Of several with a price of an hour of a device, or of a node, --rate "
        "takes the one that holds for the least",
    )
    parser.add_argument(
        "--table",
        choices=("fit", "memory", "concurrency"),
        help="print this table (default: memory; with a goal, the plan)",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print each number with its arithmetic, with --rate that of a step, too",
    )
    parser.add_argument(
        "--engine",
        choices=tuple(ENGINES),
        help="whose rules count; default: penstock here, vllm elsewhere",
    )
    parser.add_argument(
        "--weights", choices=tuple(BYTES), help="type of the weights; default: as stored"
    )
    parser.add_argument(
        "--kv-cache-dtype",
        choices=tuple(KV_BYTES),
        help="type of keys and values; default: bf16; with vllm what the checkpoint asks for, as "
        "it takes it, too",
    )
    parser.add_argument(
        "-tp",
        "--tensor-parallel-size",
        type=int,
        metavar="N",
        help="ranks that share the work of each layer",
    )
    parser.add_argument(
        "-pp", "--pipeline-parallel-size", type=int, metavar="N", help="stages of layers"
    )
    parser.add_argument("--expert-parallel", action="store_true", help="whole experts on a rank")
    parser.add_argument(
        "--attention-by-requests",
        action="store_true",
        help="attention whole on every rank, for its own sequences (data parallel)",
    )
    parser.add_argument(
        "--max-model-len",
        type=int,
        metavar="TOKENS",
        help="longest sequence that is served; default: the model's own length, or with a goal the "
        "most that the chosen memory holds up to it",
    )
    parser.add_argument(
        "--max-num-batched-tokens", type=int, metavar="TOKENS", help="tokens computed in one step"
    )
    parser.add_argument("--max-num-seqs", type=int, metavar="N", help="sequences computed together")
    parser.add_argument(
        "--memory-fraction",
        type=float,
        metavar="F",
        help="as vLLM's --gpu-memory-utilization or SGLang's --mem-fraction-static, 0.01 to 1; "
        "default: proposed from what the engine needs after its start",
    )
    parser.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        help="copies of the deployment, which share the load; default: with --rate or --trace the "
        "fewest that meet the goal, with --concurrency 1",
    )
    add_goal(parser)
    add_sweep(parser)


def run(parsed: argparse.Namespace) -> int:
    """Print the verdict and the memory or, with a goal, the plan; returns 1 if nothing fits or
    meets the goal. Raises PenstockError for a model whose size cannot be computed.
    """
    _check(parsed)
    targets = [Target(here(), 1)] if parsed.on == HERE else parse_targets(parsed.on)
    rules = engine(parsed.engine or ("penstock" if targets[0].accelerator.is_cpu else "vllm"))
    subjects = [_subject(name, parsed, targets[0]) for name in parsed.models]
    about = dict.fromkeys(
        line for subject in subjects for line in introduction(subject, targets, rules)
    )
    if parsed.table == "fit":
        status, lines = 0, _fit(parsed, subjects, targets, rules)
    else:
        status, lines = _answer(parsed, subjects[0], targets, rules, about)
    print("\n".join([*lines, "", *about]))
    return status


def _check(parsed: argparse.Namespace) -> None:
    """Raise InvalidValueError for flags that are out of range, or that exclude each other."""
    has_goal = parsed.rate is not None or bool(parsed.trace)
    if len(parsed.models) > 1 and parsed.table != "fit":
        raise InvalidValueError("MODEL", " ".join(parsed.models), "one model; several: --table fit")
    if parsed.concurrency and has_goal:
        raise InvalidValueError("--concurrency", parsed.concurrency, "no --rate and no --trace")
    if parsed.replicas is not None and not 1 <= parsed.replicas <= MOST_REPLICAS:
        raise InvalidValueError("--replicas", parsed.replicas, f"1 to {MOST_REPLICAS}")
    if parsed.slo and not has_goal:
        raise InvalidValueError("--slo", parsed.slo, "the load that it is for: --rate or --trace")
    if parsed.replicas and not (has_goal or parsed.concurrency):
        expected = "a load for them: --rate, --trace or --concurrency"
        raise InvalidValueError("--replicas", parsed.replicas, expected)
    fraction = parsed.memory_fraction
    if fraction is not None and not 0.01 <= fraction <= 1:
        raise InvalidValueError("--memory-fraction", fraction, "0.01 to 1")
    for flag in ("measured", "plot"):
        if getattr(parsed, flag) and not parsed.concurrency:
            raise InvalidValueError(f"--{flag}", getattr(parsed, flag), "--concurrency beside it")


def _subject(name: str, parsed: argparse.Namespace, target: Target) -> Subject:
    subject = read_subject(name, parsed.weights)
    length, own = parsed.max_model_len, subject.spec.max_position
    if length is not None and not 1 <= length <= own:
        of = f" of {subject.name}" if len(parsed.models) > 1 else ""
        expected = f"1 to {own}, the model's own length{of}"
        raise InvalidValueError("--max-model-len", length, expected)
    if target.accelerator.is_cpu:
        return replace(subject, weights=as_packed(subject.weights))
    return subject


def _answer(
    parsed: argparse.Namespace,
    subject: Subject,
    targets: Sequence[Target],
    rules: Engine,
    about: dict[str, None],
) -> tuple[int, list[str]]:
    """The exit status, and the lines of the requested output. Adds lines about the model and target
    to `about`.
    """
    if parsed.kv_cache_dtype is None:
        parsed.kv_cache_dtype = "bf16"
        if subject.kv and rules.name == "vllm":
            parsed.kv_cache_dtype = subject.kv
            about[f"note: KV of type {subject.kv}, as the checkpoint asks for"] = None
    if (parsed.rate is not None or parsed.trace) and not parsed.table:
        return _plan(parsed, subject, targets, rules)
    target = _only(parsed, targets)
    placement = _placement(parsed, subject, target, rules, parsed.kv_cache_dtype)
    if parsed.concurrency and not parsed.table:
        speed = speed_of(subject, target, time_limit(parsed), parsed.calibrate)
        return run_sweep(parsed, placement, speed)
    memory = fit(placement)
    if not placement.holds(memory):
        tried = suggestions("Try:", remedies(placement))
        return 1, [misfit(memory, placement), *tried, *_table(parsed, placement, memory)]
    return 0, [fits(memory, placement), *_table(parsed, placement, memory)]


def _only(parsed: argparse.Namespace, targets: Sequence[Target]) -> Target:
    if len(targets) > 1:
        raise InvalidValueError("--on", parsed.on, "one target, or a goal (--rate, --trace)")
    return targets[0]


def introduction(subject: Subject, targets: Sequence[Target], rules: Engine) -> list[str]:
    """Lines about the model, whether a backend of Penstock can run it, and the target hardware."""
    spec, device = subject.spec, targets[0].accelerator
    size = subject.weights.model_bytes(spec)
    first = (
        f"{subject.name}: {parameters(spec) / 1e9:.2f} billion weights "
        f"({active_parameters(spec) / 1e9:.2f} active), {subject.weights.name}, {human(size)}"
    )
    if subject.file_bytes:
        first += f" (file: {human(subject.file_bytes)})"
    lines = [first, *(_hardware(target, rules) for target in targets)]
    lines += [f"note: {note}" for note in subject.notes]
    if subject.refused:
        head = "sized only: " if rules.name == "penstock" else "note: of Penstock itself "
        lines.append(head + subject.refused)
    if rules.name == "penstock" and not device.is_cpu:
        lines.append("sized only: no plan of Penstock on a GPU has been compared with one yet")
    return [*lines, *(note for target in targets for note in _hardware_notes(target))]


def _hardware(target: Target, rules: Engine) -> str:
    device, node = target.accelerator, target.node
    where = f"{target.count // node.count} x {node.title}, " if node else ""
    each = f"{human(device.memory)} each" if target.count > 1 else human(device.memory)
    return f"{where}{target.count} x {device.title}, {each}, by the rules of {rules.name}"


def _hardware_notes(target: Target) -> list[str]:
    device = target.accelerator
    notes = [] if device.verified else [f"unverified: {device.source}"]
    if target.word not in ("", target.name):
        notes.append(f"note: {target.word} is {target.name}")
    return notes


def _plan(
    parsed: argparse.Namespace, subject: Subject, targets: Sequence[Target], rules: Engine
) -> tuple[int, list[str]]:
    if targets[0].accelerator.is_cpu:
        load = load_of(parsed, targets[0])
        return run_goal(parsed, subject, targets, rules, load, [Cut(1, 1)], _marks())
    load = Load(
        chunk=parsed.max_num_batched_tokens or 0,
        sequences=parsed.max_num_seqs or 0,
        context=parsed.max_model_len or 0,
        fraction=parsed.memory_fraction,
    )
    cuts = [asked_cut(parsed)] if parsed.tensor_parallel_size else []
    return run_goal(parsed, subject, targets, rules, load, cuts, _marks())


def _marks() -> str:
    """The characters of bars that standard output can show."""
    return BLOCKS if draws_blocks(sys.stdout) else ASCII


def _fit(
    parsed: argparse.Namespace,
    subjects: Sequence[Subject],
    targets: Sequence[Target],
    rules: Engine,
) -> list[str]:
    """The table of the fewest devices: a row for each model, type of weights and type of KV."""
    target = _only(parsed, targets)
    if target.accelerator.is_cpu:
        raise InvalidValueError("--on", HERE, "devices of --list-hardware with --table fit")
    placements = []
    for subject in subjects:
        types = [subject.weights]
        if not parsed.weights and subject.weights.name != "fp8":
            types.append(uniform("fp8"))
        for weights in types:
            for kv in [parsed.kv_cache_dtype] if parsed.kv_cache_dtype else ["bf16", "fp8"]:
                made = _placement(parsed, replace(subject, weights=weights), target, rules, kv)
                tokens = parsed.max_model_len or subject.spec.max_position
                placements.append(replace(made, load=replace(made.load, context=tokens), cut=None))
    return fit_table(placements)


def _table(parsed: argparse.Namespace, placement: Placement, memory: Memory) -> list[str]:
    if parsed.table == "concurrency":
        return ["", *_concurrency(placement, memory)]
    return ["", *bars(memory, _marks()), "", *memory_table(memory, parsed.explain)]


def _concurrency(placement: Placement, memory: Memory) -> list[str]:
    """Sequences by context for two types of KV, on the same partition of the model."""
    device = placement.target.accelerator
    kinds = ("bf16", "f32") if device.is_cpu else ("bf16", "fp8")
    memories = [(kind, replace(placement, kv=kind).memory(memory.cut)) for kind in kinds]
    most = placement.load.context or placement.subject.spec.max_position
    found = ", ".join(f"{each.kv_tokens:,} tokens of {kind}" for kind, each in memories)
    return [f"{memory.cut}: {found}", *concurrency_table(memories, most)]


def _placement(
    parsed: argparse.Namespace, subject: Subject, target: Target, rules: Engine, kv: str
) -> Placement:
    return Placement(
        subject,
        target,
        rules,
        load_of(parsed, target),
        kv,
        asked_cut(parsed) if parsed.tensor_parallel_size else None,
        parsed.expert_parallel,
        parsed.attention_by_requests,
    )


def load_of(parsed: argparse.Namespace, target: Target) -> Load:
    """The engine settings from flags. Defaults are Penstock's, which on GPUs other engines have,
    too.
    """
    usual = ON_CPUS if target.accelerator.is_cpu else ON_GPUS
    return Load(
        chunk=parsed.max_num_batched_tokens or usual.tokens,
        sequences=parsed.max_num_seqs or usual.sequences,
        context=parsed.max_model_len or 0,
        fraction=parsed.memory_fraction,
    )


def asked_cut(parsed: argparse.Namespace) -> Cut:
    return Cut(
        parsed.tensor_parallel_size or 1,
        parsed.pipeline_parallel_size or 1,
        parsed.expert_parallel,
        parsed.attention_by_requests,
    )
