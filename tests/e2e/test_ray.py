"""Ranks as Ray actors on one host: the tokens of transformers on each channel, servers that lose
ranks.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.losses import lose, wait_replaced
from tests.e2e.server import eventually
from tests.e2e.test_parallel import cpu_seconds, tiny
from tests.e2e.test_reference import greedy_entries
from tests.processes import descendants, is_alive, memory_files
from tests.ray_cluster import TOKEN, RayCluster, needs_ray

needs_ray()

CHANNELS = ["ring", "compiled-graph", "actor"]
GRIDS = [(2, 1), (1, 2), (2, 2)]
RAY = ["--distributed-executor-backend", "ray"]

Open = Callable[..., LLM]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        with RayCluster(4) as made:
            yield made


@pytest.fixture
def opened(cluster: RayCluster) -> Iterator[Open]:
    """`opened(model, channel, tp, pp, ...)`: ranks as actors, none left afterwards."""
    made: list[LLM] = []
    before = memory_files()

    def make(model: Path, channel: str, tp: int, pp: int, **options: Any) -> LLM:
        where = {"ray_address": cluster.address, "ray_channel": channel}
        sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp, "threads": 1}
        made.append(
            LLM(str(model), distributed_executor_backend="ray", **where, **sizes, **options)
        )
        return made[-1]

    yield make
    for llm in made:
        pids = llm._started.executor.pids  # type: ignore[attr-defined]
        llm.close()
        eventually(lambda: not any(map(is_alive, pids)), "the end of the actors")  # noqa: B023
    assert memory_files() <= before


def ranks_below(pid: int) -> list[int]:
    """Processes of actors below a process, once they have said what they are."""
    lines = {each: Path(f"/proc/{each}/cmdline") for each in descendants(pid)}
    return [
        each for each, line in lines.items() if line.exists() and b"ray::Actor" in line.read_bytes()
    ]


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize(("tp", "pp"), GRIDS)
def test_each_channel_gives_the_tokens_of_transformers(
    opened: Open, repository: Path, tmp_path: Path, channel: str, tp: int, pp: int
) -> None:
    model, reference = tiny(repository, tmp_path, "qwen2")
    llm = opened(model, channel, tp, pp, dtype="float32")
    params = SamplingParams(
        temperature=0, max_tokens=len(reference["greedy"]), ignore_eos=True, logprobs=2
    )
    first = llm.generate(reference["tokens"], params)[0]
    assert first.outputs[0].token_ids == reference["greedy"]
    for other in llm.generate([reference["tokens"]] * 5, params):
        assert other.outputs == first.outputs


def test_the_default_model_gives_the_tokens_of_transformers(
    opened: Open, model_file: Path, shared: Path
) -> None:
    sizes = {"kv_cache_memory_bytes": "128MiB", "max_model_len": 1024}
    llm = opened(model_file, "ring", 2, 2, quantization="none", **sizes)
    entries = greedy_entries(shared)
    params = [SamplingParams(temperature=0, max_tokens=len(entry["out_ids"])) for entry in entries]
    answers = llm.generate([entry["prompt_ids"] for entry in entries], params)
    assert [answer.outputs[0].token_ids for answer in answers] == [
        entry["out_ids"] for entry in entries
    ]


@pytest.mark.parametrize(
    "channel", [CHANNELS[0], *(pytest.param(c, marks=pytest.mark.slow) for c in CHANNELS[1:])]
)
def test_a_server_outlives_its_ranks(
    serve: Serve, cluster: RayCluster, channel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = memory_files()
    flags = [
        *RAY,
        "--ray-address",
        cluster.address,
        "--ray-channel",
        channel,
        "-pp",
        "2",
        "--max-model-len",
        "8000",
    ]
    with serve(*flags) as server, server.client() as client:
        expected = sse.complete(client, "Once upon a time", 8)
        for rank in range(2):
            pids = ranks_below(cluster.nodes[0].process.pid)
            assert len(pids) == 2
            harm = partial(os.kill, pids[rank], signal.SIGKILL)
            loss = lose(server, harm, f"{channel}, rank {rank} killed", capsys)
            assert all(f"process {pids[rank]}) was lost" in message for message in loss.messages)
            assert not [pid for pid in pids if is_alive(pid)]
            assert sse.complete(client, "Once upon a time", 8) == expected
        pids = ranks_below(cluster.nodes[0].process.pid)
        engine = server.engine()
        used, began = sum(map(cpu_seconds, [engine, *pids])), time.monotonic()
        time.sleep(2.0)
        used = sum(map(cpu_seconds, [engine, *pids])) - used
        if channel != "compiled-graph":
            assert used < 0.15 * (time.monotonic() - began), "quiet ranks take no time"
        os.kill(engine, signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, pids)), "the end of the ranks of a killed engine")
        wait_replaced(client, server, engine)
        assert sse.complete(client, "Once upon a time", 8) == expected
        pids = ranks_below(cluster.nodes[0].process.pid)
    eventually(lambda: not any(map(is_alive, pids)), "the end of the ranks")
    assert memory_files() <= before


def test_a_cluster_of_our_own_ends_with_the_server_and_with_its_engine(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    before = memory_files()
    with (
        serve(*RAY, "-tp", "2", "-pp", "2", "--max-model-len", "8000") as server,
        server.client() as client,
    ):
        expected = sse.complete(client, "Once upon a time", 8)
        everything = descendants(server.engine())
        assert len(everything) > 5
        os.kill(everything[0], signal.SIGKILL)
        eventually(
            lambda: not any(map(is_alive, everything)), "the end of a killed engine's cluster"
        )
        wait_replaced(client, server, everything[0])
        assert sse.complete(client, "Once upon a time", 8) == expected
        everything = descendants(server.engine())
    eventually(lambda: not any(map(is_alive, everything)), "the end of a stopped engine's cluster")
    assert "Traceback" not in server.text()
    assert memory_files() <= before


def test_what_ray_cannot_do_is_refused_at_the_start(serve: Serve) -> None:
    server = serve(*RAY, "-pp", "2", "--ray-overlap-comm")
    assert server.wait() != 0
    assert "--ray-overlap-comm needs" in server.text()
    server = serve(*RAY, "--ray-address", "127.0.0.1:1")
    assert server.wait() != 0
    assert "no Ray cluster at 127.0.0.1:1" in server.text()
