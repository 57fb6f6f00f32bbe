"""`penstock bench COMMAND`. Each command is a module with `add_arguments` and `run`, imported when
the command is used.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from penstock.cli.parser import Parser

GROUP = "Measure"
SUMMARY = "measure a server, or several, under load"
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
    "tiers": (
        "penstock_lab.bench.tiers.command",
        "KV tiers by medium, prompt length and bandwidth: the same rounds on a server of each",
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
    "channels": (
        "penstock_lab.bench.channels.command",
        "messages between processes: rings, streams, Ray's calls and compiled graphs",
    ),
    "report": (
        "penstock_lab.bench.report.command",
        "result files as one HTML page, PNGs and Markdown",
    ),
}
"""Module and summary of each command."""
OTHER_COMMANDS = {
    "throughput": "penstock bench offline",
    "serving": "penstock bench serve",
    "online": "penstock bench serve",
    "run": "penstock bench serve",
    "benchmark": "penstock bench sweep",
}
"""Commands of vLLM's and other benchmarks, each with the Penstock command that does the same."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command and the remaining words, which the command's own parser reads in `run`."""
    lines = [f"  {name:<9} {summary}" for name, (_, summary) in COMMANDS.items()]
    parser.epilog = "\n".join(
        ["commands:", *lines, "", "penstock bench COMMAND --help lists a command's flags."]
    )
    parser.add_argument(
        "bench_command", metavar="COMMAND", choices=tuple(COMMANDS), help="one of those below"
    )
    parser.add_argument("rest", metavar="...", nargs=argparse.REMAINDER, help="its flags")
    parser.set_defaults(command=run, parsers=parsers)
    if isinstance(parser, Parser):
        parser.elsewhere = _other_command


def _other_command(word: str) -> str:
    return f"here it is `{here}`" if (here := OTHER_COMMANDS.get(word)) else ""


def parsers() -> dict[str, Parser]:
    """Argument parser of each command, by name. Imports all command modules."""
    return {name: _parser(name) for name in COMMANDS}


def run(parsed: argparse.Namespace) -> int:
    """Run one command; returns its exit status."""
    name, words = parsed.bench_command, parsed.rest
    own = _parser(name).parse_args(words)
    own.argv = [name, *words]
    status: int = import_module(COMMANDS[name][0]).run(own)
    return status


def _parser(name: str) -> Parser:
    module, summary = COMMANDS[name]
    parser = Parser(prog=f"penstock bench {name}", description=summary)
    import_module(module).add_arguments(parser)
    return parser
