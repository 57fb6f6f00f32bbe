"""Draws, rules and log-probabilities: those of the native decoder, plan by plan."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from penstock._native import decode_sampling, encode_sampling
from penstock.backends.torch.sampling import logit_processors as rules_module
from penstock.backends.torch.sampling import slots as slots_module
from penstock.backends.torch.sampling.logit_processors import RuledRow, Rules, changed
from penstock.backends.torch.sampling.slots import DeviceSlots, Updates
from penstock.core import LogprobRow, StepResult
from penstock.core.plan import LAST_SAMPLED
from tests.backends.torch.driving import SLOTS, Driver, Part, backend
from tests.backends.torch.test_families import PROMPT
from tests.limits import HANG
from tests.real_ranks import VOCAB

STEPS = 12
DRAWN: list[dict[str, object]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 12},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 1.1, "min_p": 0.1, "choice": 3},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.0},
    {"temperature": 2.0, "top_k": 1},
    {"temperature": 0.8, "seed": (1 << 64) - 5},
]
CHANGED: list[dict[str, object]] = [
    {"repetition_penalty": 1.8},
    {"presence_penalty": 1.5, "frequency_penalty": 0.7},
    {"bias": [(5, 4.5), (9, -100.0), (70, 4.0)], "temperature": 0.8},
    {"allowed": [3, 17, 40, 41, 42]},
    {"banned": [[206], [5, 6]], "temperature": 0.6},
    {"suppressed": list(range(0, 256, 2)), "suppressed_until": len(PROMPT) + 4},
    {"allowed": [7], "banned": [[7]]},
    {"repetition_penalty": 0.5, "temperature": 1.0, "logprobs": 3},
]


class Operations(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def run(device: str, parameters: list[dict[str, object]]) -> list[StepResult]:
    """A prompt for each of `parameters`, then a token of each in every step."""
    with backend("llama", device=device) as loaded:
        driver = Driver(loaded)
        for slot, fields in enumerate(parameters):
            text = PROMPT[: len(PROMPT) - slot]
            driver.register(slot, encode_sampling(**{"seed": slot, **fields}), (text, len(text)))
        results = [
            driver.run(Part(slot, PROMPT[: len(PROMPT) - slot])) for slot in range(len(parameters))
        ]
        each = [Part(slot, [LAST_SAMPLED]) for slot in range(len(parameters))]
        return results + [driver.run(*each) for _ in range(STEPS)]


@pytest.mark.parametrize("parameters", [DRAWN, CHANGED], ids=["drawn", "changed"])
def test_tokens_are_those_of_the_native_decoder(parameters: list[dict[str, object]]) -> None:
    assert len(parameters) <= SLOTS
    drawn, native = run("torch", parameters), run("cpu", parameters)
    assert [each.tokens.tolist() for each in drawn] == [each.tokens.tolist() for each in native]
    assert [each.counts for each in drawn] == [each.counts for each in native]
    for ours, theirs in zip(drawn, native, strict=True):
        same(ours.logprobs, theirs.logprobs)


def same(ours: dict[int, list[LogprobRow]], theirs: dict[int, list[LogprobRow]]) -> None:
    assert ours.keys() == theirs.keys()
    for index, rows in ours.items():
        for (logprob, rank, best), (expected, their_rank, their_best) in zip(
            rows, theirs[index], strict=True
        ):
            assert logprob == pytest.approx(expected, abs=1e-4)
            assert rank == their_rank
            assert [token for token, _ in best] == [token for token, _ in their_best]
            assert [v for _, v in best] == pytest.approx([v for _, v in their_best], abs=1e-4)


def test_drafts_are_drawn_with_the_rules_of_those_before_them() -> None:
    """A run that the drafts complete is banned, and a draft counts as output."""
    found = {}
    for device in ("torch", "cpu"):
        with backend("llama", device=device) as loaded:
            driver = Driver(loaded)
            driver.register(0)
            (first,) = driver.run(Part(0, PROMPT)).tokens
            greedy = driver.greedy(0, first, 4)
            fields = {"banned": [greedy[1:4]], "presence_penalty": 0.1, "logprobs": 2}
            driver.register(1, encode_sampling(**fields), (PROMPT, len(PROMPT)))
            driver.run(Part(1, PROMPT))
            result = driver.run(Part(1, greedy[:3], drafts=2))
            found[device] = (result.counts.tolist(), result.tokens.tolist())
            assert result.tokens[2] != greedy[3]
    assert found["torch"] == found["cpu"]


def rules_of(fields: dict[str, object], output: Sequence[int] = ()) -> Rules:
    params = decode_sampling(encode_sampling(**fields))
    return Rules(params, [*PROMPT, *output], len(PROMPT), VOCAB)


def test_rules_of_more_rows_are_no_more_operations() -> None:
    rules = rules_of({"repetition_penalty": 1.8, "presence_penalty": 0.5, "bias": [(5, 1.0)]}, [7])
    logits = torch.randn(6, VOCAB)
    counts = []
    for rows in (range(2, 4), range(1, 6)):
        ruled = [RuledRow(row, rules, 99, []) for row in rows]
        with Operations() as operations:
            found = changed(logits, ruled, 0)
        counts.append(operations.count)
        same = (found == logits).all(1)
        assert same.tolist() == [row not in rows for row in range(6)]
    assert counts[0] == counts[1]


def test_rules_behind_drafts_are_those_of_an_output_with_them() -> None:
    fields = {"repetition_penalty": 1.8, "frequency_penalty": 0.7, "banned": [[7, 8, 9]]}
    rules, logits = rules_of(fields, [5, 7]), torch.randn(2, VOCAB)
    ruled = [RuledRow(0, rules, 99, [5, 7, 8]), RuledRow(1, rules, 99, [])]
    found = changed(logits, ruled, 0)
    for row, output in enumerate(([5, 7, 5, 7, 8], [5, 7])):
        alone = changed(logits[row : row + 1], [RuledRow(0, rules_of(fields, output), 99, [])], 0)
        assert found[row].tolist() == alone[0].tolist()
    assert found[0, 9] == -torch.inf


@pytest.mark.parametrize("entries", [1, 70, 150])
def test_rules_of_many_tokens_are_applied_in_parts(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which bounds their memory, and changes no logit: also where all rows have rules, and where
    those of one leave nothing.
    """
    fields: list[dict[str, object]] = [
        {"repetition_penalty": 1.8, "bias": [(5, 1.0)]},
        {"presence_penalty": 0.5},
        {"allowed": [7], "banned": [[7]]},
        {"allowed": [3, 9], "repetition_penalty": 0.5},
    ]
    rules, logits = [rules_of(each, [5, 7]) for each in fields], torch.randn(5, VOCAB)
    for rows in (range(5), (0, 2, 3, 4)):
        ruled = [RuledRow(row, rules[row % 4], 99, []) for row in rows]
        expected = changed(logits, ruled, 0)
        with monkeypatch.context() as patch:
            patch.setattr(rules_module, "ENTRIES", entries)
            assert torch.equal(changed(logits, ruled, 0), expected)
        assert torch.equal(expected[2], logits[2])


