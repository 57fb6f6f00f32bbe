"""Outputs within grammars: those of the native decoder, in steps of any order, with masks that are
there and masks that are late.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from penstock import LLM, SamplingParams, StructuredOutputsParams
from penstock.backends.torch.sampling import grammars
from penstock.backends.torch.sampling.grammars import (
    Constraint,
    RowMasks,
    allowed_tokens,
    replaced,
    within,
)
from penstock.core import StepResult
from penstock.core.plan import LAST_SAMPLED, LATE_MASK, NO_TOKEN
from tests.backends.torch.driving import Driver, Part, backend, dense
from tests.backends.torch.step.test_graphs import Recorder, kernels, recorded, recorder
from tests.backends.torch.test_families import PROMPT
from tests.backends.torch.test_steps import Late, on
from tests.e2e.test_tiny import write_tokenizer
from tests.limits import HANG
from tests.real_ranks import TINY, VOCAB

__all__ = ["kernels", "recorder"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"enum": [1, 22, 333]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "llama"
    shutil.copytree(TINY / "llama", directory)
    write_tokenizer(directory)
    return directory


def drawn(model: Path, **settings: object) -> list[tuple[str, list[int]]]:
    """Outputs of prompts with a schema, with a pattern and with nothing, in one batch."""
    schema = StructuredOutputsParams(json=SCHEMA)
    pattern = StructuredOutputsParams(regex="[a-f]{3}-[0-9]{4}|x+")
    options: dict[str, Any] = {"max_tokens": 90, "seed": 7, "n": 2}
    params = [
        SamplingParams(structured_outputs=schema, temperature=0.0, **{**options, "n": 1}),
        SamplingParams(structured_outputs=schema, temperature=1.4, **options),
        SamplingParams(
            structured_outputs=schema, temperature=1.1, repetition_penalty=1.3, **options
        ),
        SamplingParams(structured_outputs=pattern, temperature=0.9, top_p=0.9, **options),
        SamplingParams(temperature=0.8, **options),
    ]
    sizes = {"max_num_seqs": 8, "kv_cache_memory_bytes": "1MiB", "block_size": 16}
    llm = LLM(str(model), dtype="float32", **{**sizes, **settings})
    try:
        prompts = ["One", "A person:", "Two", "abc", "Three"]
        results = llm.generate(prompts, params, use_tqdm=False)
    finally:
        llm.close()
    return [
        (output.finish_reason or "", list(output.token_ids))
        for result in results
        for output in result.outputs
    ]


def test_outputs_are_those_of_the_native_decoder(model: Path) -> None:
    expected = drawn(model, device="cpu")
    assert drawn(model, device="torch") == expected
    assert drawn(model, device="torch", tensor_parallel_size=2) == expected
    for finish, tokens in expected[:5]:
        if finish == "stop":
            jsonschema.validate(json.loads(bytes(tokens[:-1])), SCHEMA)


class Scripted:
    """Masks that the test says: those of a grammar in which `follows` may follow an output."""

    def __init__(self) -> None:
        self.output: list[int] = []
        self.drafts: list[int] = []
        self.late = False

    def allowed(self, output: Sequence[int]) -> list[int]:
        """Ids that are unlike the last one in two bits, so that each mask is another."""
        last = output[-1] if output else 0
        return [token for token in range(VOCAB) if (token ^ last) & 3 == 3]

    def accept(self, tokens: list[int]) -> None:
        self.output += tokens
        self.drafts = []

    def expect(self, drafts: list[int]) -> None:
        self.drafts = drafts

    def mask(self, drafts: int, _timeout: float) -> bytes | int | None:
        if self.late:
            return LATE_MASK
        output = list(self.output)
        for draft in self.drafts[:drafts]:
            if draft not in self.allowed(output):
                return None
            output.append(draft)
        bits = np.zeros(VOCAB, np.uint8)
        bits[self.allowed(output)] = 1
        return np.packbits(bits, bitorder="little").tobytes()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Scripted]]:
    """The masks of sequences with a grammar, in the order of their registration."""
    made: list[Scripted] = []

    def start(*_: object) -> Constraint:
        made.append(Scripted())
        return Constraint(made[-1])  # type: ignore[arg-type]

    monkeypatch.setattr(grammars.Grammars, "start", start)
    return made


def stepwise(driver: Driver, count: int) -> list[int]:
    """Greedy tokens within the scripted grammar, by brute force: each is the best allowed one of
    the whole vocabulary's log-probabilities, and the prompt of the next.
    """
    found: list[int] = []
    while len(found) < count:
        driver.register(7)
        rows = driver.run(Part(7, [*PROMPT, *found], score=True))
        logprobs = dense(rows.prompt_logprobs[0])[-1]
        allowed = Scripted().allowed(found)
        found.append(allowed[int(np.argmax(logprobs[allowed]))])
    return found


def test_steps_submitted_ahead_are_drawn_within_the_grammar(scripted: list[Scripted]) -> None:
    device = Late()
    with on(device, "llama") as loaded:
        driver = Driver(loaded)
        expected = stepwise(driver, 6)
        driver.register(0, grammar=b"scripted")
        plans = [driver.plan(Part(0, PROMPT))]
        plans += [driver.plan(Part(0, [LAST_SAMPLED])) for _ in range(5)]
        steps = [loaded.submit(plan) for plan in plans]
        assert len(device.queue) == 6
        # The last one first: all of them have run then, and no result was read between them.
        found = [step.result(HANG).tokens[0] for step in reversed(steps)]
    assert found[::-1] == expected
    assert scripted[0].output == expected


def test_steps_in_graphs_are_drawn_within_the_grammar(
    scripted: list[Scripted], recorder: Recorder
) -> None:
    with recorded("llama", recorder) as loaded:
        driver = Driver(loaded)
        expected = stepwise(driver, 5)
        free = alone(driver)
        driver.register(0, grammar=b"scripted")
        driver.register(1)
        tokens = driver.run(Part(0, PROMPT), Part(1, PROMPT)).tokens.tolist()
        for _ in range(4):
            tokens += driver.run(Part(0, [LAST_SAMPLED]), Part(1, [LAST_SAMPLED])).tokens.tolist()
    assert tokens[::2] == expected
    assert tokens[1::2] == free
    assert recorder.replays > 0


def alone(driver: Driver) -> list[int]:
    driver.register(6)
    (first,) = driver.run(Part(6, PROMPT)).tokens
    return driver.greedy(6, first, 5)


def test_a_row_whose_mask_is_late_is_drawn_when_it_is_there(scripted: list[Scripted]) -> None:
    """Nor is one made ahead behind it; the sequence beside it goes on."""
    device = Late()
    with on(device, "llama") as loaded:
        driver = Driver(loaded)
        expected, free = stepwise(driver, 4), alone(driver)
        driver.register(0, grammar=b"scripted")
        driver.register(1)
        (first, other) = driver.run(Part(0, PROMPT), Part(1, PROMPT)).tokens
        assert [first, other] == [expected[0], free[0]]
        scripted[0].late = True
        ahead = [driver.plan(Part(0, [LAST_SAMPLED]), Part(1, [LAST_SAMPLED])) for _ in range(2)]
        steps = [loaded.submit(plan) for plan in ahead]
        late: StepResult = steps[0].result(HANG)
        scripted[0].late = False
        behind = steps[1].result(HANG)
        assert late.tokens.tolist() == [LATE_MASK, free[1]]
        assert behind.tokens.tolist() == [LATE_MASK, free[2]]
        driver.back(0, 2)
        again = [driver.plan(Part(0, [first])), driver.plan(Part(0, [LAST_SAMPLED]))]
        drawn = [step.result(HANG).tokens[0] for step in map(loaded.submit, again)]
        assert drawn == expected[1:3]


def test_drafts_count_while_the_grammar_allows_them(scripted: list[Scripted]) -> None:
    with backend("llama") as loaded:
        driver = Driver(loaded)
        expected = stepwise(driver, 6)
        wrong = next(t for t in range(VOCAB) if t not in Scripted().allowed(expected[:3]))
        driver.register(0, grammar=b"scripted")
        driver.run(Part(0, PROMPT))
        drafts = [*expected[1:3], wrong, wrong]
        result = driver.run(Part(0, [expected[0], *drafts], drafts=4))
        assert result.tokens.tolist() == expected[1:4]
        # KV of the two drafts that were wrong.
        driver.back(0, 2)
        tokens = [driver.run(Part(0, [LAST_SAMPLED])).tokens[0] for _ in range(2)]
    assert tokens == expected[4:6]


def test_a_mask_that_is_late_behind_drafts_ends_them(
    scripted: list[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend("llama") as loaded:
        driver = Driver(loaded)
        expected = stepwise(driver, 4)
        driver.register(0, grammar=b"scripted")
        driver.run(Part(0, PROMPT))
        there = scripted[0].mask

        def late(drafts: int, wait: float) -> bytes | int | None:
            return LATE_MASK if drafts == 2 else there(drafts, wait)

        with monkeypatch.context() as patch:
            patch.setattr(scripted[0], "mask", late)
            result = driver.run(Part(0, expected[:3], drafts=2))
        assert result.tokens.tolist() == expected[1:3]
        driver.back(0, 1)
        assert driver.run(Part(0, [LAST_SAMPLED])).tokens[0] == expected[3]


def test_masks_of_any_length_against_brute_force() -> None:
    """A vocabulary that is no multiple of a byte, masks shorter and longer than it."""
    draw = np.random.default_rng(0)
    logits = torch.zeros(5, 131)
    masks = RowMasks(bits={11: draw.bytes(17), 12: draw.bytes(3), 14: draw.bytes(40)})
    allowed = allowed_tokens(masks, range(10, 15), logits)
    assert allowed is not None
    assert allowed.shape == (5, 131)
    for row in range(5):
        own = masks.bits.get(10 + row)
        for token in range(131):
            inside = own is None or token < 8 * len(own)
            expected = inside and (own is None or bool(own[token // 8] >> token % 8 & 1))
            assert bool(allowed[row, token]) == expected
    assert allowed_tokens(masks, range(20, 30), logits) is None
    tokens = torch.full((5,), 130, dtype=torch.int32)
    lowest = [130 if allowed[row, 130] else allowed[row].tolist().index(True) for row in range(5)]
    assert within(allowed, tokens).tolist() == lowest
    by = {13: NO_TOKEN, 3: LATE_MASK}
    assert replaced(tokens, by, range(10, 15)).tolist() == [130, 130, 130, NO_TOKEN, 130]
