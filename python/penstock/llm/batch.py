"""One batch: submits requests to the scheduler, steps until all have ended, collects results."""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from penstock import core
from penstock.core import (
    FinishReason,
    InvalidValueError,
    LogprobRow,
    PenstockError,
    StepOutput,
)
from penstock.engine import InFlight, Started
from penstock.llm.driving import drive
from penstock.llm.outputs import (
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    logprob_dict,
)
from penstock.llm.prompts import ReadPrompt, truncated
from penstock.llm.sampling import SamplingParams

if TYPE_CHECKING:
    from penstock._native import Tokenizer

OnEnd = Callable[[RequestOutput], None]


@dataclass(slots=True)
class _Pending:
    request: RequestOutput
    output: CompletionOutput
    params: SamplingParams
    running: set[int]
    """Indices of the request's choices that have not ended. The choices of a request share this
    set.
    """


class Batch:
    """A batch of requests. `ids` yields numbers for sequences and requests, each once."""

    def __init__(
        self,
        started: Started,
        in_flight: InFlight,
        tokenizer: Tokenizer,
        ids: Iterator[int],
        on_end: Sequence[OnEnd],
    ) -> None:
        self._started = started
        self._in_flight = in_flight
        self._tokenizer = tokenizer
        self._ids = ids
        self._on_end = on_end
        self._pending: dict[int, _Pending] = {}
        self._text_of = cache(lambda token: tokenizer.decode([token], False))

    def run(
        self,
        prompts: Sequence[ReadPrompt],
        params: Sequence[SamplingParams],
        results: list[RequestOutput],
    ) -> None:
        """Fill `results` (one for each prompt) until all requests have ended."""

        def submit() -> None:
            for prompt, wanted, result in zip(prompts, params, results, strict=True):
                self._submit(prompt, wanted, result)

        drive(self._started, self._in_flight, submit, self._take)

    def new_result(self, prompt: ReadPrompt, params: SamplingParams, at: int) -> RequestOutput:
        limit = self._started.scheduler.limits.max_model_len
        return RequestOutput(
            request_id=str(at),
            prompt=prompt.text,
            prompt_token_ids=truncated(prompt.ids, params.truncate_prompt_tokens, limit),
            outputs=[CompletionOutput(choice) for choice in range(params.n)],
            metrics=RequestMetrics(time.monotonic()),
        )

    def _submit(self, prompt: ReadPrompt, params: SamplingParams, result: RequestOutput) -> None:
        from penstock._native import needs_history

        params.check()
        seed = self._started.config.model.seed
        seed = secrets.randbits(63) if seed is None else seed
        running = set(range(len(result.outputs)))
        ids = array("i", result.prompt_token_ids)
        room = self._started.scheduler.limits.max_model_len - len(ids)
        ends, grammar = self._end_tokens(params), self._grammar(params)
        for output in result.outputs:
            request_id = next(self._ids)
            sampling = params.encoded(
                seed,
                choice=output.index,
                banned=self._token_runs(params.bad_words or ()),
                suppressed=ends,
                suppressed_until=len(ids) + params.min_tokens if params.min_tokens else 0,
            )
            self._started.scheduler.add(
                core.Request(
                    request_id,
                    ids,
                    params.generation(room),
                    time.monotonic(),
                    cache_salt=prompt.salt,
                    sampling=sampling,
                    needs_history=needs_history(sampling),
                    grammar=grammar,
                    priority=prompt.priority,
                )
            )
            if params.logprobs is not None:
                output.logprobs, output.cumulative_logprob = [], 0.0
            self._pending[request_id] = _Pending(result, output, params, running)

    def _end_tokens(self, params: SamplingParams) -> list[int]:
        """Tokens that end an output. They are suppressed before it has `min_tokens` tokens, and
        until its grammar allows the end.
        """
        if not params.min_tokens and params.structure is None:
            return []
        eos = () if params.ignore_eos else self._started.scheduler.limits.eos_token_ids
        return [*(params.stop_token_ids or ()), *eos]

    def _grammar(self, params: SamplingParams) -> bytes:
        """The request's encoded grammar, checked by compiling it; empty if it has none. Raises an
        error if it is invalid.
        """
        if params.structure is None:
            return b""
        if not self._end_tokens(params):
            raise InvalidValueError("stop_token_ids", [], "a token that ends structured_outputs")
        kind, text = params.structure.grammar_text()
        try:
            return self._tokenizer.grammar(kind, text).encoded
        except ValueError as error:
            raise PenstockError(f"structured_outputs.{kind}: {error}") from error

    def _token_runs(self, words: Sequence[str]) -> list[list[int]]:
        """The sequences of token ids that write each word: at the start of a text, and after a
        space if that takes as many tokens.
        """
        runs = []
        for word in words:
            plain = self._tokenizer.encode(word.lstrip(), False)
            spaced = self._tokenizer.encode(" " + word.lstrip(), False)
            if plain:
                runs.append(plain)
            if len(spaced) == len(plain) and spaced[:1] != plain[:1]:
                runs.append(spaced)
        return runs

    def _take(self, row: StepOutput) -> None:
        held = self._pending[row.id]
        if row.finish in (FinishReason.ERROR, FinishReason.REJECTED, FinishReason.UNFIT):
            raise PenstockError(row.error)
        if row.finish is not FinishReason.CANCELLED:
            self._grow(row, held)
        if row.finish:
            self._end(self._pending.pop(row.id))

    def _grow(self, row: StepOutput, held: _Pending) -> None:
        output, request = held.output, held.request
        output.token_ids.extend(row.tokens)
        if row.logprobs:
            self._score(output, row)
        if row.prompt_logprobs:
            request.take_prompt_rows(row.prompt_logprobs, self._text_of)
        request.num_cached_tokens += row.cached_tokens
        if (metrics := request.metrics) is not None and row.tokens:
            metrics.queued_seconds = metrics.queued_seconds or row.queue_us / 1e6
            metrics.first_token_time = metrics.first_token_time or time.monotonic()
        if row.finish or held.params.stops:
            self._settle(row, held)

    def _score(self, output: CompletionOutput, row: StepOutput) -> None:
        rows: list[LogprobRow] = row.logprobs
        assert output.logprobs is not None
        for token, scored in zip(row.tokens, rows, strict=True):
            output.logprobs.append(logprob_dict(token, scored, self._text_of))
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + scored[0]

    def _settle(self, row: StepOutput, held: _Pending) -> None:
        """Update the text of a choice, and end the choice at a stop string."""
        output, params = held.output, held.params
        if params.detokenize:
            keep_all = row.finish is not FinishReason.STOP or params.include_stop_str_in_output
            kept = output.token_ids if keep_all else output.token_ids[:-1]
            output.text = self._tokenizer.output_text(kept, params.skip_special_tokens)
        if row.finish:
            output.finish_reason = row.finish.name.lower()
            eos = self._started.scheduler.limits.eos_token_ids
            output.stop_reason = (
                row.stop_token if row.stop_token >= 0 and row.stop_token not in eos else None
            )
        found = [(output.text.find(stop), stop) for stop in params.stops if stop in output.text]
        if found:
            at, stop = min(found)
            if params.include_stop_str_in_output:
                at += len(stop)
            output.text, output.finish_reason, output.stop_reason = output.text[:at], "stop", stop
            self._started.scheduler.cancel(row.id)

    def _end(self, last: _Pending) -> None:
        """Complete the request if `last` was its last open choice."""
        last.running.discard(last.output.index)
        if last.running:
            return
        request = last.request
        request.finished = True
        if request.metrics is not None:
            request.metrics.finished_time = time.monotonic()
        if last.params.prompt_logprobs is not None and request.prompt_logprobs is None:
            request.prompt_logprobs = [None]
        for handed in self._on_end:
            handed(request)
