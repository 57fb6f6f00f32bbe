"""A model cut between ranks: the logits of one rank, whatever the cut.

Ranks are threads of this process, joined as those of an executor are; once they are processes.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.layers import feed_forward
from penstock.backends.torch.step.device import Cpu
from penstock.config import cluster_key, shared_memory_directory
from penstock.config.machine import free_port
from penstock.core import Allocation, KvSpec, StepPlan, StepResult
from penstock.core.plan import LAST_SAMPLED
from penstock.engine.config_fingerprint import config_fingerprint
from penstock.engine.sizing import plan_layout
from penstock.engine.startup import read_model
from penstock.executor.ranks import LocalResources, comm_resources, keyed, wire
from penstock.model.sharding import plan_grid
from tests.backends.torch.driving import BLOCK, Driver, Part, backend, config_of, dense
from tests.backends.torch.test_families import MARGIN, PROMPT
from tests.executor import test_logits
from tests.executor.test_nodes import Agent
from tests.fakes.sampling import encode
from tests.limits import HANG
from tests.real_ranks import exact_config, talkative_ranks


class Ranks:
    """All ranks as one backend."""

    def __init__(self, ranks: Sequence[TorchBackend], reader: int) -> None:
        self.ranks = ranks
        self.reader = reader

    def kv_spec(self) -> KvSpec:
        return self.ranks[0].kv_spec()

    def submit(self, plan: StepPlan) -> _Steps:
        return _Steps([rank.submit(plan) for rank in self.ranks], self.reader)


class _Steps:
    def __init__(self, steps: Sequence[Any], reader: int) -> None:
        self._steps = steps
        self._reader = reader

    def result(self, timeout: float) -> StepResult:
        found: StepResult = [step.result(timeout) for step in self._steps][self._reader]
        return found


@contextmanager
def cut(family: str, tp: int, pp: int, **settings: object) -> Iterator[Ranks]:
    config = config_of(family, tensor_parallel_size=tp, pipeline_parallel_size=pp, **settings)
    info = read_model(config)
    grid = plan_grid(info.spec, tp, pp, by_experts=config.parallel.by_experts)
    layout = plan_layout(config, info, grid)
    local = LocalResources(shared_memory_directory())
    resources = comm_resources(layout)
    wirings = wire(layout, resources, local.make([each.request for each in resources]))
    key = secrets.token_bytes(32)
    pairs = zip(layout.shards, [keyed(each, key) for each in wirings], strict=True)
    with ThreadPoolExecutor(grid.size) as pool:
        loading = [pool.submit(TorchBackend, config, info, pair, Cpu(1)) for pair in pairs]
        ranks = [each.result(HANG) for each in loading]
    local.close()
    try:
        for rank in ranks:
            rank.allocate(Allocation((96,) * len(rank.kv_spec().groups)))
        yield Ranks(ranks, layout.reader)
    finally:
        for rank in ranks:
            rank.close()


def read(driver: Driver) -> tuple[np.ndarray, list[int]]:
    """Log-probabilities of a prompt in chunks, and what follows it, by given tokens."""
    driver.register(0)
    rows = []
    for start in range(0, len(PROMPT), 25):
        part = Part(0, PROMPT[start : start + 25], sample=False, score=True)
        rows += driver.run(part).prompt_logprobs[0]
    driver.back(0, 1)
    found = driver.run(Part(0, PROMPT[-1:])).tokens.tolist()
    for _ in range(5):
        found += driver.run(Part(0, found[-1:])).tokens.tolist()
    return dense(rows), found


@pytest.mark.parametrize(
    ("family", "tp", "pp"),
    [
        ("llama", 2, 1),  # whole KV heads
        ("llama", 4, 1),  # KV heads on two ranks
        ("gpt2", 3, 1),  # biases, a vocabulary that is cut unevenly
        ("gptoss", 2, 2),  # sinks, biases of experts
        ("deepseek3", 2, 1),
        ("gemma3", 1, 3),
        ("qwen2moe", 2, 2),
    ],
)
def test_ranks_have_the_logits_of_one(family: str, tp: int, pp: int) -> None:
    with backend(family) as loaded:
        expected, greedy = read(Driver(loaded))
    with cut(family, tp, pp) as ranks:
        logprobs, found = read(Driver(ranks))  # type: ignore[arg-type]
    assert np.abs(logprobs - expected).max() <= MARGIN
    assert found == greedy


def test_ranks_with_whole_experts_have_the_logits_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank computes the rows of its own experts, and no others."""
    with backend("qwen3moe") as loaded:
        expected, greedy = read(Driver(loaded))
    here: list[int] = []
    places: list[int] = []
    compute = feed_forward.experts

    def counted(x: Tensor, indices: Tensor, weights: Tensor, *more: Any, **rules: Any) -> Tensor:
        here.append(int((indices < len(more[0].codes)).sum()))
        places.append(indices.numel())
        return compute(x, indices, weights, *more, **rules)

    monkeypatch.setattr(feed_forward, "experts", counted)
    with cut("qwen3moe", 2, 1, enable_expert_parallel="true") as ranks:
        logprobs, found = read(Driver(ranks))  # type: ignore[arg-type]
    assert np.abs(logprobs - expected).max() <= MARGIN
    assert found == greedy
    assert 2 * sum(here) == sum(places) > 0


