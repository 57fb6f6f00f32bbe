"""Every grid of ranks on every executor and channel: the logits of one rank, and of transformers.

What is compared are the log-probabilities of the whole vocabulary after each token of a prompt, in
float32.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from penstock.core import LogprobRow, StepResult
from penstock.executor import Executor
from tests.fakes.plans import one_sequence, registration
from tests.families import FAMILIES
from tests.limits import HANG
from tests.ray_cluster import TOKEN, RayCluster
from tests.real_ranks import TINY, VOCAB, kv_groups, talkative_ranks

np = pytest.importorskip("numpy", reason="install numpy to compare logits")
pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

GRIDS = [(tp, pp) for tp in (1, 2, 3) for pp in (1, 2, 3)]
MOST_RANKS = max(tp * pp for tp, pp in GRIDS)
CHANNELS = ["ring", "compiled-graph", "actor"]
SLOW = pytest.mark.slow
TOKENS = 64
BLOCK = 32
EACH = 6
"""Blocks of one sequence in every group; none is given back."""
MARGIN = 1e-3
"""Relative to the largest logit."""


class Prompt:
    """A prompt with the logits that transformers has after each of its tokens."""

    def __init__(self, family: str) -> None:
        reference = json.loads((TINY / family / "reference.json").read_text())
        self.tokens: list[int] = reference["tokens"]
        self.greedy: list[int] = reference["greedy"]
        logits = np.fromfile(TINY / family / reference["logits"], dtype="<f4").reshape(
            reference["shape"]
        )
        self.limit = MARGIN * float(np.abs(logits).max())
        wide = logits.astype(np.float64)
        self.logprobs = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


class Sequence:
    """One sequence in slot and blocks of its own."""

    def __init__(self, executor: Executor, first_step: int, slot: int, groups: int) -> None:
        self._executor = executor
        self.step = first_step
        self._slot = slot
        self._groups = groups
        self._computed = 0
        self._blocks = array("i", range(EACH * slot, EACH * (slot + 1)))

    def compute(self, tokens: list[int], target: int) -> StepResult:
        """The next `tokens`; `target` follows them, -1 where that is to be sampled."""
        end = self._computed + len(tokens)
        blocks = self._blocks[: -(-end // BLOCK)]
        new = registration(self._slot, prompt_logprobs=VOCAB)
        plan = one_sequence(
            self.step,
            tokens,
            self._computed,
            blocks,
            new=None if self._computed else new,
            slot=self._slot,
            sample=target < 0,
            targets=[*tokens[1:], target],
            groups=self._groups,
        )
        self.step += 1
        self._computed = end
        return self._executor.submit(plan).result(HANG)

    def sample_after(self, token: int) -> StepResult:
        """Compute the last token again, and sample."""
        self._computed -= 1
        return self.compute([token], -1)


Matrix = Any


def dense(rows: list[LogprobRow]) -> Matrix:
    """Log-probabilities by position and token."""
    found = np.full((len(rows), VOCAB), np.nan)
    for position, (_, _, pairs) in enumerate(rows):
        for token, logprob in pairs:
            found[position, token] = logprob
    return found


def read(sequence: Sequence, prompt: list[int], chunk: int) -> tuple[Matrix, list[int]]:
    """Log-probabilities after each token of the prompt, which comes in chunks, and greedy tokens
    after it.
    """
    rows: list[LogprobRow] = []
    sampled: list[int] = []
    for start in range(0, len(prompt), chunk):
        part, after = prompt[start : start + chunk], prompt[start + chunk : start + chunk + 1]
        rows += sequence.compute(part, *(after or [0])).prompt_logprobs[0]
    sampled += sequence.sample_after(prompt[-1]).tokens
    for _ in range(15):
        sampled += sequence.compute(sampled[-1:], -1).tokens
    return dense(rows), sampled


@cache
def prompt_of(family: str) -> Prompt:
    return Prompt(family)


@cache
def on_one_rank(family: str) -> Matrix:
    with talkative_ranks(family, TOKENS) as executor:
        return read(
            Sequence(executor, 1, 0, kv_groups(executor)), prompt_of(family).tokens, TOKENS
        )[0]


def check(ranks: AbstractContextManager[Executor], family: str) -> None:
    prompt = prompt_of(family)
    with ranks as executor:
        groups = kv_groups(executor)
        first = Sequence(executor, 1, 0, groups)
        logprobs, greedy = read(first, prompt.tokens, TOKENS)
        again, _ = read(Sequence(executor, first.step, 1, groups), prompt.tokens, 7)
    assert np.isfinite(logprobs).all()
    assert logprobs.shape == prompt.logprobs.shape
    assert np.abs(logprobs - on_one_rank(family)).max() <= prompt.limit
    assert np.abs(logprobs - prompt.logprobs).max() <= prompt.limit
    assert greedy == prompt.greedy
    assert (again == logprobs).all(), "other bits in chunks"


def sizes(grid: tuple[int, int]) -> dict[str, object]:
    return {"tensor_parallel_size": grid[0], "pipeline_parallel_size": grid[1]}


def named(grid: tuple[int, int]) -> str:
    return f"tp{grid[0]} pp{grid[1]}"


@pytest.mark.parametrize("grid", GRIDS, ids=named)
@pytest.mark.parametrize(
    "family", [FAMILIES[0], *(pytest.param(f, marks=SLOW) for f in FAMILIES[1:])]
)
def test_processes_give_the_logits_of_one_rank(family: str, grid: tuple[int, int]) -> None:
    ranks = talkative_ranks(family, TOKENS, **sizes(grid), distributed_executor_backend="mp")
    check(ranks, family)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'penstock[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        with RayCluster(MOST_RANKS) as made:
            yield made


@SLOW
@pytest.mark.timeout(900)
@pytest.mark.parametrize("grid", GRIDS, ids=named)
@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_actors_give_the_logits_of_one_rank(
    cluster: RayCluster, family: str, channel: str, grid: tuple[int, int]
) -> None:
    ray = {
        "distributed_executor_backend": "ray",
        "ray_address": cluster.address,
        "ray_channel": channel,
    }
    check(talkative_ranks(family, TOKENS, **sizes(grid), **ray), family)
