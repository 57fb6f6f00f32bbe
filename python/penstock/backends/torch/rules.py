"""Rules of one sequence that change logits before the draw, as `crates/decoder/src/sampler.rs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from penstock.backends.torch.grammars import NEVER


class Rules:
    """`history` has `prompt_len` tokens of the prompt and the output so far, where rules need
    them; `accept` takes more in.
    """

    def __init__(self, params: Mapping[str, Any], history: Sequence[int], prompt_len: int) -> None:
        self._params = params
        self._prompt = set(history[:prompt_len])
        self._output = list(history[prompt_len:])
        self.needs_history = (
            params["repetition_penalty"] != 1.0
            or params["presence_penalty"] != 0.0
            or params["frequency_penalty"] != 0.0
            or any(len(run) > 1 for run in params["banned"])
        )

    def accept(self, tokens: Sequence[int]) -> None:
        if self.needs_history:
            self._output.extend(tokens)

    def change(self, position: int) -> bool:
        """Whether anything changes logits at `position`."""
        p = self._params
        return bool(
            self.needs_history
            or p["bias"]
            or p["allowed"]
            or p["banned"]
            or (p["suppressed"] and position < p["suppressed_until"])
        )

    def apply(self, logits: Tensor, position: int, drafts: Sequence[int]) -> None:
        """Change a row of logits in place. `drafts` are the tokens between output and row."""
        before = logits.clone()
        self._mask(logits, before, position, drafts)
        for token, bias in self._params["bias"]:
            if token < len(logits):
                logits[token] += bias
        self._penalise(logits, drafts)
        # Rules that leave nothing are void: a token has to be drawn.
        logits.copy_(torch.where((logits == NEVER).all(), before, logits))

    def _mask(self, logits: Tensor, before: Tensor, position: int, drafts: Sequence[int]) -> None:
        p = self._params
        if p["allowed"]:
            allowed = self._ids(logits, p["allowed"])
            logits.fill_(NEVER)
            logits[allowed] = before[allowed]
        output = [*self._output, *drafts]
        for run in p["banned"]:
            start, last = list(run[:-1]), run[-1]
            if (not start or output[-len(start) :] == start) and last < len(logits):
                logits[last] = NEVER
        if p["suppressed"] and position < p["suppressed_until"]:
            logits[self._ids(logits, p["suppressed"])] = NEVER

    def _penalise(self, logits: Tensor, drafts: Sequence[int]) -> None:
        p = self._params
        counts = Counter([*self._output, *drafts])
        repetition = p["repetition_penalty"]
        if repetition != 1.0:
            ids = self._ids(logits, sorted(self._prompt | set(counts)))
            chosen = logits[ids]
            logits[ids] = torch.where(chosen > 0.0, chosen / repetition, chosen * repetition)
        frequency, presence = p["frequency_penalty"], p["presence_penalty"]
        if counts and (frequency or presence):
            ids = self._ids(logits, list(counts))
            each = [frequency * counts[token] + presence for token in ids.tolist()]
            logits[ids] -= torch.tensor(each, dtype=logits.dtype, device=logits.device)

    @staticmethod
    def _ids(logits: Tensor, tokens: Sequence[int]) -> Tensor:
        known = [token for token in tokens if token < len(logits)]
        return torch.tensor(known, dtype=torch.long, device=logits.device)
