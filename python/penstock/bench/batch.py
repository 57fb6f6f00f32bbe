"""Batches of requests that are handed over at once, to a server or to an engine in this process."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from penstock.bench import client, flags, prompts
from penstock.bench.body import Body
from penstock.bench.inprocess import Batch, InProcess
from penstock.bench.progress import Progress
from penstock.bench.prompts import PromptMaker
from penstock.bench.request import Load, Request
from penstock.bench.target import Target
from penstock.config import FLAGS
from penstock.config.kinds import Switch
from penstock.core import InvalidValueError

ENGINE_PREFIX = "engine_"
"""Of the engine's settings in a namespace."""
EXAMPLES = 10


class Backend(Protocol):
    """Whoever answers."""

    name: str
    """An address, or `in process`."""
    model_id: str
    chat: bool

    def maker(self) -> PromptMaker: ...

    def run(self, requests: Sequence[Request], what: str) -> Batch:
        """Answers of exactly the lengths that are asked for; a shorter one is a failure."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Server or model, prompts and sampling, and the settings of an engine in this process."""
    flags.add_target(parser)
    parser.set_defaults(host=None, port=None)
    flags.add_prompts(parser)
    flags.add_sampling(parser)
    flags.add_display(parser)
    parser.add_argument("--output-json", metavar="FILE", help="keep the result")
    group = parser.add_argument_group(
        "engine", "without --base-url, --host or --port, --model runs in this process, with these settings"
    )
    for flag in FLAGS:
        # --seed is the benchmark's own, and the engine gets the same.
        if not flag.offline or flag.name == "--seed":
            continue
        option: dict[str, Any] = (
            {"action": argparse.BooleanOptionalAction} if isinstance(flag.kind, Switch) else {}
        )
        help_ = f"as of `penstock serve`: {flag.help}".replace("%", "%%")
        group.add_argument(flag.name, dest=ENGINE_PREFIX + flag.key, default=None, help=help_, **option)


def open_backend(
    parsed: argparse.Namespace, shown: Progress, defaults: Mapping[str, str | bool] | None = None
) -> Backend:
    """The server that the flags name, or the model in this process, its settings over `defaults`."""
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
    return Server(parsed, flags.target(parsed), shown)


class Server:
    """Any OpenAI-compatible one."""

    def __init__(self, parsed: argparse.Namespace, target: Target, shown: Progress) -> None:
        self.name = target.base_url
        self.model_id = target.model_id
        self.chat = target.chat
        self._target = target
        self._parsed = parsed
        self._progress = shown

    def maker(self) -> PromptMaker:
        parsed = self._parsed
        return prompts.make(self._target.served(), parsed.tokenizer, parsed.prompt_ids, parsed.vocab_size)

    def run(self, requests: Sequence[Request], what: str) -> Batch:
        body = Body(
            chat=self.chat,
            model=self._target.model,
            ignore_eos=True,
            logprobs=self._parsed.logprobs,
            extra=flags.sampling(self._parsed),
            request_id_prefix=self._parsed.request_id_prefix,
        )
        load = client.run_load(
            self._target,
            requests,
            body=body,
            max_concurrency=None,
            keep_text=False,
            progress=self._progress,
            what=what,
        )
        return _of_load(load)


def _of_load(load: Load) -> Batch:
    successful = [outcome for outcome in load.outcomes if outcome.success]
    reasons = [f"{outcome.failure}: {outcome.detail}" for outcome in load.outcomes if not outcome.success]
    return Batch(
        seconds=load.duration,
        completed=len(successful),
        failed=len(reasons),
        input_tokens=sum(outcome.input_tokens for outcome in successful),
        output_tokens=sum(outcome.output_tokens for outcome in successful),
        examples=list(dict.fromkeys(reasons))[:EXAMPLES],
        partial=load.partial,
    )
