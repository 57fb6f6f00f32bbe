"""Sampling parameters of a request, with vLLM's names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock import core
from penstock.core import InvalidValueError, PenstockError
from penstock.core.errors import CodecError
from penstock.core.request import MAX_LOGPROBS, check_range
from penstock.llm.arguments import check_fields, checked_class
from penstock.llm.structured import StructuredOutputsParams

MAX_ID = 2**31 - 1
_BEAMS = "LLM.beam_search with BeamSearchParams searches for the likeliest texts"
_GRAMMAR = "use structured_outputs"
REPLACED = {
    **dict.fromkeys(("max_new_tokens", "max_completion_tokens", "max_length"), "use max_tokens"),
    **dict.fromkeys(("use_beam_search", "num_beams", "length_penalty", "early_stopping"), _BEAMS),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), _GRAMMAR),
    "best_of": "ask for n outputs with logprobs, and choose by cumulative_logprob",
    "num_return_sequences": "use n",
    "do_sample": "temperature=0 is greedy, any other samples",
    "logits_processors": "the sampler runs no code of its callers",
    "extra_args": "there are no plugins to read them",
    "output_kind": "results are complete requests; the server streams",
    "flat_logprobs": "log-probabilities are dictionaries",
}
"""Arguments of vLLM, the OpenAI API and transformers that are not implemented, with a remedy."""


@checked_class(REPLACED)
@dataclass(slots=True)
class SamplingParams:
    """How to continue prompts. `temperature=0` is greedy. Without a `seed`, each request gets a
    random one.

    `max_tokens` None means up to the model's length. `logprobs` and `prompt_logprobs` are numbers
    of alternatives (0 to 20), None for no log-probabilities. `logit_bias` is added to the logits of
    token ids. `allowed_token_ids`, if given, are the only tokens drawn. Texts in `bad_words` are
    never written. Longer prompts keep their last `truncate_prompt_tokens` tokens; -1 keeps as many
    as leave room for one token. Values are checked here, and again when a request begins.
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
    bad_words: Sequence[str] | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    """If False, outputs have tokens but an empty text. Must be True with stop strings."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """Must be True: the tokenizer defines the text of special tokens."""
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    """Grammar that the output must match. The output may end where it is complete."""
    guided_decoding: StructuredOutputsParams | None = None
    """Older name of `structured_outputs`."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check the values. Raises InvalidValueError or PenstockError, which names a value of a
        wrong type or out of range.
        """
        check_fields(self)
        if self.n < 1:
            raise InvalidValueError("n", self.n, "at least 1")
        if "" in self.stops:
            raise InvalidValueError("stop", self.stop, "texts that are not empty")
        if self.stops and not self.detokenize:
            raise InvalidValueError("detokenize", False, "True where there are stop texts")
        if not self.spaces_between_special_tokens:
            raise InvalidValueError("spaces_between_special_tokens", False, "True")
        if not 0 <= self.temperature < math.inf:
            raise InvalidValueError(
                "temperature", self.temperature, "a finite number of at least 0"
            )
        if not 0 < self.top_p <= 1:
            raise InvalidValueError("top_p", self.top_p, "a number in (0, 1]")
        if self.truncate_prompt_tokens is not None and (
            self.truncate_prompt_tokens < -1 or self.truncate_prompt_tokens == 0
        ):
            raise InvalidValueError(
                "truncate_prompt_tokens", self.truncate_prompt_tokens, "-1 or at least 1"
            )
        check_range("seed", self.seed or 0, 0, 2**64 - 1)
        check_range("top_k", self.top_k, -1, MAX_ID)
        check_range("logprobs", self.logprobs or 0, 0, MAX_LOGPROBS)
        check_range("prompt_logprobs", self.prompt_logprobs or 0, 0, MAX_LOGPROBS)
        self._check_token_ids()
        self._check_structure()
        self.generation(room=MAX_ID)
        self.encoded()

    def _check_token_ids(self) -> None:
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
            for token in getattr(self, name) or ():
                check_range(f"token id of {name}", token, 0, MAX_ID)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidValueError("allowed_token_ids", [], "at least one token id")

    def _check_structure(self) -> None:
        if self.structured_outputs and self.guided_decoding:
            raise InvalidValueError("guided_decoding", "both", "None with structured_outputs")
        if self.structure is None:
            return
        self.structure.grammar_text()
        if self.ignore_eos:
            raise InvalidValueError("ignore_eos", True, "False with structured_outputs")

    @property
    def structure(self) -> StructuredOutputsParams | None:
        return self.structured_outputs or self.guided_decoding

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def generation(self, room: int) -> core.GenerationParams:
        """The parameters that the scheduler needs. `room`: number of tokens that fit after the
        prompt.
        """
        return core.GenerationParams(
            max_tokens=max(room, 1) if self.max_tokens is None else self.max_tokens,
            min_tokens=self.min_tokens,
            prompt_logprobs=-1 if self.prompt_logprobs is None else self.prompt_logprobs,
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids or ()),
        )

    def encoded(self, seed: int = 0, **of_the_request: object) -> bytes:
        """The encoded sampling parameters; `seed` is used if the request has none. Raises
        InvalidValueError, which names a value out of range.
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
        except (CodecError, OverflowError) as error:
            raise PenstockError(f"sampling parameters: {error}") from error
