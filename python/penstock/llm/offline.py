"""`LLM`: an engine in this process, driven by its caller."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.config import EngineConfig, resolve
from penstock.core import InvalidValueError, PenstockError, PoolerOutput
from penstock.engine import InFlight
from penstock.engine.load_report import on_terminal, start_reported
from penstock.engine.startup import read_model
from penstock.engine.tiers import flush
from penstock.hub import locate, locate_tokenizer, locate_without_weights
from penstock.llm.arguments import checked
from penstock.llm.batch import Batch
from penstock.llm.beam import BeamSearchOutput, BeamSearchParams, search
from penstock.llm.metrics import Counted, Metric, metrics
from penstock.llm.options import Option, raw_settings
from penstock.llm.outputs import LogprobDict, RequestOutput
from penstock.llm.pooling import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    Pooled,
    PooledBatch,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    activated,
)
from penstock.llm.progress import Tqdm, open_progress
from penstock.llm.prompts import (
    ChatOptions,
    Message,
    Prompt,
    ReadPrompt,
    is_text,
    listed,
    read_conversation,
    read_prompt,
)
from penstock.llm.sampling import SamplingParams
from penstock.llm.tokenizer import Tokenizer, open_tokenizer
from penstock.llm.views import CacheView, EngineView, ModelView
from penstock.model import ModelInfo, sampling_defaults
from penstock.model.stand_in_tokenizer import tokenizer_of

if TYPE_CHECKING:
    from penstock import _native

UNBOUNDED = 2**31
ADAPTERS = "None: there are no adapters"
NOT_HERE = {
    "reward": "`encode` and `classify` give the numbers of a classification head",
    **dict.fromkeys(("sleep", "wake_up"), "`close` frees the memory, a new LLM takes it"),
    **dict.fromkeys(("collective_rpc", "apply_model"), "ranks run no code of their callers"),
    **dict.fromkeys(("start_profile", "stop_profile"), "`penstock bench latency` measures steps"),
}
"""Methods of vLLM's LLM that are not implemented, each with the reason for the error."""
log = logging.getLogger("penstock.llm")


