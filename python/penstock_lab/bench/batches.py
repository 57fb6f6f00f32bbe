"""Batches of requests, computed by a server or by an engine in this process."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock import __version__
from penstock.config import FLAGS
from penstock.config.foreign_arguments import add_foreign
from penstock.config.kinds import Switch
from penstock.core import InvalidValueError
from penstock_lab.bench import client, flags, prompts, result
from penstock_lab.bench.progress import Progress
from penstock_lab.bench.prompts import PromptMaker, Served
from penstock_lab.bench.request import Prompt, Request
from penstock_lab.bench.runs import INTERRUPTED
from penstock_lab.bench.target import Target

if TYPE_CHECKING:
    from penstock.llm import LLM, RequestOutput

ENGINE_PREFIX = "engine_"
"""Prefix of the attributes for engine settings in the argparse namespace."""
KNOWN = ("temperature", "top_p", "top_k", "logprobs")
"""Sampling flags that the engine's `SamplingParams` supports."""
EXAMPLES = 10
GLANCE = 0.2
"""Seconds between progress updates."""


@dataclass(slots=True)
class Batch:
    """Outcome of a batch. Token counts cover successful requests only."""

    seconds: float = 0.0
    """Seconds from the first request sent to the last answer."""
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    examples: Sequence[str] = ()
    """A few distinct failure messages."""
    partial: bool = False
    """Whether Ctrl-C interrupted the batch."""

    def counts(self, total: int) -> dict[str, int]:
        """Counts in the format of `LoadRun.progress`. Each output token counts as an event."""
        ended = {"completed": self.completed, "failed": self.failed, "events": self.output_tokens}
        return {
            "added": total,
            "sent": total,
            "open": total - self.completed - self.failed,
            "bytes": 0,
            **ended,
        }


class Backend(Protocol):
    """Computes batches."""

    name: str
    """Server address, or `in process`."""
    model_id: str
    chat: bool

    def maker(self) -> PromptMaker: ...

    def run(self, requests: Sequence[Request], what: str) -> Batch:
        """Compute a batch whose outputs have exactly the requested lengths. A shorter output is a
        failure.
        """


class OnServer:
    """Backend that sends all requests of a batch to a server at once, and streams the outputs."""

    def __init__(
        self,
        parsed: argparse.Namespace,
        target: Target,
        shown: Progress,
        open_run: Callable[[str], client.Run] = client.native_run,
    ) -> None:
        self.name = target.base_url
        self.model_id = target.model_id
        self.chat = target.chat
        self._target = target
        self._parsed = parsed
        self._progress = shown
        self._open_run = open_run

    def maker(self) -> PromptMaker:
        parsed = self._parsed
        return prompts.make(
            self._target.served(), parsed.tokenizer, parsed.prompt_ids, parsed.vocab_size
        )

    def run(self, requests: Sequence[Request], what: str) -> Batch:
        load = client.run_load(
            self._target,
            requests,
            body=flags.body(self._parsed, self._target, ignore_eos=True),
            max_concurrency=None,
            keep_text=False,
            progress=self._progress,
            what=what,
            open_run=self._open_run,
        )
        successful = [outcome for outcome in load.outcomes if outcome.success]
        failed = [outcome for outcome in load.outcomes if not outcome.success]
        reasons = dict.fromkeys(f"{outcome.failure}: {outcome.detail}" for outcome in failed)
        return Batch(
            seconds=load.duration,
            completed=len(successful),
            failed=len(failed),
            input_tokens=sum(outcome.input_tokens for outcome in successful),
            output_tokens=sum(outcome.output_tokens for outcome in successful),
            examples=list(reasons)[:EXAMPLES],
            partial=load.partial,
        )


