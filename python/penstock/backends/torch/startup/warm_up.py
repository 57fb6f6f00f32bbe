"""Warm-up: steps before the first request, with the peak memory of any later step.

The KV pools of a GPU get the memory that these steps leave. The steps therefore cover every kind of
peak: the most rows in the most sequences with full block tables, sampling with all options that a
request can set, pooled vectors of whole prompts. They also compile kernels. Prefill kernels have
tile sizes that depend on the number of rows: prompts of doubling length cover them. Decode has a
merge kernel for each number of splits: steps of one row with increasingly wide block tables cover
them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from penstock.backends.torch.checks import Limits
from penstock.backends.torch.inputs import order_of, pack
from penstock.backends.torch.kernels.decode import split_count, split_tokens
from penstock.backends.torch.layers.model import Model, one_of_each
from penstock.backends.torch.load.weights import HeadWeights, MixerWeights, MixtureWeights
from penstock.backends.torch.runtime import accelerated, runtime
from penstock.backends.torch.sampling.grammars import RowMasks
from penstock.backends.torch.sampling.logit_processors import ENTRIES, RuledRow, Rules
from penstock.backends.torch.sampling.sampling import HEAD_ROWS, Draws, draw, score
from penstock.backends.torch.sampling.slots import WRITTEN, DeviceSlots, Updates
from penstock.backends.torch.startup.tuning import tune, tune_widening
from penstock.backends.torch.step.captures import Captures
from penstock.backends.torch.step.flash import FlashInfer, planned
from penstock.backends.torch.step.graphs import draw_all
from penstock.core import StepPlan
from penstock.core.request import MAX_LOGPROBS
from penstock.model.spec import Attention

LARGEST_TILE = 128
"""Maximum rows of a tile in the prefill attention kernels."""
OTHERS = 8
"""Maximum number of tokens per row in rules other than the repetition penalty."""


def warm_up(
    model: Model,
    slots: DeviceSlots,
    limits: Limits,
    flash: FlashInfer | None = None,
    captures: Captures | None = None,
) -> None:
    """Run steps of `limits.tokens` rows, sample as many rows as a step can, and capture all graphs.

    The steps have one layer of each kind. All ranks of a stage must call this. The sequences use
    the padding slot, whose block table is all zeros: they write to the first block of each KV
    group, which is still unused.
    """
    some = one_of_each(model)
    with torch.inference_mode():
        tune_widening(some, limits.tokens)
        _write_tables(slots)
        width = -(-limits.max_position // limits.block_size)
        # Initialise the libraries before anything is timed. Tuning uses all layers, because the
        # device's cache would hold the matrices of a single one.
        step(some, slots, limits, flash, [1], width)
        tune(model)
        if accelerated(slots.last.device):
            # Each measured graph had a private pool, and unused widening scratch belongs to another
            # stream. Steps cannot reuse either, and torch would keep both.
            runtime(slots.last.device).empty_cache()
        first, *others = largest(some, slots, limits)
        step(some, slots, limits, flash, first, width, draws=True)
        for rows in others:
            step(some, slots, limits, flash, rows, width)
        for count in _prompts(some, limits):
            step(some, slots, limits, flash, [count], None)
        for tokens in split_tokens(limits.max_position):
            step(some, slots, limits, flash, [1], -(-tokens // limits.block_size))
        if captures is not None:
            captures.capture_all()


def step(
    model: Model,
    slots: DeviceSlots,
    limits: Limits,
    flash: FlashInfer | None,
    parts: list[int],
    blocks: int | None,
    *,
    draws: bool = False,
) -> None:
    """Run one step of new sequences with `parts[i]` rows each. `blocks`: block table entries to
    read; None: as many as the rows need. `draws`: also sample and pool.
    """
    plan = StepPlan(
        0,
        slots=array("i", [slots.padding] * len(parts)),
        starts=array("i", [0] * len(parts)),
        lengths=array("i", parts),
        tokens=array("i", [0] * sum(parts)),
    )
    alone = _without_stages(model, len(plan.tokens))
    order = order_of(plan)
    inputs = pack(plan, order, limits.block_size, slots.last.device)
    tables = slots.tables(inputs.slots, blocks or inputs.blocks)
    x = alone.forward(planned(flash, inputs, plan, order, tables), tables, slots.last)
    if draws and model.shard.has_head:
        # Measures the memory that a request with mean pooling needs.
        alone.final(x).double().sum(0)
        _draw(alone, slots, x[:HEAD_ROWS])
    if parts == [1] and model.shard.has_head:
        # Sample in the same way as the CUDA graphs.
        draw_all(alone, slots, x, inputs.slots, inputs.lengths)


def _draw(model: Model, slots: DeviceSlots, x: Tensor) -> None:
    """Sample a token for each row with all options at once: a grammar, log-probabilities, and logit
    processors in all rows but one, which takes more memory than in all rows.
    """
    logits = model.logits(x)
    if logits is None:
        return
    part = range(len(x))
    rules = _rules(model.spec.vocab)
    draws = Draws(rules=[RuledRow(row, rules, 0, ()) for row in part[1:] or part])
    every = b"\xff" * -(-model.spec.vocab // 8)
    padding = torch.full((len(x),), slots.padding, dtype=torch.int32, device=x.device)
    given = (draws, part, padding, torch.zeros_like(padding), slots)
    masks = RowMasks(bits=dict.fromkeys(part, every))
    drawn = draw(logits, x.isfinite().all(1), *given, masks)
    score(logits, drawn, MAX_LOGPROBS)


def _rules(vocab: int) -> Rules:
    """Logit processors of all kinds, with as many tokens as one pass can apply for HEAD_ROWS
    rows.
    """
    seen = range(min(vocab, ENTRIES // HEAD_ROWS - OTHERS))
    params = {
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "banned": [(0,)],
        "suppressed": [0],
        "suppressed_until": 1,
        "allowed": [0, 1],
        "bias": [(0, 0.1)],
    }
    return Rules(params, [*seen, 0], len(seen), vocab)


def _write_tables(slots: DeviceSlots) -> None:
    """Write as many block table entries at once as a step of new sequences with long
    prefixes can.
    """
    zeros = array("i", bytes(4 * min(slots.entries, WRITTEN)))
    slots.apply(Updates(places=zeros, blocks=zeros))


def _prompts(model: Model, limits: Limits) -> list[int]:
    """Prompt lengths (powers of two) that cover every tile size of the kernels: of attention up to
    LARGEST_TILE rows, and of a mixture up to the largest step, because its rows are divided among
    the experts.
    """
    mixture = any(isinstance(each.feed_forward, MixtureWeights) for each in model.weights.layers)
    most = min(limits.tokens, limits.max_position)
    most = most if mixture else min(most, LARGEST_TILE)
    return [1 << power for power in range(1, most.bit_length())]


def largest(model: Model, slots: DeviceSlots, limits: Limits) -> list[list[int]]:
    """The steps with peak memory, each as its sequences' numbers of rows. The first has the most
    sequences, with all remaining rows in one or several of them. The others have the number of
    one-row sequences that gives the most attention splits in total.
    """
    decodes = min(limits.slots - 1, limits.tokens // 2)
    whole, rest = divmod(limits.tokens - decodes, limits.max_position)
    most = [1] * decodes + [limits.max_position] * whole + [rest] * (rest > 0)

    def with_most_parts(programs: int) -> int:
        def parts(rows: int) -> int:
            return rows * split_count(rows * programs, limits.max_position, slots.last.device)

        return max(range(1, min(limits.slots, limits.tokens) + 1), key=parts)

    found = {with_most_parts(programs) for programs in _programs(model)}
    return [most, *([1] * rows for rows in sorted(found))]


def _programs(model: Model) -> Sequence[int]:
    """Numbers of programs that decode attention may use for a row without splits (one per KV head
    in grouped-query attention). Ranks of a stage must sum the same rows but may have different
    numbers of KV heads, so each rank covers all possible numbers.
    """
    mixers = [layer.mixer for layer in model.weights.layers]
    if model.shard.ranks == 1:
        return [max((_kv_heads(each) for each in mixers), default=1)]
    specs = (each.spec for each in mixers)
    most = max((each.kv_heads for each in specs if isinstance(each, Attention)), default=1)
    return range(1, most + 1)


def _kv_heads(mixer: MixerWeights) -> int:
    own = mixer.projections
    return own.hk if isinstance(own, HeadWeights) else 1


def _without_stages(model: Model, rows: int) -> Model:
    """The model without connections to other stages, which may not have allocated yet: it receives
    zeros and sends nothing.
    """
    ranks = model.ranks
    before = None if ranks.before is None else Zeroes(rows)
    return replace(model, ranks=replace(ranks, before=before, after=None))


@dataclass(frozen=True, slots=True)
class Zeroes:
    """A simulated previous stage that sends zeros."""

    rows: int

    def receive(self, like: Tensor) -> Tensor:
        return torch.zeros(self.rows, len(like), device=like.device)
