"""`penstock bench COMMAND`: modules with `add_arguments` and `run`, imported on use."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "serve": (
        "penstock_lab.bench.serve",
        "load on an OpenAI-compatible server, with the flags of `vllm bench serve`",
    ),
    "trace": ("penstock_lab.bench.trace", "replay a recorded trace: Azure, Mooncake, BurstGPT"),
    "sweep": (
        "penstock_lab.bench.sweep",
        "concurrencies or rates times lengths: a curve, and its knee",
    ),
    "rounds": (
        "penstock_lab.bench.rounds",
        "the same prompts again for some rounds: what the prefix cache gives",
    ),
    "plan": (
        "penstock_lab.bench.planned",
        "the load of a plan of `penstock plan`: predicted beside measured",
    ),
    "offline": ("penstock_lab.bench.offline", "throughput of a batch of prompts"),
    "latency": ("penstock_lab.bench.latency", "latency of one batch of fixed size"),
    "compare": (
        "penstock_lab.bench.compare.command",
        "several servers under the same loads, interleaved",
    ),
    "report": (
        "penstock_lab.bench.report.command",
        "result files as one HTML page, PNGs and Markdown",
    ),
}
"""Name to module and summary."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command and the rest of the line, which the command's own parser reads in `run`."""
    lines = [f"  {name:<9} {summary}" for name, (_, summary) in COMMANDS.items()]
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(
        ["commands:", *lines, "", "penstock bench COMMAND --help lists a command's flags."]
    )
    parser.add_argument("bench_command", metavar="COMMAND", choices=tuple(COMMANDS))
    parser.add_argument("rest", metavar="...", nargs=argparse.REMAINDER)


def run(
    parsed: argparse.Namespace,
    parser_class: type[argparse.ArgumentParser] = argparse.ArgumentParser,
) -> int:
    """Run one command; its exit status."""
    return run_command(parsed.bench_command, parsed.rest, parser_class)


def run_command(
    name: str,
    words: Sequence[str],
    parser_class: type[argparse.ArgumentParser] = argparse.ArgumentParser,
) -> int:
    module = import_module(COMMANDS[name][0])
    parser = parser_class(
        prog=f"penstock bench {name}", description=COMMANDS[name][1], allow_abbrev=False
    )
    module.add_arguments(parser)
    parsed = parser.parse_args(words)
    parsed.argv = [name, *words]
    status: int = module.run(parsed)
    return status
