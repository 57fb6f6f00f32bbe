"""The torch backend behind the real engine and the real server."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from openai import OpenAI

from penstock.core import FinishReason
from tests.e2e.server import Server
from tests.e2e.test_tiny import write_tokenizer
from tests.engine import test_traffic as traffic
from tests.real_ranks import engine


@pytest.mark.parametrize("family", ["alternating", "deepseek2"])
def test_random_traffic_gives_what_the_native_decoder_gives_each_request_alone(family: str) -> None:
    """With prefix hits, preemptions, cancellations, chunks, and two plans in flight."""
    expected = traffic.truth({}, family, seed=1)
    sizes = {"max_num_seqs": traffic.SEQUENCES, "device": "torch", **traffic.SIZES}
    with engine(family, traffic.BLOCKS, **sizes) as (scheduler, executor):
        assert executor.depth == 2
        run = traffic.play(scheduler, executor, traffic.arrivals(1), traffic.some(1))
        stats = scheduler.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hit_tokens > 0
    finishes = {ending.finish for ending in run.endings.values()}
    assert finishes >= {FinishReason.LENGTH, FinishReason.CANCELLED}
    parted = [
        number for number, ending in run.endings.items() if traffic.parts(ending, expected[number])
    ]
    assert len(parted) <= 1, parted


def test_preempted_sequences_come_back_from_the_ram_tier() -> None:
    """The same traffic, with a tier behind the pool."""
    expected = traffic.truth({}, "qwen2", seed=1)
    sizes = {"max_num_seqs": traffic.SEQUENCES, "device": "torch", **traffic.SIZES}
    with engine("qwen2", traffic.BLOCKS, **sizes, kv_tier="ram:4MiB") as (scheduler, executor):
        run = traffic.play(scheduler, executor, traffic.arrivals(1), traffic.none_cancelled)
    assert sum(row.tier_tokens.ram for _, row in run.rows) > 0
    parted = [
        number for number, ending in run.endings.items() if traffic.parts(ending, expected[number])
    ]
    assert len(parted) <= 1, parted


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # Short: the path of a socket has at most 107 bytes.
    runtime = Path(tempfile.mkdtemp(prefix="e2e-"))
    model = tmp_path_factory.mktemp("models") / "qwen3"
    shutil.copytree(repository / "tests/fixtures/tiny/qwen3", model)
    write_tokenizer(model)
    with Server(model, runtime, "--device", "torch", "--dtype", "float32") as started:
        yield started
    shutil.rmtree(runtime)


def test_a_server_answers_an_openai_client(server: Server, repository: Path) -> None:
    reference = json.loads((repository / "tests/fixtures/tiny/qwen3/reference.json").read_text())
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.completions.create(
        model="qwen3",
        prompt=reference["tokens"],
        max_tokens=16,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    assert answer.choices[0].token_ids == reference["greedy"]  # type: ignore[attr-defined]
    stream = client.chat.completions.create(
        model="qwen3",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=5,
        stream=True,
        logprobs=True,
        frequency_penalty=0.5,
    )
    assert sum(len(chunk.choices) for chunk in stream) > 0


def test_an_output_follows_the_schema_of_its_response_format(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"enum": [1, 22, 333]}, "ok": {"type": "boolean"}},
        "required": ["age", "ok"],
        "additionalProperties": False,
    }
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    wanted = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": schema}}
    answer = client.chat.completions.create(
        model="qwen3",
        messages=[{"role": "user", "content": "hi"}],
        response_format=wanted,  # type: ignore[arg-type]
        n=3,
        max_tokens=100,
        temperature=1.2,
        seed=5,
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), schema)
