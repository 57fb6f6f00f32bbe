"""Batches for any OpenAI-compatible server."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from penstock.bench import client, flags, prompts
from penstock.bench.batch import Batch
from penstock.bench.body import Body
from penstock.bench.progress import Progress
from penstock.bench.prompts import PromptMaker
from penstock.bench.request import Load, Request
from penstock.bench.target import Target

EXAMPLES = 10


class OnServer:
    """Backend that sends all requests of a batch at once and streams the outputs."""

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
            open_run=self._open_run,
        )
        return _of_load(load)


def _of_load(load: Load) -> Batch:
    successful = [outcome for outcome in load.outcomes if outcome.success]
    reasons = [
        f"{outcome.failure}: {outcome.detail}" for outcome in load.outcomes if not outcome.success
    ]
    return Batch(
        seconds=load.duration,
        completed=len(successful),
        failed=len(reasons),
        input_tokens=sum(outcome.input_tokens for outcome in successful),
        output_tokens=sum(outcome.output_tokens for outcome in successful),
        examples=list(dict.fromkeys(reasons))[:EXAMPLES],
        partial=load.partial,
    )
