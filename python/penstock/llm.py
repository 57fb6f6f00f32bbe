"""Offline batches without a server: the engine's scheduler and executor, driven by the caller's
thread.

llm = LLM("smollm2")
for answer in llm.generate(["Hello", "Bonjour"], SamplingParams(max_tokens=32)):
    print(answer.outputs[0].text)
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from penstock import core
from penstock.config import FLAGS, EngineConfig, Raw, resolve
from penstock.core import FinishReason, InvalidValueError, LogprobRow, PenstockError, StepOutput
from penstock.core.errors import CodecError
from penstock.core.request import MAX_LOGPROBS, check_range
from penstock.engine import InFlight, start
from penstock.engine.tiers import flush
from penstock.model import sampling_defaults
from penstock.model.locate import locate

if TYPE_CHECKING:
    from penstock._native import Tokenizer

Option = str | float | bool | Sequence[str]
"""A list of a value that may be given several times."""
Prompt = str | Sequence[int]

UNBOUNDED = 2**31
log = logging.getLogger("penstock.llm")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue prompts. Greedy is `temperature=0`; without a seed each request draws its
    own.

    `logprobs` and `prompt_logprobs` are numbers of alternatives (0..20), None for no
    log-probabilities. `logit_bias` adds to the logits of token ids; only `allowed_token_ids` are
    drawn, where there are any; texts in `bad_words` are not written.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    max_tokens: int = 16
    min_tokens: int = 0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidValueError("n", self.n, "at least 1")
        if "" in self.stops:
            raise InvalidValueError("stop", self.stop, "texts that are not empty")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InvalidValueError(
                "temperature", self.temperature, "a finite number of at least 0"
            )
        if not 0 < self.top_p <= 1:
            raise InvalidValueError("top_p", self.top_p, "a number in (0, 1]")
        check_range("seed", self.seed or 0, 0, 2**64 - 1)
        check_range("logprobs", self.logprobs or 0, 0, MAX_LOGPROBS)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidValueError("allowed_token_ids", [], "at least one token id")
        self.generation()
        self.encoded()

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def generation(self) -> core.GenerationParams:
        return core.GenerationParams(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            prompt_logprobs=-1 if self.prompt_logprobs is None else self.prompt_logprobs,
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids),
        )

    def encoded(self, seed: int = 0, **of_the_request: object) -> bytes:
        """Encoded sampling parameters; `seed` unless there is one. InvalidValueError names a value
        out of range.
        """
        from penstock._native import encode_sampling

        try:
            return encode_sampling(
                temperature=self.temperature,
                top_k=max(self.top_k, 0),
                top_p=self.top_p,
                min_p=self.min_p,
                seed=seed if self.seed is None else self.seed,
                logprobs=self.logprobs,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                repetition_penalty=self.repetition_penalty,
                bias=list((self.logit_bias or {}).items()),
                allowed=list(self.allowed_token_ids or ()),
                **of_the_request,
            )
        except CodecError as error:
            raise PenstockError(f"sampling parameters: {error}") from error


@dataclass(slots=True)
class CompletionOutput:
    """One continuation. `token_ids` has the token that ended it, `text` has not.

    `stop_reason` is the stop text or token id, None for the model's own end and at the length
    limit.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None
    logprobs: list[LogprobRow] = field(default_factory=list)


