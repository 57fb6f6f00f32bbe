"""Validation of requests, and their conversion to sequences."""

from __future__ import annotations

from penstock.core import Pooling, Request
from penstock.kv import KvCache
from penstock.scheduler.limits import Limits
from penstock.scheduler.sequence import Sequence


class Intake:
    def __init__(self, limits: Limits, kv: KvCache) -> None:
        self._limits = limits
        self._kv = kv
        self._arrivals = 0

    def sequence(self, request: Request) -> Sequence:
        self._arrivals += 1
        params, limits = request.params, self._limits
        prompt_len = len(request.prompt) - request.resumed
        stops = frozenset(params.stop_token_ids)
        pooling = limits.pooling if request.pool else Pooling.NONE
        # Prompt logprobs and mean pooling need the output at every position. Positions from the
        # prefix cache have no output, so such a sequence does not use the cache.
        whole = params.prompt_logprobs >= 0 or pooling is Pooling.MEAN
        return Sequence(
            request=request,
            order=(request.priority if limits.by_priority else 0, self._arrivals),
            prompt_len=prompt_len,
            length_limit=prompt_len + 1
            if request.pool
            else min(prompt_len + params.max_tokens, limits.max_model_len),
            min_length=prompt_len + params.min_tokens,
            stops=stops if params.ignore_eos else stops | limits.eos_token_ids,
            reads_cache=request.read_prefix_cache and not whole,
            prompt_logprobs=params.prompt_logprobs,
            tokens=request.prompt[:],
            table=self._kv.table(),
            pooling=pooling,
        )

    def refusal(self, request: Request) -> str:
        """Reason why the engine can never compute the request; empty if the engine can."""
        prompt, limits = request.prompt, self._limits
        longest = len(prompt) if request.pool else len(prompt) + 1
        if longest > limits.max_model_len:
            return (
                f"the prompt has {len(prompt)} tokens, "
                f"the maximum model length is {limits.max_model_len}"
            )
        if min(prompt) < 0 or max(prompt) >= limits.vocab_size:
            return f"the prompt holds a token id outside the vocabulary of {limits.vocab_size}"
        return self.too_large(longest)

    def too_large(self, tokens: int) -> str:
        """Error text if even an empty KV pool cannot hold `tokens` tokens of one sequence, else an
        empty string.
        """
        shortage = self._kv.shortage(tokens)
        if shortage is None:
            return ""
        needed, total = shortage
        return (
            f"the request needs {needed} KV blocks of {self._kv.block_size} tokens, the pool has "
            f"{total}: raise --kv-cache-memory-bytes or shorten the request"
        )