def test_history_goes_on_after_a_preemption() -> None:
    """A sequence that is registered again with its output draws as if it had not been away."""
    rules = encode_sampling(presence_penalty=1.0, repetition_penalty=1.3)
    with backend("llama") as loaded:
        driver = Driver(loaded)
        driver.register(0, rules, (PROMPT, len(PROMPT)))
        tokens = driver.run(Part(0, PROMPT)).tokens.tolist()
        expected = driver.greedy(0, tokens[0], 8)
        text = [*PROMPT, *expected[:5]]
        driver.register(1, rules, (text, len(PROMPT)))
        (sixth,) = driver.run(Part(1, text)).tokens
        assert driver.greedy(1, sixth, 3) == expected[5:]


def test_prompt_tokens_are_scored_beside_draws_of_others() -> None:
    results = {}
    for device in ("torch", "cpu"):
        with backend("gemma2", device=device) as loaded:
            driver = Driver(loaded)
            driver.register(0, encode_sampling(logprobs=4))
            driver.register(1)
            plan = driver.plan(Part(0, PROMPT[:9]), Part(1, PROMPT[:30], score=True))
            plan.registrations[1] = type(plan.registrations[1])(
                1, plan.registrations[1].sampling, prompt_logprobs=5
            )
            plan.targets[-1] = -1
            results[device] = loaded.submit(plan).result(HANG)
    ours, theirs = results["torch"], results["cpu"]
    assert ours.counts == theirs.counts == array("i", [1, 1])
    assert len(ours.prompt_logprobs[1]) == 29
    same(ours.prompt_logprobs, theirs.prompt_logprobs)
    same(ours.logprobs, theirs.logprobs)


def test_a_registration_is_one_copy_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all bits of each parameter; a copy of its own would wait for the steps in flight."""
    copies: list[int] = []
    upload = slots_module.to_device

    def counted(columns: Sequence[Sequence[int]], device: torch.device) -> list[torch.Tensor]:
        copies.append(len(columns))
        return upload(columns, device)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a copy that waits")

    device = DeviceSlots(4, 3, 2, torch.device("cpu"))
    common = {"top_k": 7, "top_p": 0.3, "min_p": 0.05, "choice": 2}
    seeds = {3: (1 << 64) - 5, 0: 1 << 63, 1: (1 << 32) + 9}
    registered = [
        (slot, {**common, "temperature": 0.1 * slot, "seed": seed}) for slot, seed in seeds.items()
    ]
    monkeypatch.setattr(slots_module, "to_device", counted)
    monkeypatch.setattr(torch, "tensor", never)
    device.apply(Updates(array("i", [0, 13]), array("i", [5, 6]), registered))
    monkeypatch.undo()
    assert len(copies) == 1
    heat, top_k, top_p, min_p, seed, choice = (column[[3, 0, 1]] for column in device.sampling)
    assert [each % (1 << 64) for each in seed.tolist()] == list(seeds.values())
    assert heat.tolist() == pytest.approx([0.3, 0.0, 0.1])
    assert (top_k.tolist(), choice.tolist()) == ([7] * 3, [2] * 3)
    assert (top_p.unique().item(), min_p.unique().item()) == pytest.approx((0.3, 0.05))
    assert device.sampling[4][2] == 0
    found = device.tables(torch.tensor([0, 2]), None)[:, 0]
    assert found.tolist() == [[5, 0, 0], [0, 6, 0]]


def test_long_block_tables_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "WRITTEN", 4)
    device = DeviceSlots(2, 7, 1, torch.device("cpu"))
    places = array("i", [20, *range(9)])
    device.apply(Updates(places, array("i", range(30, 40))))
    found = device.tables(torch.arange(3), None).flatten().tolist()
    assert found == [*range(31, 40), *[0] * 11, 30]