@dataclass(slots=True)
class RequestOutput:
    """All continuations of one prompt. `prompt_logprobs[i]` belongs to prompt token i + 1."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[LogprobRow] = field(default_factory=list)
    num_cached_tokens: int = 0


@dataclass(slots=True)
class _Pending:
    request: RequestOutput
    output: CompletionOutput
    params: SamplingParams
    running: set[int]
    """Open choices of the request, shared by all of them."""


class LLM:
    """A model in this process. `options` are the server's flags, such as `max_num_seqs=8`."""

    def __init__(self, model: str, **options: Option) -> None:
        located = locate(model)
        resolved = resolve(_raw(options), str(located.path), located.served_name)
        config = _unbounded(resolved.engine)
        self._tokenizer = _open_tokenizer(config.model.path)
        self._started = start(config, _log_stage)
        self._in_flight = InFlight(
            self._started.scheduler, self._started.executor, rates=self._started.admin.rates
        )
        self._next_id = 0
        self._closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        on_end: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt (text or token ids), computed together; results are in the same
        order.

        `on_end` is called with each request that is complete; after Ctrl-C these are the results.
        """
        listed = _listed(prompts)
        params = self._params(sampling_params, len(listed))
        results = [
            self._request(prompt, wanted) for prompt, wanted in zip(listed, params, strict=True)
        ]
        self._run(results, params, on_end)
        return results

    def chat(
        self,
        messages: Sequence[Mapping[str, str]] | Sequence[Sequence[Mapping[str, str]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, through the model's chat template."""
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations = [messages] if single else list(messages)
        prompts = [
            self._tokenizer.apply_chat_template(json.dumps(conversation), add_generation_prompt)
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params)

    def close(self) -> None:
        """Flush stores, free weights and KV blocks, end the ranks. Idempotent."""
        if self._closed:
            return
        self._closed = True
        flush(self._started.scheduler.tiers)
        self._started.close()

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.default_sampling_params()
        params = [given] * count if isinstance(given, SamplingParams) else given
        if len(params) != count:
            raise InvalidValueError(
                "sampling_params", len(params), f"one for each of {count} prompts"
            )
        return params

    def default_sampling_params(self) -> SamplingParams:
        """Defaults of the checkpoint, or those that the options choose."""
        model = self._started.config.model
        defaults = sampling_defaults(
            self._started.info.generation,
            model.generation_config,
            model.override_generation_config,
        )
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        given = {name: getattr(defaults, name) for name in names}
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})

    def _request(self, prompt: Prompt, params: SamplingParams) -> RequestOutput:
        text = prompt if isinstance(prompt, str) else None
        ids = self._tokenizer.encode(prompt, True) if isinstance(prompt, str) else list(prompt)
        return RequestOutput(text, ids, [CompletionOutput(choice) for choice in range(params.n)])

    def _run(
        self,
        results: list[RequestOutput],
        params: Sequence[SamplingParams],
        on_end: Callable[[RequestOutput], None] | None,
    ) -> None:
        scheduler = self._started.scheduler
        try:
            pending = self._submit(results, params)
            while scheduler.has_requests() or scheduler.has_outputs() or self._in_flight:
                self._step()
                for row in scheduler.take_outputs().rows():
                    self._take(row, pending)
                    if row.finish and (ended := _ended(pending.pop(row.id))) and on_end is not None:
                        on_end(ended)
        finally:
            self._in_flight.abandon("the batch was given up")
            scheduler.cancel_all()
            scheduler.take_outputs()

    def _submit(
        self, results: list[RequestOutput], params: Sequence[SamplingParams]
    ) -> dict[int, _Pending]:
        from penstock._native import needs_history

        pending = {}
        for result, wanted in zip(results, params, strict=True):
            seed = self._started.config.model.seed
            seed = secrets.randbits(63) if seed is None else seed
            running = set(range(len(result.outputs)))
            for output in result.outputs:
                request_id, self._next_id = self._next_id, self._next_id + 1
                prompt = array("i", result.prompt_token_ids)
                sampling = wanted.encoded(
                    seed,
                    choice=output.index,
                    banned=self._token_runs(wanted.bad_words),
                    suppressed=self._end_tokens(wanted),
                    suppressed_until=len(prompt) + wanted.min_tokens,
                )
                self._started.scheduler.add(
                    core.Request(
                        request_id,
                        prompt,
                        wanted.generation(),
                        time.monotonic(),
                        sampling=sampling,
                        needs_history=needs_history(sampling),
                    )
                )
                pending[request_id] = _Pending(result, output, wanted, running)
        return pending

    def _end_tokens(self, params: SamplingParams) -> list[int]:
        """Tokens that are not drawn before `min_tokens`."""
        if not params.min_tokens:
            return []
        eos = () if params.ignore_eos else self._started.scheduler.limits.eos_token_ids
        return [*params.stop_token_ids, *eos]

    def _token_runs(self, words: Sequence[str]) -> list[list[int]]:
        """Tokens of words, at the start of a text and, where as many, after a space."""
        runs = []
        for word in words:
            plain = self._tokenizer.encode(word.lstrip(), False)
            spaced = self._tokenizer.encode(" " + word.lstrip(), False)
            if plain:
                runs.append(plain)
            if len(spaced) == len(plain) and spaced[:1] != plain[:1]:
                runs.append(spaced)
        return runs

    def _step(self) -> None:
        self._in_flight.submit_ready()
        if self._in_flight:
            if error := self._in_flight.wait_oldest().error:
                raise error
        elif (tiers := self._started.scheduler.tiers).busy:
            time.sleep(tiers.next_poll)

    def _take(self, row: StepOutput, pending: dict[int, _Pending]) -> None:
        held = pending[row.id]
        output = held.output
        if row.finish in (FinishReason.ERROR, FinishReason.REJECTED):
            raise PenstockError(row.error)
        if row.finish is FinishReason.CANCELLED:
            return
        output.token_ids.extend(row.tokens)
        output.logprobs.extend(row.logprobs)
        held.request.prompt_logprobs = row.prompt_logprobs or held.request.prompt_logprobs
        held.request.num_cached_tokens += row.cached_tokens
        if row.finish or held.params.stops:
            self._settle(row, held)

    def _settle(self, row: StepOutput, held: _Pending) -> None:
        """Text so far, up to a stop text; ends the request at one."""
        output = held.output
        keep_all = row.finish is not FinishReason.STOP or held.params.include_stop_str_in_output
        kept = output.token_ids if keep_all else output.token_ids[:-1]
        output.text = self._tokenizer.decode(kept, held.params.skip_special_tokens)
        if row.finish:
            output.finish_reason = row.finish.name.lower()
            eos = self._started.scheduler.limits.eos_token_ids
            output.stop_reason = (
                row.stop_token if row.stop_token >= 0 and row.stop_token not in eos else None
            )
        found = [
            (output.text.find(stop), stop) for stop in held.params.stops if stop in output.text
        ]
        if found:
            at, stop = min(found)
            if held.params.include_stop_str_in_output:
                at += len(stop)
            output.text, output.finish_reason, output.stop_reason = output.text[:at], "stop", stop
            self._started.scheduler.cancel(row.id)


def _ended(last: _Pending) -> RequestOutput | None:
    """The request, if its last open choice has ended."""
    last.running.discard(last.output.index)
    return None if last.running else last.request


def _open_tokenizer(path: str) -> Tokenizer:
    from penstock import _native

    try:
        return _native.Tokenizer(path)
    except ValueError as error:
        raise PenstockError(str(error)) from error


def _log_stage(name: str, seconds: float, detail: str) -> None:
    log.info("%s %.2f s (%s)", name, seconds, detail)


def _raw(options: Mapping[str, Option]) -> dict[str, Raw]:
    known = {flag.key for flag in FLAGS if flag.offline}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise PenstockError(
            f"LLM has no option {', '.join(unknown)}; there is {', '.join(sorted(known))}"
        )
    return {name: Raw(name, _texts(value)) for name, value in options.items()}


def _texts(value: Option) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (str(value),)


def _unbounded(config: EngineConfig) -> EngineConfig:
    """A batch has no queue limit."""
    return replace(config, scheduler=replace(config.scheduler, max_queue=UNBOUNDED))


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt is a text or a sequence of token ids; anything else is a sequence of prompts."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))