class InProcess:
    """Backend that computes with `penstock.LLM` in this process, without HTTP."""

    name = "in process"
    chat = False

    def __init__(
        self, parsed: argparse.Namespace, settings: Mapping[str, str | int | bool], shown: Progress
    ) -> None:
        from penstock.llm import LLM

        if parsed.model is None:
            raise InvalidValueError(
                "--model", None, "a model to run in this process, or --base-url of a server"
            )
        for name in (*flags.SAMPLING, "extra_body", "request_id_prefix"):
            if name not in KNOWN and (value := getattr(parsed, name)):
                flag = f"--{name.replace('_', '-')}"
                raise InvalidValueError(flag, value, "nothing in process: a server takes it")
        self.model_id: str = parsed.model
        self._parsed = parsed
        self._progress = shown
        options: Mapping[str, Any] = settings
        self._llm: LLM = LLM(parsed.model, **options)
        self._ids_only = options.get("load_format") == "dummy" or self._llm.textless
        """Whether prompts are token ids, because the model may have no tokenizer."""
        self._vocabulary = self._llm.llm_engine.get_model_config().get_vocab_size()
        # The checkpoint's defaults, overridden by flags. `ignore_eos` makes output lengths exact.
        given = {name: getattr(parsed, name) for name in KNOWN if getattr(parsed, name) is not None}
        self._sampling = replace(self._llm.get_default_sampling_params(), ignore_eos=True, **given)

    def maker(self) -> PromptMaker:
        parsed = self._parsed
        served = Served(parsed.model)
        if self._ids_only and parsed.tokenizer is None:
            return prompts.make(served, None, True, parsed.vocab_size or self._vocabulary)
        tokenizer = parsed.tokenizer or parsed.model
        return prompts.make(served, tokenizer, parsed.prompt_ids, parsed.vocab_size)

    def run(self, requests: Sequence[Request], what: str) -> Batch:
        """Compute a batch. After Ctrl-C, only completed requests count."""
        texts = [_plain(request.prompt) for request in requests]
        params = [replace(self._sampling, max_tokens=request.output_tokens) for request in requests]
        done = Batch()
        self._progress.begin(what, len(requests))
        start = glance = time.perf_counter()

        def ended(answer: RequestOutput) -> None:
            nonlocal glance
            done.completed += 1
            done.input_tokens += len(answer.prompt_token_ids)
            done.output_tokens += sum(len(output.token_ids) for output in answer.outputs)
            if (now := time.perf_counter()) >= glance:
                glance = now + GLANCE
                self._progress.show(done.counts(len(requests)))

        try:
            self._llm.generate(texts, params, use_tqdm=False, on_end=ended)
        except KeyboardInterrupt:
            done.partial, done.examples = True, ["interrupted"]
        done.seconds = time.perf_counter() - start
        self._progress.end(done.counts(len(requests)))
        done.failed = len(requests) - done.completed
        return done


def _plain(prompt: Prompt) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) < len(prompt):
        raise InvalidValueError("--dataset-name", "conversations", "text or token ids in process")
    return ids


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add flags for server or model, prompts, sampling, and an engine in this process."""
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
        # --seed is the benchmark's flag; the engine gets the same value.
        if not flag.offline or flag.name == "--seed":
            continue
        switch = isinstance(flag.kind, Switch)
        option: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if switch else {}
        help_ = f"as of `penstock serve`: {flag.help}".replace("%", "%%")
        group.add_argument(
            flag.name, dest=ENGINE_PREFIX + flag.key, default=None, help=help_, **option
        )
    add_foreign(parser)


def open_backend(
    parsed: argparse.Namespace, shown: Progress, defaults: Mapping[str, str | bool] | None = None
) -> Backend:
    """The server that the flags name. Without an address, an engine in this process, whose settings
    from flags override `defaults`.
    """
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


class Measured(Protocol):
    """Common interface of the results of `bench latency` and `bench offline`."""

    @property
    def failed(self) -> int: ...
    @property
    def examples(self) -> Sequence[str]: ...
    @property
    def partial(self) -> bool: ...


def record(
    parsed: argparse.Namespace,
    backend: Backend,
    measured: Measured,
    found: Mapping[str, object],
    **own: object,
) -> dict[str, Any]:
    """Content of a result file: the keys in `found`, as in vLLM's file, and all others under
    `penstock`.
    """
    tags = {
        "format": result.FORMAT,
        "version": __version__,
        "argv": flags.redacted(parsed.argv),
        "server": backend.name,
        "seed": parsed.seed,
        "partial": measured.partial,
        "failure_examples": list(dict.fromkeys(measured.examples)),
    }
    return {"model_id": backend.model_id, **found, "penstock": {**tags, **own}}


def finish(
    parsed: argparse.Namespace,
    measured: Measured,
    lines: Sequence[str],
    kept: Mapping[str, Any] | None,
) -> int:
    """Print `lines`, and write `kept` to the file of --output-json, if any. Returns the exit
    status: 0; 1 if a request failed; 130 after Ctrl-C.
    """
    for line in lines:
        print(line)
    if parsed.output_json and kept is not None:
        result.write(dict(kept), Path(parsed.output_json))
    for example in dict.fromkeys(measured.examples):
        print(f"failed: {example}", file=sys.stderr)
    if measured.partial:
        return INTERRUPTED
    return 1 if measured.failed else 0
