"""Rows between stages by Ray's way for GPU tensors, with gloo in place of NCCL."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import pytest

from penstock.core import InvalidValueError, PenstockError
from penstock.executor import Executor, WorkersLostError
from penstock.executor.ray import edges
from tests.backends.torch.test_families import MARGIN
from tests.executor import test_logits
from tests.executor.test_ray_ranks import gone
from tests.fakes import ray_gpu
from tests.fakes.plans import one_sequence, registration
from tests.limits import HANG
from tests.processes import memory_files
from tests.ray_cluster import RayCluster, needs_ray, token_cluster
from tests.real_ranks import kv_groups, talkative_ranks

needs_ray()

RANKS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with token_cluster(RANKS) as made:
        yield made


def ranks(
    cluster: RayCluster,
    patch: pytest.MonkeyPatch,
    family: str = "llama",
    tp: int = 1,
    pp: int = 2,
    fault: str = "",
    **settings: object,
) -> AbstractContextManager[Executor]:
    patch.setattr(edges, "GPU_BACKENDS", {"torch"})
    patch.setattr(edges, "prepare", partial(ray_gpu.pretend, fault))
    return talkative_ranks(
        family,
        test_logits.TOKENS,
        device="torch",
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        distributed_executor_backend="ray",
        ray_address=cluster.address,
        ray_channel="compiled-graph-tensors",
        **settings,
    )


def moved(executor: Executor, rank: int) -> list[tuple[str, tuple[int, ...], str]]:
    """What a rank sent and received by gloo."""
    actors = executor._connection.members  # type: ignore[attr-defined]
    call = actors.handles[rank].__ray_call__.remote(ray_gpu.moved)
    found: list[list[Any]] = actors.get({rank: call})
    return found[0]


@pytest.mark.parametrize(
    ("family", "tp", "pp", "overlap", "dtype"),
    [
        ("llama", 1, 2, False, "float32"),
        ("llama", 1, 2, True, "bfloat16"),
        ("qwen2moe", 2, 2, True, "float32"),
    ],
)
def test_tensors_between_stages_give_the_logits_of_one_rank(
    cluster: RayCluster,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    tp: int,
    pp: int,
    overlap: bool,
    dtype: str,
) -> None:
    """Those of transformers, too. Each row goes once, from its rank to the same one of the next
    stage, in the type that stages compute with.
    """
    prompt, left = test_logits.prompt_of(family), memory_files()
    with talkative_ranks(family, test_logits.TOKENS, device="torch", dtype=dtype) as executor:
        one = test_logits.Sequence(executor, 1, 0, kv_groups(executor))
        expected, greedy = test_logits.read(one, prompt.tokens, 20)
    more = {"ray_overlap_comm": overlap, "dtype": dtype}
    with ranks(cluster, monkeypatch, family, tp, pp, **more) as executor:
        pids = executor.pids  # type: ignore[attr-defined]
        cut = test_logits.Sequence(executor, 2, 0, kv_groups(executor))
        logprobs, found = test_logits.read(cut, prompt.tokens, 20)
        went = [moved(executor, rank) for rank in range(tp * pp)]
    assert found == greedy
    if tp == 1:
        assert np.array_equal(logprobs, expected), "other bits"
    if dtype == "float32":
        assert np.abs(logprobs - expected).max() <= MARGIN
        assert np.abs(logprobs - prompt.logprobs).max() <= MARGIN
        assert greedy == prompt.greedy
    for before, after in zip(went, went[tp:], strict=False):
        assert {how for how, *_ in before} == {"sent"}
        assert {how for how, *_ in after} == {"received"}
        assert [what for _, *what in before] == [what for _, *what in after]
        assert {kind for *_, kind in before} == {f"torch.{dtype}"}
        shapes = [shape for _, shape, _ in before]
        assert len({rows for rows, _ in shapes}) > 1
        # The first step is the executor's own, of one token.
        assert sum(rows for rows, _ in shapes) == 1 + len(prompt.tokens) + len(greedy)
    gone(pids)
    assert memory_files() <= left


def test_a_message_that_is_late_behind_its_tensor_is_not_lost(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would read the edge anew, and take the next tensor for this one."""
    prompt = test_logits.prompt_of("llama")
    with ranks(cluster, monkeypatch, fault="late") as executor:
        sequence = test_logits.Sequence(executor, 2, 0, kv_groups(executor))
        _, found = test_logits.read(sequence, prompt.tokens, 20)
    assert found == prompt.greedy


