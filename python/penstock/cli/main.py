"""`penstock COMMAND`. The commands for serving are defined here; the packages `penstock_lab` and
`penstock_ops` register theirs as entry points of the wheel.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from typing import Protocol

from penstock import __version__
from penstock.cli.arguments import add_settings
from penstock.cli.parser import Parser
from penstock.core import InvalidValueError, PenstockError

Command = Callable[[argparse.Namespace], int]
TOOLS = "penstock.commands"
"""Entry point group of the commands. Each entry point names a module that implements `Tool`."""


class Tool(Protocol):
    SUMMARY: str
    """The tool's line in `penstock --help`."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add flags, and set the default `command` to the function that runs the tool. A tool that
        creates the parsers of its subcommands lazily sets `parsers` to a function that returns
        them.
        """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0, 1 after an error, 2 after a wrong argument, 130
    after Ctrl-C. Without a command it prints the help.
    """
    try:
        top = parser()
        parsed = top.parse_args(arguments)
        if "command" not in parsed:
            top.print_help()
            return 0
        command: Command = parsed.command
        return command(parsed)
    except PenstockError as error:
        print(f"penstock: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidValueError) else 1
    except KeyboardInterrupt:
        return 130


def parser() -> Parser:
    top = Parser(prog="penstock", description="Serve open-weight language models.")
    top.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = top.add_subparsers(metavar="COMMAND")
    _serve(
        commands.add_parser(
            "serve",
            help="serve a model over an OpenAI-compatible API",
            usage="penstock serve MODEL [--flag VALUE ...]",
        )
    )
    _chat(commands.add_parser("chat", help="talk with a model in the terminal"))
    _pull(commands.add_parser("pull", help="download a model into the cache"))
    _demo(
        commands.add_parser(
            "demo", help="start a server, ask one question, print the answer and the speed"
        )
    )
    _gateway(
        commands.add_parser("gateway", help="route requests to replicas by load and cached prefix")
    )
    _kv(commands.add_parser("kv", help="look after the directory of a disk tier: ls, verify, gc"))
    for name, tool in sorted(_tools().items()):
        tool.add_arguments(commands.add_parser(name, help=tool.SUMMARY))
    _node_health(
        commands.add_parser("node-health", help="probe of a node other than 0: is its agent alive?")
    )
    _completion(commands.add_parser("completion", help="print a shell's completion script"))
    return top


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve MODEL: an alias (smollm2), a GGUF file, a Hugging Face directory, or org/name "
        "with penstock[hub]. Each setting can also come from its environment variable or from a "
        "YAML file, which may name the model too; flags win over the environment, the "
        "environment over the file."
    )
    parser.add_argument("model", metavar="MODEL", nargs="?")
    parser.add_argument(
        "--model", dest="model_flag", metavar="MODEL", help="the same, as older scripts write it"
    )
    add_settings(parser)
    parser.set_defaults(command=_run_serve)


def _chat(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import chat

    chat.add_arguments(parser)
    parser.set_defaults(command=chat.run)


def _pull(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="an alias (smollm2), or org/name with penstock[hub]"
    )
    parser.set_defaults(command=_run_pull)


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", default="smollm2")
    parser.add_argument(
        "--question", default="What is the capital of France, and what is it known for?"
    )
    parser.set_defaults(command=_run_demo)


def _tools() -> dict[str, Tool]:
    """Commands of other packages in the wheel; none in a source tree that is not installed."""
    try:
        points = distribution("penstock").entry_points.select(group=TOOLS)
    except PackageNotFoundError:
        return {}
    return {point.name: point.load() for point in points}


def _gateway(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import gateway

    gateway.add_arguments(parser)
    parser.set_defaults(command=gateway.run)


def _kv(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import kv

    kv.add_arguments(parser)


def _node_health(own: argparse.ArgumentParser) -> None:
    from penstock.cli.node_health import MOST_AGE, node_health

    own.description = (
        "Exit 0 when the agent of `penstock serve --node-rank K`, K above 0, on this host has "
        "shown life lately, 1 otherwise. Such a node has no port to probe."
    )
    own.add_argument("--node-rank", type=int, help="default: all nodes on this host")
    own.add_argument(
        "--max-age", type=float, default=MOST_AGE, help="seconds; default: %(default)g"
    )
    own.set_defaults(command=lambda parsed: node_health(parsed.node_rank, parsed.max_age))


def _completion(own: argparse.ArgumentParser) -> None:
    from penstock.cli import completion

    own.add_argument("shell", choices=tuple(completion.SCRIPTS), help="to evaluate, or to install")
    own.set_defaults(command=lambda parsed: completion.run(parsed.shell, parser()))


def _run_serve(parsed: argparse.Namespace) -> int:
    from penstock.cli.serve import serve

    return serve(parsed)


def _run_pull(parsed: argparse.Namespace) -> int:
    from penstock.cli.pull import pull

    print(pull(parsed.model))
    return 0


def _run_demo(parsed: argparse.Namespace) -> int:
    from penstock.cli.demo import demo

    return demo(parsed.model, parsed.question)
