"""`penstock COMMAND`. The commands for serving are defined here; the packages `penstock_lab` and
`penstock_ops` register theirs as entry points of the wheel.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint, EntryPoints, PackageNotFoundError, distribution
from typing import Protocol

from penstock import __version__
from penstock.cli.parser import Parser
from penstock.core import InvalidValueError, PenstockError

Command = Callable[[argparse.Namespace], int]
GROUPS = ("Use", "Serve", "Size", "Deploy", "Measure", "Look inside", "Other")
"""Headings in `penstock --help`. Each command declares its own."""
EXAMPLES = """\
Examples:
  penstock pull smollm2 && penstock chat smollm2
  penstock serve smollm2 --replicas 2 --port 8000
  penstock plan smollm2 --on h100-sxm-80gb --rate 20

`penstock COMMAND --help` lists the flags of a command. Documents:
  https://github.com/penstock/penstock (docs/index.md)"""
SERVE_EXAMPLES = """\
Examples:
  penstock serve smollm2 --port 8000 --access-log
  penstock serve model.gguf --max-model-len 8k --api-key KEY
  penstock serve smollm2 --kv-tier ram:4GiB --replicas 2
"""
OTHER_COMMANDS = {
    "run": "penstock chat MODEL",
    "list": "penstock models",
    "ls": "penstock models",
    "rm": "penstock models rm NAME",
    "show": "penstock model show MODEL",
    "ps": "penstock top URL",
    "search": "penstock models aliases",
    "download": "penstock pull MODEL",
    "start": "penstock serve MODEL",
    "server": "penstock serve MODEL",
    "api_server": "penstock serve MODEL",
    "launch": "penstock serve MODEL",
    "router": "penstock gateway",
    "benchmark": "penstock bench",
    "help": "penstock --help",
}
"""Commands of Ollama, vLLM, SGLang and other programs, each with the Penstock command that does the
same.
"""
VERSION_FLAGS = ("-V", "--version")
TOOLS = "penstock.commands"
"""Entry point group of the commands. Each entry point names a module that implements `Tool`."""


class Tool(Protocol):
    GROUP: str
    """The tool's heading in `penstock --help`: one of `GROUPS`."""
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
    words = sys.argv[1:] if arguments is None else arguments
    try:
        top = parser(words[0] if words else "")
        parsed = top.parse_args(words)
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


def parser(word: str = "") -> Parser:
    """Return the parser of `penstock`. `word` is the first word of the command line: if it names a
    command, the parser contains only that command, because importing the others takes half a
    second.
    """
    top = Parser(prog="penstock", description="Serve open-weight language models.", epilog=EXAMPLES)
    shown = f"penstock {__version__}"
    top.add_argument(
        *VERSION_FLAGS, action="version", version=shown, help="show the version, and exit"
    )
    top.elsewhere = _other_command
    commands = top.add_subparsers(metavar="COMMAND")
    for name, group, summary, add in _commands("version" if word in VERSION_FLAGS else word):
        add(commands.add_parser(name, group=group, help=summary))
    return top


def _other_command(word: str) -> str:
    from penstock.hub import ALIASES, canonical_alias

    if canonical_alias(word) in ALIASES or "/" in word or word.endswith(".gguf"):
        return f"to talk with a model: `penstock chat {word}`"
    if word == "stop":
        return "Ctrl-C, or SIGTERM, stops a server"
    return f"here it is `{here}`" if (here := OTHER_COMMANDS.get(word)) else ""


Description = tuple[str, str, str, Callable[[Parser], None]]
"""Name, heading and summary of a command, and the function that adds its flags."""


def _commands(name: str) -> list[Description]:
    """The command `name`. If no such command exists, all commands by heading."""
    own = {one[0]: one for one in _own_commands()}
    if name in own:
        return [own[name]]
    points = {point.name: point for point in _tools()}
    if name in points:
        return [_described(points[name])]
    tools = [_described(points[each]) for each in sorted(points)]
    return sorted([*tools, *own.values()], key=lambda one: GROUPS.index(one[1]))


def _described(point: EntryPoint) -> Description:
    tool: Tool = point.load()
    return point.name, tool.GROUP, tool.SUMMARY, tool.add_arguments


