"""Ranks of the torch backend as actors of a real Ray cluster: the logits of one rank."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.executor.ranks import RankLayout
from penstock.executor.ray.cluster import Cluster
from penstock.executor.ray.placement import place
from tests.backends.torch.test_families import MARGIN
from tests.executor import test_logits
from tests.ray_cluster import RayCluster, needs_ray, token_cluster
from tests.real_ranks import talkative_ranks

needs_ray()

RANKS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with token_cluster(RANKS, RANKS) as made:
        yield made


@pytest.mark.parametrize(
    ("family", "tp", "pp", "channel", "more"),
    [
        # Each actor costs the import of torch, so two axes are cut at once in one quick case only.
        pytest.param("llama", 2, 1, "ring", {}, marks=pytest.mark.slow),
        pytest.param("llama", 1, 2, "ring", {}, marks=pytest.mark.slow),
        ("qwen2moe", 2, 2, "ring", {}),
        ("llama", 1, 2, "compiled-graph", {}),
        pytest.param("llama", 2, 2, "compiled-graph", {}, marks=pytest.mark.slow),
        # By Ray's CPUCommunicator.
        pytest.param("qwen2moe", 2, 2, "compiled-graph-tensors", {}, marks=pytest.mark.slow),
        ("llama", 1, 2, "compiled-graph-tensors", {"ray_overlap_comm": True}),
        ("llama", 1, 2, "actor", {}),
        pytest.param("llama", 2, 2, "actor", {}, marks=pytest.mark.slow),
    ],
)
def test_actors_have_the_logits_of_one_rank(
    cluster: RayCluster, family: str, tp: int, pp: int, channel: str, more: dict[str, object]
) -> None:
    """Those of one rank in this process, and those of transformers."""
    prompt = test_logits.prompt_of(family)
    torch = {"device": "torch"}
    sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    ray = {
        "distributed_executor_backend": "ray",
        "ray_address": cluster.address,
        "ray_channel": channel,
        **more,
    }
    found = []
    for settings in (torch, {**torch, **sizes, **ray}):
        with talkative_ranks(family, test_logits.TOKENS, **settings) as executor:
            groups = test_logits.kv_groups(executor)
            sequence = test_logits.Sequence(executor, 1, 0, groups)
            found.append(test_logits.read(sequence, prompt.tokens, 20))
    (one, greedy), (logprobs, again) = found
    assert np.abs(logprobs - one).max() <= MARGIN
    assert np.abs(logprobs - prompt.logprobs).max() <= MARGIN
    assert again == greedy == prompt.greedy


class Seen:
    """An actor that says which GPUs it sees."""

    def visible(self) -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "all")


def test_each_rank_sees_the_gpu_that_ray_gave_it(cluster: RayCluster) -> None:
    """GPUs that are counted only: what an actor sees is a variable."""
    layout = RankLayout(2, 2, 2, ("{}",) * 4, 100, 4000, 10_000, 10_000)
    joined = Cluster(cluster.address, 0, 0)
    try:
        placement = place(joined, layout, "pack", 30.0, "GPU")
        actors = [
            joined.actor(Seen, placement.group, each.bundle, placement.unit, {})
            for each in placement.ranks
        ]
        seen = joined.ray.get([actor.visible.remote() for actor in actors])
        for actor in actors:
            joined.ray.kill(actor)
        joined.release(placement.group)
    finally:
        joined.close()
    assert sorted(seen) == ["0", "1", "2", "3"]
