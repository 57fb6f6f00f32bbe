"""Choice of what computes a batch: a server, or an engine in this process."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from penstock.bench import flags
from penstock.bench.batch import Backend
from penstock.bench.inprocess import InProcess
from penstock.bench.onserver import OnServer
from penstock.bench.progress import Progress
from penstock.config import FLAGS
from penstock.config.kinds import Switch
from penstock.core import InvalidValueError

ENGINE_PREFIX = "engine_"
"""Prefix of the engine's settings in a namespace."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Server or model, prompts and sampling, and the settings of an engine in this process."""
    flags.add_target(parser)
    parser.set_defaults(host=None, port=None)
    flags.add_prompts(parser)
    flags.add_sampling(parser)
    flags.add_display(parser)
    parser.add_argument("--output-json", metavar="FILE", help="keep the result")
    group = parser.add_argument_group(
        "engine",
        "without --base-url, --host or --port, --model runs in this process, with these settings",
    )
    for flag in FLAGS:
        # --seed is the benchmark's own, and the engine gets the same.
        if not flag.offline or flag.name == "--seed":
            continue
        option: dict[str, Any] = (
            {"action": argparse.BooleanOptionalAction} if isinstance(flag.kind, Switch) else {}
        )
        help_ = f"as of `penstock serve`: {flag.help}".replace("%", "%%")
        group.add_argument(
            flag.name, dest=ENGINE_PREFIX + flag.key, default=None, help=help_, **option
        )


def open_backend(
    parsed: argparse.Namespace, shown: Progress, defaults: Mapping[str, str | bool] | None = None
) -> Backend:
    """The server of the flags, or the model in this process with settings over `defaults`."""
    settings = {
        name.removeprefix(ENGINE_PREFIX): value
        for name, value in vars(parsed).items()
        if name.startswith(ENGINE_PREFIX) and value is not None
    }
    if parsed.base_url is None and parsed.host is None and parsed.port is None:
        return InProcess(parsed, {"seed": parsed.seed, **(defaults or {}), **settings}, shown)
    for key, value in settings.items():
        raise InvalidValueError(
            "--" + key.replace("_", "-"), value, "nothing: the server has its own settings"
        )
    parsed.host, parsed.port = parsed.host or "127.0.0.1", parsed.port or 8000
    return OnServer(parsed, flags.target(parsed), shown)