def test_all_ranks_of_a_stage_know_the_token_that_was_drawn() -> None:
    sampling = encode(temperature=1.0, seed=4)
    found = []
    with backend("llama") as one, cut("llama", 2, 1) as two:
        for loaded in (one, two):
            driver = Driver(loaded)  # type: ignore[arg-type]
            driver.register(0, sampling)
            (first,) = driver.run(Part(0, PROMPT)).tokens
            found.append(driver.greedy(0, first, 8))
    assert found[0] == found[1]


def test_with_stages_a_token_is_given_by_value() -> None:
    with cut("llama", 1, 2) as ranks:
        driver = Driver(ranks)  # type: ignore[arg-type]
        driver.register(0)
        driver.run(Part(0, PROMPT))
        with pytest.raises(ValueError, match="LAST_SAMPLED with several pipeline stages"):
            driver.run(Part(0, [LAST_SAMPLED]))


def test_a_block_holds_the_heads_and_layers_of_its_rank() -> None:
    with backend("llama") as whole, cut("llama", 2, 2) as ranks:
        (group,) = whole.kv_spec().groups
        parts = [rank.kv_spec().groups[0] for rank in ranks.ranks]
        assert sum(part.block_bytes for part in parts) == group.block_bytes
        assert [part.layers for part in parts] == [(0,), (0,), (1,), (1,)]
        assert group.block_bytes == 2 * 2 * BLOCK * 16 * 2 * 4


def test_processes_are_ranks_too() -> None:
    family, prompt = "llama", test_logits.prompt_of("llama")
    sizes = {"tensor_parallel_size": 2, "device": "torch", "distributed_executor_backend": "mp"}
    with talkative_ranks(family, test_logits.TOKENS, **sizes) as executor:
        sequence = test_logits.Sequence(executor, 1, 0, 1)
        logprobs, greedy = test_logits.read(sequence, prompt.tokens, 20)
    assert np.abs(logprobs - prompt.logprobs).max() <= MARGIN
    assert greedy == prompt.greedy


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_stage_on_two_nodes_has_the_bits_of_one_host(dtype: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a secret of some length")
    prompt = test_logits.prompt_of("llama").tokens
    one: dict[str, object] = {
        "tensor_parallel_size": 3,
        "device": "torch",
        "dtype": dtype,
        "cluster_token_file": token,
    }
    two = {**one, "nnodes": 2, "master_addr": f"127.0.0.1:{free_port()}"}
    sizes = {"max_num_batched_tokens": test_logits.TOKENS, "max_num_seqs": 2}
    there = exact_config("llama", {**two, **sizes, "node_rank": 1})
    card = config_fingerprint(there, read_model(there))
    agent = Agent(there, cluster_key(str(token)), dict(card))
    found = []
    try:
        for settings in ({**one, "distributed_executor_backend": "mp"}, {**two, "node_rank": 0}):
            with talkative_ranks("llama", test_logits.TOKENS, **settings) as executor:
                sequence = test_logits.Sequence(executor, 2, 0, 1)
                logprobs, greedy = test_logits.read(sequence, prompt, 20)
            found.append((logprobs.tobytes(), greedy))
    finally:
        agent.stop()
    assert found[0] == found[1]


def test_a_plan_that_one_rank_refuses_is_refused_by_all() -> None:
    with cut("llama", 2, 1) as ranks:
        driver = Driver(ranks)  # type: ignore[arg-type]
        driver.register(0)
        plan = driver.plan(Part(0, PROMPT))
        plan.kept = array("i", [7])
        for rank in ranks.ranks:
            with pytest.raises(ValueError, match="keeps 7 of 0 blocks"):
                rank.submit(plan)
