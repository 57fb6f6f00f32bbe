"""Pooled batches: parameters and results with vLLM's names, and the run of one batch."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock import core
from penstock.core import FinishReason, InvalidValueError, PenstockError, PoolerOutput, StepOutput
from penstock.engine import InFlight, Started
from penstock.llm.arguments import check_fields, checked_class
from penstock.llm.driving import drive
from penstock.llm.prompts import ReadPrompt

if TYPE_CHECKING:
    from penstock._native import Tokenizer


@checked_class()
@dataclass(slots=True)
class PoolingParams:
    """Post-processing of vectors: the first `dimensions` numbers, scaled to unit length if
    `normalize` (None: according to the checkpoint). With `use_activation`, logits of labels become
    probabilities. Longer prompts keep their first `truncate_prompt_tokens` tokens; -1 keeps as many
    as fit.
    """

    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    task: str | None = None
    """Ignored: the method that is called determines the task."""

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, size: int) -> None:
        """Check the values for vectors of `size` numbers. Raises InvalidValueError, which names a
        value of a wrong type or out of range.
        """
        check_fields(self)
        if self.dimensions is not None and not 1 <= self.dimensions <= size:
            raise InvalidValueError("dimensions", self.dimensions, f"1..{size}")
        keep = self.truncate_prompt_tokens
        if keep is not None and (keep < -1 or keep == 0):
            raise InvalidValueError("truncate_prompt_tokens", keep, "-1 or at least 1")


@dataclass(slots=True)
class PoolingOutput:
    data: array[float]
    """The pooled hidden state as unscaled f32 numbers. `numpy.asarray` and `torch.asarray` take it
    without a copy.
    """


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    score: float


@dataclass(slots=True)
class _Result:
    request_id: str
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(slots=True)
class PoolingRequestOutput(_Result):
    outputs: PoolingOutput = field(default_factory=lambda: PoolingOutput(array("f")))


@dataclass(slots=True)
class EmbeddingRequestOutput(_Result):
    outputs: EmbeddingOutput = field(default_factory=lambda: EmbeddingOutput([]))


@dataclass(slots=True)
class ClassificationRequestOutput(_Result):
    outputs: ClassificationOutput = field(default_factory=lambda: ClassificationOutput([]))


@dataclass(slots=True)
class ScoringRequestOutput(_Result):
    outputs: ScoringOutput = field(default_factory=lambda: ScoringOutput(0.0))


@dataclass(slots=True)
class Pooled:
    """The engine's result for one prompt."""

    request_id: str
    ids: list[int]
    vector: bytes = b""
    """Little-endian f32 numbers."""
    cached_tokens: int = 0

    def numbers(self) -> array[float]:
        found = array("f")
        found.frombytes(self.vector)
        return found

    def raw(self) -> PoolingRequestOutput:
        output = PoolingOutput(self.numbers())
        return PoolingRequestOutput(self.request_id, self.ids, self.cached_tokens, outputs=output)

    def embedding(self, params: PoolingParams, unit: bool) -> EmbeddingRequestOutput:
        from penstock._native import trimmed_vector

        wanted = params.normalize if params.use_activation is None else params.use_activation
        vector = trimmed_vector(self.vector, params.dimensions, unit if wanted is None else wanted)
        output = EmbeddingOutput(list(Pooled("", [], vector).numbers()))
        return EmbeddingRequestOutput(self.request_id, self.ids, self.cached_tokens, outputs=output)

    def probabilities(self, params: PoolingParams) -> ClassificationRequestOutput:
        logits = list(self.numbers())
        probs = logits if params.use_activation is False else activated(logits)
        output = ClassificationOutput(probs)
        return ClassificationRequestOutput(
            self.request_id, self.ids, self.cached_tokens, outputs=output
        )


def activated(logits: list[float]) -> list[float]:
    """Probabilities: sigmoid of a single logit, softmax of several."""
    if len(logits) == 1:
        logits = [logits[0], 0.0]
        return softmax(logits)[:1]
    return softmax(logits)


def softmax(logits: list[float]) -> list[float]:
    most = max(logits)
    powers = [math.exp(logit - most) for logit in logits]
    return [power / sum(powers) for power in powers]


class PooledBatch:
    """A batch of pooled requests. `ids` yields numbers for sequences, each once."""

    def __init__(
        self, started: Started, in_flight: InFlight, tokenizer: Tokenizer, ids: Iterator[int]
    ) -> None:
        if started.info.pooler.output == PoolerOutput.NONE:
            raise PenstockError("the engine keeps the hidden states of this model to itself")
        self._started = started
        self._in_flight = in_flight
        self._tokenizer = tokenizer
        self._ids = ids
        self._pending: dict[int, Pooled] = {}

    def run(
        self,
        prompts: Sequence[ReadPrompt],
        params: PoolingParams,
        results: list[Pooled],
        on_end: Callable[[Pooled], None],
    ) -> None:
        """Fill `results` (one for each prompt) until all requests have ended."""
        params.check(self._started.info.pooler.size)

        def submit() -> None:
            for prompt, result in zip(prompts, results, strict=True):
                result.ids = self._cut(prompt, params.truncate_prompt_tokens)
                self._submit(prompt.salt, result)

        def take(row: StepOutput) -> None:
            held = self._pending[row.id]
            if row.finish is not FinishReason.STOP:
                raise PenstockError(row.error)
            held.vector, held.cached_tokens = row.vector, row.cached_tokens
            on_end(self._pending.pop(row.id))

        drive(self._started, self._in_flight, submit, take)

    def _submit(self, salt: bytes, result: Pooled) -> None:
        request_id = next(self._ids)
        self._started.scheduler.add(
            core.Request(
                request_id,
                array("i", result.ids),
                core.GenerationParams(max_tokens=1),
                time.monotonic(),
                pool=True,
                cache_salt=salt,
                sampling=greedy(),
            )
        )
        self._pending[request_id] = result

    def _cut(self, prompt: ReadPrompt, keep: int | None) -> list[int]:
        """The prompt's first `keep` tokens (-1: as many as fit; None: all). Special tokens around a
        text are kept.
        """
        from penstock._native import shortened_ids

        most = self._started.scheduler.limits.max_model_len if keep == -1 else keep
        if most is None or len(prompt.ids) <= most:
            return prompt.ids
        bare = prompt.ids if prompt.text is None else self._tokenizer.encode(prompt.text, False)
        return shortened_ids(prompt.ids, bare, most, False)


def greedy() -> bytes:
    from penstock._native import encode_sampling

    return encode_sampling()
