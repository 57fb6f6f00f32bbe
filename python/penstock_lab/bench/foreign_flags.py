"""Flags of other load generators: aliases of this tool's flags, and flags without effect."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from penstock.config.log import warn
from penstock_lab.bench import flags
from penstock_lab.bench.sweep_plan import extra_inputs

BACKENDS = {"chat": "openai-chat", "completions": "openai", "openai-chat": "openai-chat"}
NO_CODE = "no code is ever loaded from a model"
STREAMED = "answers are always streamed"
COUNTED = "a run has --num-prompts requests"
Names = tuple[str, ...]


class IgnoredFlag(argparse.Action):
    """A flag without effect; prints a warning with the reason `why`."""

    def __init__(self, option_strings: Sequence[str], dest: str, why: str, **given: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, help=argparse.SUPPRESS, **given)
        self._why = why

    def __call__(self, _parser: object, _space: object, _value: object, spelling: Any = "") -> None:
        warn(f"{spelling} is ignored: {self._why}")


class ExtraInput(argparse.Action):
    """GenAI-Perf's NAME:VALUE, which adds a field to every body."""

    def __call__(self, _: object, space: argparse.Namespace, value: Any, flag: Any = "") -> None:
        space.extra_body = {**space.extra_body, **extra_inputs(flag, [value])}


class EndpointType(argparse.Action):
    def __call__(self, _: object, space: argparse.Namespace, value: Any, _flag: Any = "") -> None:
        space.backend = BACKENDS[value]


def add_vllm(parser: argparse.ArgumentParser) -> None:
    """Add flags that scripts for vLLM's benchmark pass and that have no effect here."""
    parser.add_argument("--trust-remote-code", action=IgnoredFlag, nargs=0, why=NO_CODE)


def add_genai_perf(parser: argparse.ArgumentParser) -> None:
    """Add GenAI-Perf's aliases of `bench serve` flags."""
    group = parser.add_argument_group("names of GenAI-Perf")
    lengths: dict[Names, tuple[str, Callable[[str], Any]]] = {
        ("-m",): ("model", str),
        ("-u", "--url"): ("base_url", _with_scheme),
        ("--concurrency",): ("max_concurrency", flags.integer(1)),
        ("--synthetic-input-tokens-mean",): ("random_input_len", flags.integer(1)),
        ("--synthetic-input-tokens-stddev",): ("random_input_stddev", float),
        ("--output-tokens-mean",): ("random_output_len", flags.integer(1)),
        ("--output-tokens-stddev",): ("random_output_stddev", float),
        ("--request-count", "--num-requests"): ("num_prompts", flags.integer(1)),
        ("--warmup-request-count",): ("num_warmups", flags.integer(0)),
        ("--random-seed",): ("seed", int),
    }
    for names, (dest, kind) in lengths.items():
        own = "--" + dest.replace("_", "-")
        group.add_argument(
            *names, dest=dest, type=kind, default=argparse.SUPPRESS, metavar="X", help=f"as {own}"
        )
    group.add_argument(
        "--endpoint-type",
        action=EndpointType,
        choices=tuple(BACKENDS),
        default=argparse.SUPPRESS,
        help="as --backend: chat is openai-chat, completions is openai",
    )
    group.add_argument(
        "--extra-inputs",
        action=ExtraInput,
        default=argparse.SUPPRESS,
        metavar="NAME:VALUE",
        help="a field of every body, or a JSON object of several; repeatable",
    )
    group.add_argument("--streaming", action=IgnoredFlag, nargs=0, why=STREAMED)
    group.add_argument(
        "--measurement-interval",
        "-p",
        type=_milliseconds,
        default=argparse.SUPPRESS,
        metavar="MS",
        help="also report windows of this length; the run still ends after --num-prompts requests",
    )
    names = ("--stability-percentage", "-s")
    group.add_argument(*names, action=IgnoredFlag, why=COUNTED)


def _milliseconds(text: str) -> float:
    """Milliseconds in seconds."""
    return flags.integer(1)(text) / 1000


def _with_scheme(text: str) -> str:
    """A URL, also from GenAI-Perf's HOST:PORT."""
    return text if "://" in text else f"http://{text}"