def test_stages_on_two_nodes_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the address of the sending one's node."""
    prompt = test_logits.prompt_of("llama")
    with token_cluster(1) as cluster:
        cluster.add(1, "127.0.0.2")
        with ranks(cluster, monkeypatch, placement="strict-spread") as executor:
            hosts = {loaded.facts.host for loaded in executor.loaded}
            sequence = test_logits.Sequence(executor, 2, 0, kv_groups(executor))
            _, found = test_logits.read(sequence, prompt.tokens, 20)
    assert len(hosts) == 2
    assert found == prompt.greedy


def compute(executor: Executor, steps: range) -> None:
    for step in steps:
        new = registration() if step == 2 else None
        executor.submit(one_sequence(step, [5], step - 2, [0], new=new)).result(HANG)


def test_a_plan_that_is_wrong_is_passed_on_and_the_ranks_go_on(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message has no tensor: shapes are not static."""
    with ranks(cluster, monkeypatch) as executor:
        compute(executor, range(2, 4))
        wrong = one_sequence(4, [10**6], 2, [0])
        with pytest.raises(PenstockError, match="1000000") as caught:
            executor.submit(wrong).result(HANG)
        assert not isinstance(caught.value, WorkersLostError)
        compute(executor, range(5, 8))


def test_a_tensor_that_cannot_be_sent_ends_all_with_the_rank_and_the_reason(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ranks(cluster, monkeypatch, fault="break") as executor:
        with pytest.raises(WorkersLostError, match=r"rank 0 .*the cable was told to break"):
            compute(executor, range(2, 8))
        with pytest.raises(WorkersLostError):
            executor.check()


def test_a_stage_that_dies_while_a_tensor_is_on_its_way_ends_all(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ranks(cluster, monkeypatch, fault="hang") as executor:
        compute(executor, range(2, 4))
        # The fourth tensor: rank 0 waits until it has gone.
        step = executor.submit(one_sequence(4, [5], 2, [0]))
        time.sleep(0.5)
        killed = time.monotonic()
        os.kill(executor.pids[1], signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(WorkersLostError, match=r"rank 1 \(on .*, process \d+\) was lost"):
            step.result(HANG)
        assert time.monotonic() - killed < HANG / 2


def test_a_torch_without_nccl_is_named(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(PenstockError, match=r"built without NCCL.* --ray-channel ring"),
        ranks(cluster, monkeypatch, fault="without nccl"),
    ):
        pass


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"device": "cpu", "pipeline_parallel_size": 2}, "the rows of --device cpu are no tensors"),
        ({"device": "torch", "tensor_parallel_size": 2}, "and -pp is 1"),
    ],
)
def test_what_has_no_tensors_to_carry_is_refused(settings: dict[str, object], reason: str) -> None:
    """Before a cluster is joined: there is none."""
    more = {
        "distributed_executor_backend": "ray",
        "ray_address": "127.0.0.1:1",
        "ray_channel": "compiled-graph-tensors",
    }
    with (
        pytest.raises(InvalidValueError, match=f"expected ring or compiled-graph: .*{reason}"),
        talkative_ranks("llama", test_logits.TOKENS, **settings, **more),
    ):
        pass


def test_a_communicator_of_another_package_carries_the_tensors(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, name = test_logits.prompt_of("llama"), "tests.fakes.ray_communicator:Listed"
    with ranks(cluster, monkeypatch, ray_communicator=name) as executor:
        cut = test_logits.Sequence(executor, 2, 0, kv_groups(executor))
        logprobs, found = test_logits.read(cut, prompt.tokens, 20)
        # It imports Ray, which reads the cluster's token then.
        from tests.fakes import ray_communicator

        actors = executor._connection.members  # type: ignore[attr-defined]
        calls = [each.__ray_call__.remote(ray_communicator.sent) for each in actors.handles]
        sent = actors.get(dict(enumerate(calls)))
    assert found == prompt.greedy
    assert np.abs(logprobs - prompt.logprobs).max() <= MARGIN
    assert [bool(shapes) for shapes in sent] == [True, False]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module:Class", "No module named 'no_such_module'"),
        ("pathlib:NoSuchClass", "has no attribute 'NoSuchClass'"),
        ("pathlib:Path", "a class derived from ray.experimental.channel.communicator.Communicator"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_what_is_no_communicator_is_refused(name: str, reason: str) -> None:
    with pytest.raises(InvalidValueError, match=f"--ray-communicator is '{name}'.*{reason}"):
        edges.load_communicator(name)
