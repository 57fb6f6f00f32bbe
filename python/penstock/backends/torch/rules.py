"""Rules of sequences that change logits before the draw, as `crates/decoder/src/sampler.rs`."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from penstock.backends.torch.grammars import NEVER
from penstock.backends.torch.inputs import to_device


def _places() -> array[int]:
    return array("i")


def _numbers() -> array[float]:
    return array("f")


@dataclass(slots=True)
class Changes:
    """What the rules of several rows change in logits [rows, vocabulary], in this order. A place is
    row * vocabulary + token; each is in a column once, but for `biased`.
    """

    vocab: int
    limited: array[int] = field(default_factory=_places)
    """Rows, of which `allowed` is left."""
    allowed: array[int] = field(default_factory=_places)
    never: array[int] = field(default_factory=_places)
    biased: array[int] = field(default_factory=_places)
    biases: array[float] = field(default_factory=_numbers)
    repeated: array[int] = field(default_factory=_places)
    repetitions: array[float] = field(default_factory=_numbers)
    """Divide what is above zero and multiply the rest."""
    counted: array[int] = field(default_factory=_places)
    penalties: array[float] = field(default_factory=_numbers)

    def places(self, row: int, tokens: Iterable[int]) -> array[int]:
        """Those of the tokens that there are."""
        return array("i", (row * self.vocab + each for each in tokens if each < self.vocab))

    def apply(self, logits: Tensor) -> Tensor:
        """Changed logits, by one copy to the device: it is not awaited."""
        places = (self.limited, self.allowed, self.never, self.biased, self.repeated, self.counted)
        numbers = (self.biases, self.repetitions, self.penalties)
        bits = [array("i", each.tobytes()) for each in numbers]
        columns = to_device([*places, *bits], logits.device)
        limited, allowed, never, biased, repeated, counted = (each.long() for each in columns[:6])
        biases, repetitions, penalties = (each.view(torch.float32) for each in columns[6:])
        changed, before = logits.clone(), logits.view(-1)
        flat = changed.view(-1)
        changed.index_fill_(0, limited, NEVER)
        flat[allowed] = before[allowed]
        flat.index_fill_(0, never, NEVER)
        flat.index_add_(0, biased, biases)
        own = flat[repeated]
        flat[repeated] = torch.where(own > 0.0, own / repetitions, own * repetitions)
        flat[counted] -= penalties
        # Rules that leave nothing are void: a token has to be drawn.
        nothing = changed.amax(1, keepdim=True) == NEVER
        return torch.where(nothing, logits, changed, out=changed)


class Rules:
    """Those of one sequence. `history` has `prompt_len` tokens of the prompt and the output so far,
    where rules need them; `accept` takes more in.
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

    def add(self, changes: Changes, row: int, position: int, drafts: Sequence[int]) -> None:
        """Add the changes of a row. `drafts` are the tokens between output and row."""
        p = self._params
        if p["allowed"]:
            changes.limited.append(row)
            changes.allowed += changes.places(row, set(p["allowed"]))
        output = [*self._output, *drafts]
        never = {run[-1] for run in p["banned"] if _ends_with(output, run[:-1])}
        if position < p["suppressed_until"]:
            never.update(p["suppressed"])
        changes.never += changes.places(row, never)
        for token, bias in p["bias"]:
            if token < changes.vocab:
                changes.biased += changes.places(row, [token])
                changes.biases.append(bias)
        self._penalise(changes, row, Counter(output))

    def _penalise(self, changes: Changes, row: int, counts: Mapping[int, int]) -> None:
        p = self._params
        repetition = p["repetition_penalty"]
        if repetition != 1.0:
            places = changes.places(row, self._prompt | set(counts))
            changes.repeated += places
            changes.repetitions += array("f", [repetition]) * len(places)
        frequency, presence = p["frequency_penalty"], p["presence_penalty"]
        if frequency or presence:
            changes.counted += changes.places(row, counts)
            changes.penalties.extend(
                frequency * count + presence
                for token, count in counts.items()
                if token < changes.vocab
            )


def _ends_with(tokens: Sequence[int], run: Sequence[int]) -> bool:
    return not run or list(tokens[-len(run) :]) == list(run)
