"""Every family on torch's CPU device in float32: the logits of transformers and of the native
decoder.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from penstock.core import Pooling
from penstock.core.plan import LAST_SAMPLED
from tests.backends.torch.driving import Driver, Part, backend, dense
from tests.families import FAMILIES, GGUF_FAMILIES, MAPPINGS
from tests.limits import HANG
from tests.real_ranks import TINY

MARGIN = 1e-4
PROMPT = [(7 * i * i + 3) % 256 for i in range(60)]


@cache
def reference(family: str) -> tuple[list[int], list[int], np.ndarray]:
    """A prompt, what follows it greedily, and log-probabilities after each token."""
    found = json.loads((TINY / family / "reference.json").read_text())
    logits = np.fromfile(TINY / family / found["logits"], dtype="<f4").reshape(found["shape"])
    wide = logits.astype(np.float64)
    return found["tokens"], found["greedy"], wide - np.log(np.exp(wide).sum(1, keepdims=True))


def read(
    model: str, prompt: list[int], chunk: int, device: str = "torch", **settings: object
) -> tuple[np.ndarray, list[int]]:
    """Log-probabilities after each token of a prompt in chunks, and 16 greedy tokens after it."""
    rows = []
    with backend(model, device=device, **settings) as loaded:
        driver = Driver(loaded)
        driver.register(0)
        for start in range(0, len(prompt), chunk):
            part = prompt[start : start + chunk]
            rows += driver.run(Part(0, part, sample=False, score=True)).prompt_logprobs[0]
        driver.back(0, 1)
        (first,) = driver.run(Part(0, prompt[-1:])).tokens
        return dense(rows), driver.greedy(0, first, 16)


@pytest.mark.parametrize("family", FAMILIES + MAPPINGS)
def test_a_family_has_the_logits_of_transformers(family: str) -> None:
    prompt, greedy, expected = reference(family)
    logprobs, found = read(family, prompt, len(prompt))
    assert np.abs(logprobs - expected).max() <= MARGIN
    assert found == greedy


@pytest.mark.parametrize("model", [*FAMILIES, *GGUF_FAMILIES])
def test_a_checkpoint_has_the_logits_of_the_native_decoder_in_any_chunks(model: str) -> None:
    native, greedy = read(model, PROMPT, len(PROMPT), device="cpu")
    for chunk in (len(PROMPT), 7):
        logprobs, found = read(model, PROMPT, chunk)
        assert np.abs(logprobs - native).max() <= MARGIN
        assert found == greedy


@pytest.mark.parametrize("pooling", [Pooling.LAST, Pooling.MEAN])
def test_vectors_are_those_of_the_native_decoder(pooling: Pooling) -> None:
    found = {}
    for device in ("torch", "cpu"):
        with backend("qwen3", device=device) as loaded:
            driver = Driver(loaded)
            driver.register(0)
            driver.register(1)
            plan = driver.plan(Part(0, PROMPT[:20], sample=False), Part(1, PROMPT))
            new = replace(plan.registrations[0], pooling=pooling)
            plan.registrations[0] = new
            first = loaded.submit(plan).result(HANG)
            last = driver.run(Part(1, [LAST_SAMPLED]), Part(0, PROMPT[20:]))
            assert (first.vectors, list(last.counts)) == ({}, [1, 0])
            found[device] = np.frombuffer(last.vectors[1], dtype="<f4")
    assert np.abs(found["torch"] - found["cpu"]).max() <= MARGIN
    assert np.abs(found["cpu"]).max() > 0.1
