"""Batches for `penstock.LLM`: an engine in this process, without HTTP."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.bench import flags, prompts
from penstock.bench.batch import Batch
from penstock.bench.progress import Progress
from penstock.bench.prompts import PromptMaker, Served
from penstock.bench.request import Prompt, Request
from penstock.core import InvalidValueError

if TYPE_CHECKING:
    from penstock.llm import LLM, RequestOutput, SamplingParams

KNOWN = ("temperature", "top_p", "top_k", "logprobs")
"""Sampling flags that `SamplingParams` knows."""
GLANCE = 0.2
"""Seconds between updates of the progress."""


class InProcess:
    """Backend on `penstock.LLM`."""

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
        _refuse_unknown(parsed)
        self.model_id: str = parsed.model
        self._parsed = parsed
        self._progress = shown
        self._llm: LLM = LLM(parsed.model, **settings)
        self._sampling = _sampling(parsed, self._llm.default_sampling_params())

    def maker(self) -> PromptMaker:
        parsed = self._parsed
        served = Served(parsed.model)
        return prompts.make(
            served, parsed.tokenizer or parsed.model, parsed.prompt_ids, parsed.vocab_size
        )

    def run(self, requests: Sequence[Request], what: str) -> Batch:
        """Compute the batch without a server. After Ctrl-C only requests that have ended count."""
        texts = [_plain(request.prompt) for request in requests]
        params = [replace(self._sampling, max_tokens=request.output_tokens) for request in requests]
        counter = _Counter(self._progress, len(requests))
        self._progress.begin(what, len(requests))
        partial = False
        start = time.perf_counter()
        try:
            self._llm.generate(texts, params, on_end=counter.ended)
        except KeyboardInterrupt:
            partial = True
        seconds = time.perf_counter() - start
        self._progress.end(counter.counts())
        return Batch(
            seconds,
            completed=counter.completed,
            failed=len(requests) - counter.completed,
            input_tokens=counter.input_tokens,
            output_tokens=counter.output_tokens,
            examples=["interrupted"] if partial else (),
            partial=partial,
        )

    def close(self) -> None:
        self._llm.close()


class _Counter:
    """Counts of ended requests, shown a few times a second."""

    def __init__(self, shown: Progress, total: int) -> None:
        self.completed = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self._progress = shown
        self._total = total
        self._next = 0.0

    def ended(self, answer: RequestOutput) -> None:
        self.completed += 1
        self.input_tokens += len(answer.prompt_token_ids)
        self.output_tokens += sum(len(output.token_ids) for output in answer.outputs)
        if (now := time.monotonic()) >= self._next:
            self._next = now + GLANCE
            self._progress.show(self.counts())

    def counts(self) -> dict[str, int]:
        """Counts as of a load generator; a token is an event."""
        return {
            "added": self._total,
            "sent": self._total,
            "open": self._total - self.completed,
            "completed": self.completed,
            "failed": 0,
            "events": self.output_tokens,
            "bytes": 0,
        }


def _refuse_unknown(parsed: argparse.Namespace) -> None:
    for name in (*flags.SAMPLING, "extra_body", "request_id_prefix"):
        if name not in KNOWN and (value := getattr(parsed, name)):
            raise InvalidValueError(
                f"--{name.replace('_', '-')}", value, "nothing in process: a server takes it"
            )


def _sampling(parsed: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    """The checkpoint's defaults, overridden by the flags; lengths are exact."""
    given = {name: getattr(parsed, name) for name in KNOWN if getattr(parsed, name) is not None}
    return replace(defaults, ignore_eos=True, **given)


def _plain(prompt: Prompt) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) < len(prompt):
        raise InvalidValueError("--dataset-name", "conversations", "text or token ids in process")
    return ids