class LLM:
    """A model in this process. `options` are the server's flags as keywords, such as
    `max_num_seqs=8`. vLLM options without a counterpart are ignored with a warning that gives the
    reason.

    `tokenizer` names a model whose tokenizer and template replace the model's own. `chat_template`
    is a file with a template, or its text. With `skip_tokenizer_init=True` there is no tokenizer:
    prompts are token ids, and outputs have no text.

    Each method raises ArgumentError or InvalidValueError for an argument that it does not have, or
    of a wrong type.
    """

    @checked
    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        tokenizer: str | None = None,
        revision: str | None = None,
        chat_template: str | None = None,
        **options: Option,
    ) -> None:
        raw = raw_settings(options)
        first = resolve(raw, "", "")
        dummy, self.textless = first.engine.model.dummy, first.server.skip_tokenizer_init
        if self.textless and (tokenizer or chat_template):
            key = "tokenizer" if tokenizer else "chat_template"
            raise InvalidValueError(key, tokenizer or chat_template, "None: no tokenizer is used")
        located = (locate_without_weights if dummy else locate)(os.fspath(model), revision)
        config = _unbounded(resolve(raw, str(located.path), located.served_name).engine)
        self._name = located.served_name
        self._card = located.sampling
        info = read_model(config)
        named = locate_tokenizer(tokenizer) if tokenizer else located
        vocab = info.spec.vocab
        with tokenizer_of(named.path, vocab, dummy=dummy, skipped=self.textless) as path:
            self._native = open_tokenizer(str(path), chat_template)
        _check_vocabulary(self._native, info)
        self._started = start_reported(config, _log_stage, on_terminal(), arrivals=False)
        self._in_flight = InFlight(
            self._started.scheduler, self._started.executor, rates=self._started.admin.rates
        )
        self._ids: Iterator[int] = count()
        self._request_ids: Iterator[int] = count()
        self._counted = Counted()
        self._closed = False

    @checked
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Tqdm = True,
        lora_request: None = None,
        priority: Sequence[int] | None = None,
        on_end: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Continue all prompts in one batch; results are in prompt order. A prompt is a text, token
        ids, or a mapping with `prompt` or `prompt_token_ids` and optionally `cache_salt`.

        With `scheduling_policy="priority"`, prompts with lower `priority` are computed first.
        `use_tqdm` shows progress on stderr: True, or a class like tqdm. `on_end` is called with
        each completed request; after Ctrl-C, the completed requests are the results.
        """
        if lora_request is not None:
            raise InvalidValueError("lora_request", lora_request, ADAPTERS)
        given = listed(prompts)
        params = self._params(sampling_params, len(given))
        read = [self._read(prompt) for prompt in given]
        if priority is not None:
            read = self._prioritized(read, priority)
        return self._run(read, params, use_tqdm, on_end)

    @checked
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Tqdm = True,
        lora_request: None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, with the model's chat template or the template
        text `chat_template`. With `continue_final_message` the last message is continued.

        `tools` and `chat_template_kwargs` are passed to the template. Content is always rendered as
        text; `chat_template_content_format` has no effect.
        """
        if lora_request is not None:
            raise InvalidValueError("lora_request", lora_request, ADAPTERS)
        if chat_template_content_format not in ("auto", "string", "openai"):
            raise InvalidValueError(
                "chat_template_content_format", chat_template_content_format, "auto or string"
            )
        if self.textless:
            raise PenstockError("chat needs a tokenizer: skip_tokenizer_init is True")
        options = ChatOptions(
            add_generation_prompt, continue_final_message, tools, chat_template_kwargs
        )
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else list(messages)
        tokenizer = self._native if chat_template is None else self._templated(chat_template)
        read = [read_conversation(each, options, tokenizer) for each in conversations]
        return self._run(read, self._params(sampling_params, len(read)), use_tqdm, None)

    @checked
    def beam_search(
        self,
        prompts: Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: None = None,
        use_tqdm: bool | Tqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The most likely continuations of each prompt, scored by the model's logits before any
        sampling parameter. Runs one round of `generate` for each token; the prefix cache keeps the
        beams.
        """
        if lora_request is not None:
            raise InvalidValueError("lora_request", lora_request, ADAPTERS)
        if concurrency_limit is not None and concurrency_limit < 1:
            raise InvalidValueError("concurrency_limit", concurrency_limit, "at least 1")
        eos = self._started.scheduler.limits.eos_token_ids

        def best(every: Sequence[list[int]], alternatives: int) -> list[LogprobDict]:
            wanted = SamplingParams(temperature=0, max_tokens=1, logprobs=alternatives)
            read = [ReadPrompt(None, ids) for ids in every]
            answers = self._run(read, [wanted] * len(read), False, None)
            return [(answer.outputs[0].logprobs or [{}])[0] for answer in answers]

        read = [self._read(prompt).ids for prompt in listed(prompts)]
        size = concurrency_limit or len(read) or 1
        found: list[BeamSearchOutput] = []
        for at in range(0, len(read), size):
            found += search(read[at : at + size], params, eos, best)
        for output in found:
            for beam in output.sequences:
                beam.text = self._native.output_text(beam.tokens, True)
        return found

    @checked
    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool | Tqdm = True,
        lora_request: None = None,
        pooling_task: str | None = None,
    ) -> list[PoolingRequestOutput]:
        """The pooled hidden state of each prompt, not scaled to unit length; for a model with a
        classification head, the logits of its labels.
        """
        params = _pooling(pooling_params, truncate_prompt_tokens, lora_request)
        found = self._pool(listed(prompts), params, use_tqdm)
        return [each.raw() for each in found]

    @checked
    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool | Tqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The embedding of each prompt, in `outputs.embedding`."""
        pooler = self._started.info.pooler
        if pooler.output == PoolerOutput.LABELS:
            raise PenstockError("a model with a classification head has no embeddings: use score")
        params = _pooling(pooling_params, truncate_prompt_tokens, lora_request)
        found = self._pool(listed(prompts), params, use_tqdm)
        unit = pooler.output == PoolerOutput.UNIT_EMBEDDING
        return [each.embedding(params, unit) for each in found]

    @checked
    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool | Tqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: None = None,
    ) -> list[ClassificationRequestOutput]:
        """The probability of each label of the model's classification head."""
        if self._started.info.pooler.output != PoolerOutput.LABELS:
            raise PenstockError("the model has no classification head")
        params = _pooling(pooling_params, None, lora_request)
        found = self._pool(listed(prompts), params, use_tqdm)
        return [each.probabilities(params) for each in found]

    @checked
    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool | Tqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: None = None,
    ) -> list[ScoringRequestOutput]:
        """Similarity of text pairs: a single `data_1` with each of `data_2`, or pair by pair. It is
        the cosine of the embeddings, or the classification head's score of both texts together.
        """
        left = [data_1] if isinstance(data_1, str) else list(data_1)
        right = [data_2] if isinstance(data_2, str) else list(data_2)
        if len(left) not in (1, len(right)):
            raise InvalidValueError("data_1", len(left), f"one text, or {len(right)}")
        params = _pooling(pooling_params, truncate_prompt_tokens, lora_request)
        pairs = list(zip(left * len(right) if len(left) == 1 else left, right, strict=True))
        if self._started.info.pooler.output == PoolerOutput.LABELS:
            return self._score_together(pairs, params, use_tqdm)
        from penstock._native import cosine

        found = self._pool([*left, *right], params, use_tqdm)
        ones, others = found[: len(left)], found[len(left) :]
        return [
            ScoringRequestOutput(
                other.request_id,
                one.ids + other.ids,
                one.cached_tokens + other.cached_tokens,
                outputs=ScoringOutput(cosine(one.vector, other.vector)),
            )
            for one, other in zip(
                ones * len(others) if len(ones) == 1 else ones, others, strict=True
            )
        ]

    def _score_together(
        self, pairs: Sequence[tuple[str, str]], params: PoolingParams, use_tqdm: bool | Tqdm
    ) -> list[ScoringRequestOutput]:
        if (size := self._started.info.pooler.size) != 1:
            raise PenstockError(f"the model's head has {size} labels, and a score is made of one")
        found = self._pool([one + other for one, other in pairs], params, use_tqdm)
        scores = [list(each.numbers()) for each in found]
        if params.use_activation is not False:
            scores = [activated(logits) for logits in scores]
        return [
            ScoringRequestOutput(
                each.request_id, each.ids, each.cached_tokens, outputs=ScoringOutput(score)
            )
            for each, (score,) in zip(found, scores, strict=True)
        ]

    def _pool(
        self, prompts: Sequence[Prompt], params: PoolingParams, use_tqdm: bool | Tqdm
    ) -> list[Pooled]:
        self._check_open()
        read = [self._read(prompt) for prompt in prompts]
        batch = PooledBatch(self._started, self._in_flight, self._native, self._ids)
        results = [Pooled(str(next(self._request_ids)), each.ids) for each in read]
        shown = open_progress(use_tqdm, len(read))

        def ended(pooled: Pooled) -> None:
            self._counted.requests += 1
            self._counted.prompt_tokens += len(pooled.ids)
            shown.ended(len(pooled.ids), 0)

        try:
            batch.run(read, params, results, ended)
        finally:
            shown.close()
        return results

    def get_tokenizer(self) -> Tokenizer:
        if self.textless:
            raise PenstockError("there is no tokenizer: skip_tokenizer_init is True")
        return Tokenizer(self._native, self._started.info.tokens)

    def get_default_sampling_params(self) -> SamplingParams:
        """Sampling defaults of the checkpoint, or those selected by options."""
        model = self._started.config.model
        defaults = sampling_defaults(
            self._card or self._started.info.generation,
            model.generation_config,
            model.override_generation_config,
        )
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        given = {name: getattr(defaults, name) for name in names}
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})

    def get_metrics(self) -> list[Metric]:
        """Metrics: state of the engine, and sums over its requests so far."""
        return metrics(self._started.scheduler.stats(), self._counted, self._name)

    @property
    def llm_engine(self) -> EngineView:
        config, limits = self._started.config, self._started.scheduler.limits
        return EngineView(
            ModelView(
                config.model.path, limits.max_model_len, config.model.seed, limits.vocab_size
            ),
            CacheView(
                config.cache.block_size, self._started.kv.num_blocks, config.cache.prefix_caching
            ),
            None if self.textless else self.get_tokenizer(),
        )

    def reset_prefix_cache(self) -> bool:
        """Clear all cached KV of earlier requests."""
        self._started.admin.clear()
        return True

    def close(self) -> None:
        """Write pending stores, free weights and KV blocks, stop the rank processes. Idempotent."""
        if self._closed:
            return
        self._closed = True
        flush(self._started.scheduler.tiers)
        self._started.close()

    def _check_open(self) -> None:
        if self._closed:
            raise PenstockError("this LLM is closed: make another one")

    def __getattr__(self, name: str) -> NoReturn:
        why = f": {NOT_HERE[name]}" if name in NOT_HERE else ""
        raise AttributeError(f"penstock.LLM has no {name!r}{why}")

    def _read(self, prompt: Prompt) -> ReadPrompt:
        if self.textless and is_text(prompt):
            raise InvalidValueError("prompts", prompt, "token ids, with skip_tokenizer_init")
        return read_prompt(prompt, self._native)

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, prompts: int
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        params = [given] * prompts if isinstance(given, SamplingParams) else given
        if len(params) != prompts:
            raise InvalidValueError(
                "sampling_params", len(params), f"one for each of {prompts} prompts"
            )
        for name in ("stop", "bad_words", "structured_outputs") if self.textless else ():
            if wrong := next((value for each in params if (value := getattr(each, name))), None):
                raise InvalidValueError(name, wrong, "None, with skip_tokenizer_init")
        return params

    def _run(
        self,
        prompts: Sequence[ReadPrompt],
        params: Sequence[SamplingParams],
        use_tqdm: bool | Tqdm,
        on_end: Callable[[RequestOutput], None] | None,
    ) -> list[RequestOutput]:
        self._check_open()
        if self._started.info.pooler.only:
            raise PenstockError(
                "the model has no output head and writes no text: use embed, encode or score"
            )
        shown = open_progress(use_tqdm, len(prompts))

        def drawn(request: RequestOutput) -> None:
            outputs = sum(len(output.token_ids) for output in request.outputs)
            shown.ended(len(request.prompt_token_ids), outputs)

        handed = [self._count, drawn, *([on_end] if on_end else [])]
        batch = Batch(self._started, self._in_flight, self._native, self._ids, handed)
        results = [
            batch.new_result(prompt, wanted, next(self._request_ids))
            for prompt, wanted in zip(prompts, params, strict=True)
        ]
        try:
            batch.run(prompts, params, results)
        finally:
            shown.close()
        return results

    def _prioritized(
        self, prompts: Sequence[ReadPrompt], priority: Sequence[int]
    ) -> list[ReadPrompt]:
        if len(priority) != len(prompts):
            raise InvalidValueError("priority", priority, f"one for each of {len(prompts)} prompts")
        if len(set(priority)) > 1 and not self._started.scheduler.limits.by_priority:
            expected = 'equal ones, or LLM(scheduling_policy="priority")'
            raise InvalidValueError("priority", priority, expected)
        pairs = zip(prompts, priority, strict=True)
        return [replace(prompt, priority=value) for prompt, value in pairs]

    def _count(self, request: RequestOutput) -> None:
        self._counted.requests += 1
        self._counted.prompt_tokens += len(request.prompt_token_ids)
        self._counted.generation_tokens += sum(len(each.token_ids) for each in request.outputs)

    def _templated(self, source: str) -> _native.Tokenizer:
        try:
            return self._native.with_chat_template(source)
        except ValueError as error:
            raise PenstockError(str(error)) from error


def _pooling(params: PoolingParams | None, keep: int | None, lora_request: None) -> PoolingParams:
    if lora_request is not None:
        raise InvalidValueError("lora_request", lora_request, ADAPTERS)
    params = params or PoolingParams()
    return params if keep is None else replace(params, truncate_prompt_tokens=keep)


def _check_vocabulary(tokenizer: _native.Tokenizer, info: ModelInfo) -> None:
    tokens, rows = tokenizer.vocab_size, info.spec.vocab
    if tokens > rows:
        raise PenstockError(
            f"the tokenizer has {tokens} tokens and the model's embedding {rows} rows: they are "
            "not of one model"
        )


def _log_stage(name: str, seconds: float, detail: str) -> None:
    log.info("%s %.2f s (%s)", name, seconds, detail)


def _unbounded(config: EngineConfig) -> EngineConfig:
    """`config` without a queue limit, which a batch does not need."""
    return replace(config, scheduler=replace(config.scheduler, max_queue=UNBOUNDED))