def _own_commands() -> Iterator[Description]:
    yield "chat", "Use", "talk with a model in the terminal", _chat
    yield "pull", "Use", "download a model into the cache", _pull
    yield "models", "Use", "list, and remove, the models on this machine: rm, aliases", _models
    demo = "start a server, ask one question, print the answer and the speed"
    yield "demo", "Use", demo, _demo
    yield "serve", "Serve", "serve a model over an OpenAI-compatible API", _serve
    gateway = "route requests to replicas by load and cached prefix"
    yield "gateway", "Serve", gateway, _gateway
    node_health = "health probe of worker nodes (--node-rank above 0)"
    yield "node-health", "Deploy", node_health, _node_health
    kv = "inspect and clean the directory of a disk tier: ls, verify, gc"
    yield "kv", "Look inside", kv, _kv
    yield "completion", "Other", "print a shell's completion script", _completion
    yield "version", "Other", "print the version", _version


def _serve(parser: Parser) -> None:
    from penstock.cli.arguments import COMMON, add_settings

    parser.usage = "penstock serve MODEL [--flag VALUE ...]"
    parser.description = (
        "Serve MODEL: an alias (smollm2), a GGUF file, a Hugging Face directory, org/repo[:QUANT] "
        "of the hub, or the address of a GGUF file; what is not on this machine is downloaded. "
        "Each setting can also come from its environment variable or from a YAML file, which may "
        "name the model too; flags win over the environment, the environment over the file."
    )
    parser.epilog = SERVE_EXAMPLES
    parser.add_argument("model", metavar="MODEL", nargs="?", help="what to serve")
    parser.add_argument(
        "--model", dest="model_flag", metavar="MODEL", help="the same, as older scripts write it"
    )
    parser.shorten(COMMON, "All flags: `penstock serve --help-all`, docs/flags.md.")
    add_settings(parser)
    parser.set_defaults(command=_run_serve)


def _chat(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import chat

    chat.add_arguments(parser)
    parser.set_defaults(command=chat.run)


def _pull(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import models

    models.add_pull_arguments(parser)


def _models(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import models

    models.add_arguments(parser)


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default="smollm2",
        help="as of `penstock serve` (default: %(default)s)",
    )
    parser.add_argument(
        "--question",
        metavar="TEXT",
        default="What is the capital of France, and what is it known for?",
        help="what to ask (default: %(default)s)",
    )
    parser.set_defaults(command=_run_demo)


def _tools() -> EntryPoints:
    """Commands of other packages in the wheel. None exist in a source tree that is not
    installed.
    """
    try:
        return distribution("penstock").entry_points.select(group=TOOLS)
    except PackageNotFoundError:
        return EntryPoints()


def _gateway(parser: Parser) -> None:
    from penstock.cli import gateway, gateway_flags

    parser.usage = (
        "penstock gateway --backend URL [--flag VALUE ...]\n"
        "       penstock gateway --config FILE [--flag VALUE ...]"
    )
    more = "All flags: `penstock gateway --help-all`, docs/gateway-reference.md."
    parser.shorten(gateway_flags.COMMON, more)
    gateway_flags.add_arguments(parser)
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
    own.add_argument("--node-rank", type=int, help="the node; default: all nodes on this host")
    own.add_argument(
        "--max-age",
        metavar="SECONDS",
        type=float,
        default=MOST_AGE,
        help="since its last sign of life; default: %(default)g",
    )
    own.set_defaults(command=lambda parsed: node_health(parsed.node_rank, parsed.max_age))


def _completion(own: argparse.ArgumentParser) -> None:
    from penstock.cli import completion

    own.add_argument("shell", choices=tuple(completion.SCRIPTS), help="to evaluate, or to install")
    own.set_defaults(command=lambda parsed: completion.run(parsed.shell, parser()))


def _version(own: argparse.ArgumentParser) -> None:
    own.set_defaults(command=_run_version)


def _run_version(_: argparse.Namespace) -> int:
    print(f"penstock {__version__}")
    return 0


def _run_serve(parsed: argparse.Namespace) -> int:
    from penstock.cli.serve import serve

    return serve(parsed)


def _run_demo(parsed: argparse.Namespace) -> int:
    from penstock.cli.demo import demo

    return demo(parsed.model, parsed.question)
