"""Ranks in processes: the tokens of one rank, whatever the cut, and servers that outlive their
ranks.
"""

from __future__ import annotations

import json
import os
import shutil
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
from tests.e2e.losses import LONG, lose
from tests.e2e.server import eventually, metric
from tests.e2e.test_reference import greedy_entries
from tests.e2e.test_tiny import write_tokenizer
from tests.families import FAMILIES
from tests.processes import is_alive, memory_files

GRIDS = [(tp, pp) for tp in (1, 2, 3) for pp in (1, 2, 3)]
WITH_ALL_FAMILIES = {(1, 1), (3, 1), (1, 3), (2, 2)}
DIFFERENT = ("alternating", "deepseek3", "gptoss", "llama4moe", "qwen2")
"""Families for the other grids: KV groups of several windows, latent attention, sinks, experts
beside dense layers, biases. Each grid starts up to nine processes for each family;
crates/compute/decoder/tests/suite/parallel.rs has the logits of all families on all grids in one.
"""
MIXTURES = ("deepseek2", "deepseek3", "glm4moe", "gptoss", "llama4moe", "mixed", "mixtral")
MIXTURES += ("qwen2moe", "qwen3moe")
OF_SIX_RANKS = ("alternating", "deepseek3")
"""Families for grids between those of four ranks and of nine, which have all the others."""

Open = Callable[..., LLM]


@pytest.fixture
def opened() -> Iterator[Open]:
    """`opened(model, tp, pp, ...)`: ranks in processes, of which nothing is left afterwards."""
    made: list[LLM] = []
    before = memory_files()

    def make(model: Path, tp: int, pp: int, **options: Any) -> LLM:
        backend = {"distributed_executor_backend": "mp", "threads": 1}
        sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
        made.append(LLM(str(model), **{**backend, **sizes, **options}))
        return made[-1]

    yield make
    for llm in made:
        pids = llm._started.executor.pids  # type: ignore[attr-defined]
        llm.close()
        assert not [pid for pid in pids if is_alive(pid)]
    assert memory_files() <= before


def tiny(repository: Path, directory: Path, family: str) -> tuple[Path, dict[str, Any]]:
    shutil.copytree(repository / "tests/fixtures/tiny" / family, directory / family)
    write_tokenizer(directory / family)
    return directory / family, json.loads((directory / family / "reference.json").read_text())


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2), (2, 2)])
def test_every_grid_gives_the_vectors_of_one_rank(
    opened: Open, repository: Path, tmp_path: Path, tp: int, pp: int
) -> None:
    model, reference = tiny(repository, tmp_path, "qwen3")
    tokens = reference["tokens"]
    prompts = [tokens[: end + 1] for end in range(len(tokens))]
    small = {"max_num_batched_tokens": 16, "max_num_seqs": 8}
    found = [
        [list(each.outputs.data) for each in llm.encode(prompts, use_tqdm=False)]
        for llm in (
            opened(model, tp, pp, dtype="float32"),
            opened(model, tp, pp, dtype="float32", enable_prefix_caching=False, **small),
            LLM(str(model), dtype="float32", threads=1),
        )
    ]
    assert found[0] == found[1], "the same bits in chunks, and from the prefix cache"
    for ours, alone in zip(found[0], found[2], strict=True):
        assert ours == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize(("tp", "pp"), GRIDS)
def test_every_grid_gives_the_tokens_of_transformers(
    opened: Open, repository: Path, tmp_path: Path, tp: int, pp: int
) -> None:
    some = OF_SIX_RANKS if tp * pp == 6 else DIFFERENT
    for family in FAMILIES if (tp, pp) in WITH_ALL_FAMILIES else some:
        model, reference = tiny(repository, tmp_path, family)
        llm = opened(model, tp, pp, dtype="float32")
        params = SamplingParams(
            temperature=0,
            max_tokens=len(reference["greedy"]),
            ignore_eos=True,
            logprobs=2,
            prompt_logprobs=0,
        )
        answers = [llm.generate(reference["tokens"], params)[0] for _ in range(2)]
        answers += llm.generate([reference["tokens"]] * 5, params)
        assert answers[0].outputs[0].token_ids == reference["greedy"], family
        assert answers[0].prompt_logprobs
        for other in answers[1:]:
            assert other.outputs == answers[0].outputs, family
            assert other.prompt_logprobs == answers[0].prompt_logprobs, family


