"""The default model against transformers in float32: tokens and probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config import Raw, resolve
from penstock.core import Allocation, PenstockError
from penstock.core.plan import LogprobRow
from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.fakes.plans import one_sequence, registration

np = pytest.importorskip("numpy", reason="install numpy to read the reference")

GREEDY_FILES = ["greedy_ref.json", "smollm2_greedy.json"]
FORCED_FILES = ["smollm2_teacher_forced.npz", "smollm2_teacher_forced_2.npz"]
SLOWER = ["avx2", "portable"]
ALTERNATIVES = 1024
"""Enough to find the reference's best 64 among ours."""


def greedy_entries(shared: Path) -> list[dict[str, Any]]:
    found = []
    for name in GREEDY_FILES:
        entries = json.loads((shared / "reference" / name).read_text())
        found += [entry for entry in entries if entry["dtype"].endswith("float32")]
    assert len(found) >= 8
    return found


@pytest.fixture(scope="module")
def exact(serve: Serve) -> Iterator[httpx.Client]:
    """A server that computes in float32."""
    with serve("--quantization", "none") as server, server.client() as client:
        yield client


def answer(client: httpx.Client, entry: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Token ids of the prompt and of the answer."""
    common = {"temperature": 0, "max_tokens": len(entry["out_ids"]), "return_token_ids": True}
    if entry.get("chat"):
        messages = [{"role": "user", "content": entry["prompt"]}]
        body = sse.post(client, "/v1/chat/completions", {**common, "messages": messages})
        return body["prompt_token_ids"], body["choices"][0]["token_ids"]
    choice = sse.complete(client, entry["prompt"], **common)
    return choice["prompt_token_ids"], choice["token_ids"]


def test_greedy_answers_are_those_of_the_reference(exact: httpx.Client, shared: Path) -> None:
    for entry in greedy_entries(shared):
        prompt, tokens = answer(exact, entry)
        assert prompt == entry["prompt_ids"], entry["prompt"]
        assert tokens == entry["out_ids"], entry["prompt"]


@pytest.mark.parametrize("name", FORCED_FILES)
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echoed_logprobs_are_those_of_the_reference(
    exact: httpx.Client, shared: Path, name: str, max_tokens: int
) -> None:
    reference = np.load(shared / "reference" / name)
    ids = reference["token_ids"].tolist()
    rows = sse.complete(exact, ids, max_tokens, echo=True, logprobs=1)["logprobs"]
    assert rows["token_logprobs"][0] is None
    assert len(rows["token_logprobs"]) == len(ids) + max_tokens
    ours = np.array(rows["token_logprobs"][1 : len(ids)])
    assert np.abs(ours - reference["next_logprob"]).max() < 1e-3


class Forced:
    """Our probabilities on the default path, next to the reference's."""

    def __init__(self, rows: list[LogprobRow], reference: Any) -> None:
        self.chosen = np.array([row[0] for row in rows])
        self.chosen_reference = reference["next_logprob"]
        self.best = np.array([row[2][0][0] for row in rows])
        ids = reference["top_ids"][: len(rows)]
        self.best_reference = ids[:, 0]
        self.top_reference = reference["top_logprobs"][: len(rows)].astype(np.float64)
        ours = [dict(row[2]) for row in rows]
        self.top = np.array(
            [[ours[i][token] for token in row] for i, row in enumerate(ids.tolist())]
        )

    def divergence(self) -> float:
        """Mean KL(reference || ours) over the reference's best tokens and one bucket for all
        others.
        """
        p, q = np.exp(self.top_reference), np.exp(self.top)
        p_rest, q_rest = (np.maximum(1 - part.sum(axis=1), 1e-9) for part in (p, q))
        inside = (p * (self.top_reference - self.top)).sum(axis=1)
        return float((inside + p_rest * np.log(p_rest / q_rest)).mean())

    def perplexity_ratio(self) -> float:
        return float(np.exp(self.chosen_reference.mean() - self.chosen.mean()))

    def agreement(self) -> float:
        """How often the best token is the same, where the reference is not torn between two."""
        clear = self.top_reference[:, 0] - self.top_reference[:, 1] >= 0.1
        return float((self.best == self.best_reference)[clear].mean())


def worker(model: Path, isa: str) -> Any:
    """The decoder as the server runs it; over HTTP there are 20 alternatives at most."""
    from penstock.backends import load_backend
    from penstock.engine.startup import read_model

    settings = {"isa": isa, "max_num_batched_tokens": "1024", "kv_cache_memory_bytes": "64MiB"}
    raw = {key: Raw("test", (value,)) for key, value in settings.items()}
    config = resolve(raw, str(model), "model").engine
    info = read_model(config)
    try:
        backend = load_backend(config, info)
    except PenstockError as error:
        pytest.skip(f"this machine cannot run {isa} kernels: {error}")
    (group,) = backend.kv_spec().groups
    backend.allocate(Allocation((config.cache.memory_bytes // group.block_bytes,)))
    return backend


def teacher_forced(worker: Any, ids: list[int]) -> list[LogprobRow]:
    blocks = range(-(-len(ids) // 32))
    new = registration(prompt_logprobs=ALTERNATIVES)
    targets = [*ids[1:], -1]
    plan = one_sequence(1, ids, 0, blocks, new=new, sample=False, targets=targets)
    rows: list[LogprobRow] = worker.submit(plan).result().prompt_logprobs[0]
    return rows


@pytest.mark.parametrize("name", FORCED_FILES)
@pytest.mark.parametrize(
    "isa", ["auto", *(pytest.param(isa, marks=pytest.mark.slow) for isa in SLOWER)]
)
@pytest.mark.timeout(900)
def test_8_bit_activations_cost_little(model_file: Path, shared: Path, name: str, isa: str) -> None:
    reference = np.load(shared / "reference" / name)
    decoder = worker(model_file, isa)
    forced = Forced(teacher_forced(decoder, reference["token_ids"].tolist()), reference)
    assert str(decoder.facts.numerics).startswith("w4+w8/int8")
    assert forced.divergence() <= 0.005
    assert abs(forced.perplexity_ratio() - 1) <= 0.01
    assert forced.agreement() >= 0.975
