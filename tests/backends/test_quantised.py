"""Checkpoints that quantisation tools packed, on the native decoder, from config.json to logits:
those of transformers on the weights to which the tools dequantise them.
"""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core import WorkerFacts
from penstock.llm import LLM, SamplingParams
from tests.backends.torch.driving import Driver, Part, backend, dense
from tests.quantised_files import CHECKPOINTS, QUANTISED, Reference, reference

TOLERANCE = 1e-3
"""Largest difference of log-probabilities of float32, as a share of the largest logit."""
ROUNDED = 0.05
"""The same, with inputs rounded to 8 bits in groups."""
FORMS = {
    "auto-round-sym": "bf16+s4",
    "gptq-sym": "bf16+s4",
    "gptq8-sym": "bf16+w8",
    "packed4-sym": "bf16+s4",
    "packed8-sym": "bf16+w8",
}
"""Forms in which the decoder holds checkpoints that are symmetric and in order. Embedding and head
are plain, and the others are bfloat16.
"""


def read(
    checkpoint: str, expected: Reference, chunk: int, **settings: object
) -> tuple[np.ndarray, list[int], WorkerFacts]:
    """Log-probabilities after each token of the prompt in chunks, and what follows greedily."""
    rows, prompt = [], expected.tokens
    with backend(str(QUANTISED / checkpoint), device="cpu", **settings) as loaded:
        driver = Driver(loaded)
        driver.register(0)
        for start in range(0, len(prompt), chunk):
            part = Part(0, prompt[start : start + chunk], sample=False, score=True)
            rows += driver.run(part).prompt_logprobs[0]
        driver.back(0, 1)
        (first,) = driver.run(Part(0, prompt[-1:])).tokens
        return dense(rows), driver.greedy(0, first, len(expected.greedy)), loaded.facts


def error(logprobs: np.ndarray, expected: Reference) -> float:
    """Largest difference of log-probabilities, as a share of the largest logit."""
    off = np.abs(logprobs[expected.first :] - expected.logprobs).max()
    return float(off / np.abs(expected.logits).max())


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_float32_has_the_logits_of_the_dequantised_weights(checkpoint: str) -> None:
    expected = reference(checkpoint)
    logprobs, greedy, facts = read(checkpoint, expected, 7, quantization="none")
    assert facts.numerics.weights == ("f32",)
    assert error(logprobs, expected) <= TOLERANCE
    assert greedy == expected.greedy


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_codes_stay_codes_and_chunks_change_no_bit(checkpoint: str) -> None:
    expected = reference(checkpoint)
    whole, greedy, facts = read(checkpoint, expected, len(expected.tokens), dtype="auto")
    assert "+".join(facts.numerics.weights) == FORMS.get(checkpoint, "bf16")
    assert error(whole, expected) <= ROUNDED
    parts, again, _ = read(checkpoint, expected, 7, dtype="auto")
    assert np.array_equal(whole, parts)
    assert greedy == again


@pytest.mark.heavy
@pytest.mark.parametrize("checkpoint", ["packed4-asym", "gptq-order", "awq"])
def test_two_ranks_continue_as_the_dequantised_weights(checkpoint: str) -> None:
    expected = reference(checkpoint)
    llm = LLM(
        str(QUANTISED / checkpoint),
        skip_tokenizer_init=True,
        device="cpu",
        dtype="float32",
        quantization="none",
        kv_cache_memory_bytes="4MiB",
        tensor_parallel_size=2,
    )
    try:
        count = len(expected.greedy)
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        (answer,) = llm.generate([expected.tokens], params, use_tqdm=False)
    finally:
        llm.close()
    assert list(answer.outputs[0].token_ids) == expected.greedy