@pytest.mark.parametrize("family", MIXTURES)
def test_ranks_with_whole_experts_give_the_tokens_of_transformers(
    opened: Open, repository: Path, tmp_path: Path, family: str
) -> None:
    model, reference = tiny(repository, tmp_path, family)
    llm = opened(model, 2, 1, dtype="float32", enable_expert_parallel=True)
    count = len(reference["greedy"])
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    (answer,) = llm.generate(reference["tokens"], params)
    assert answer.outputs[0].token_ids == reference["greedy"]


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2), (2, 2)])
def test_the_default_model_gives_the_tokens_of_transformers(
    opened: Open, model_file: Path, shared: Path, tp: int, pp: int
) -> None:
    llm = opened(
        model_file, tp, pp, quantization="none", kv_cache_memory_bytes="128MiB", max_model_len=1024
    )
    entries = greedy_entries(shared)
    prompts = [entry["prompt_ids"] for entry in entries]
    params = [SamplingParams(temperature=0, max_tokens=len(entry["out_ids"])) for entry in entries]
    for _ in range(2):
        answers = llm.generate(prompts, params)
        assert [answer.outputs[0].token_ids for answer in answers] == [
            entry["out_ids"] for entry in entries
        ]


def ranks_of(engine: int) -> list[int]:
    """Processes of the ranks, in their order."""
    tasks = Path(f"/proc/{engine}/task").glob("*/children")
    pids = [int(pid) for task in tasks for pid in task.read_text().split()]
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in pids}
    workers = {pid: line for pid, line in lines.items() if b"--rank" in line}
    return sorted(workers, key=lambda pid: int(workers[pid][workers[pid].index(b"--rank") + 1]))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_server_outlives_each_of_its_ranks(
    serve: Serve, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = memory_files()
    flags = ["-tp", "2", "-pp", "2", "--max-model-len", "8000"]
    with serve(*flags) as server, server.client() as client:
        expected = sse.complete(client, "Once upon a time", 8)
        assert server.lines("rank 3 loaded", "head")
        for rank in range(4):
            pids = ranks_of(server.engine())
            assert len(pids) == 4
            loss = lose(
                server, partial(os.kill, pids[rank], signal.SIGKILL), f"rank {rank} killed", capsys
            )
            for message in loss.messages:
                assert (
                    f"rank {rank} (process {pids[rank]}) was killed by signal 9 (SIGKILL)"
                    in message
                )
            assert not [pid for pid in pids if is_alive(pid)]
            assert sse.complete(client, "Once upon a time", 8) == expected
            assert memory_files() <= before
        engine = server.engine()
        last = ranks_of(engine)
    assert not [pid for pid in last if is_alive(pid)]
    assert memory_files() <= before


def test_ranks_end_with_a_killed_server_and_with_a_killed_engine(serve: Serve) -> None:
    before = memory_files()
    server = serve("-pp", "2")
    server.wait_ready()
    pids = ranks_of(server.engine())
    os.kill(server.engine(), signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, pids)), "the end of the ranks of a killed engine")
    eventually(
        lambda: len(server.children()) == 1 and len(ranks_of(server.engine())) == 2, "new ranks"
    )
    with server.client() as client:
        eventually(lambda: client.get("/health").status_code == 200, "a healthy server")
    pids = ranks_of(server.engine())
    server.destroy()
    eventually(lambda: not any(map(is_alive, pids)), "the end of the ranks of a killed server")
    assert memory_files() <= before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_lets_streams_of_ranks_finish(serve: Serve, number: signal.Signals) -> None:
    with serve("-tp", "2", "-pp", "2") as server, server.client() as client:
        with sse.stream(client, "/v1/completions", {**LONG, "max_tokens": 100}) as events:
            events.take(2)
            pids = ranks_of(server.engine())
            os.killpg(server.pid, number)
            last = list(events)[-1]
        assert last["choices"][0]["finish_reason"] == "length"
        assert server.wait() == 0
        assert not [pid for pid in pids if is_alive(pid)]
        assert "Traceback" not in server.text()


def test_clients_that_leave_give_back_blocks_in_stages(serve: Serve) -> None:
    with serve("-pp", "2") as server, server.client() as client:
        for reads in (0, 1, 3, 5):
            with sse.stream(client, "/v1/completions", LONG) as events:
                events.take(reads)
        idle = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
        eventually(
            lambda: all(metric(client, f"vllm:{name}") == 0 for name in idle), "an idle engine"
        )
        assert sse.complete(client, "Once upon a time", 8)["finish_reason"] == "length"


def test_idle_ranks_take_no_time(serve: Serve) -> None:
    with serve("-tp", "2", "-pp", "2") as server, server.client() as client:
        sse.complete(client, "Once upon a time", 8)
        pids = [server.engine(), *ranks_of(server.engine())]
        before, began = sum(map(cpu_seconds, pids)), time.monotonic()
        time.sleep(2.0)
        used = (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - began)
        assert used < 0.05 * len(pids)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-tp", "10"], "--tensor-parallel-size is 10, expected 1 to 9"),
        (["-tp", "2", "--no-engine-process"], "--no-engine-process does not go with"),
        (["-pp", "2", "--distributed-executor-backend", "inline"], "expected mp for 2 ranks"),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(serve: Serve, flags: list[str], said: str) -> None:
    server = serve(*flags)
    assert server.wait() != 0
    assert said in server.text()
