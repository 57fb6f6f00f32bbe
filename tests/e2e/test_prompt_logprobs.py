"""Log-probabilities of prompts over HTTP, against transformers' logits and against `LLM`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import LLM, SamplingParams
from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway
from tests.e2e.server import Server
from tests.e2e.test_tiny import write_tokenizer
from tests.limits import HANG

np = pytest.importorskip("numpy", reason="install numpy to compare logits")
TOLERANCE = 2e-3
ALTERNATIVES = 5
Row = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def tiny(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scored") / "llama"
    shutil.copytree(repository / "tests/fixtures/tiny/llama", directory)
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def tokens(tiny: Path) -> list[int]:
    known: list[int] = json.loads((tiny / "reference.json").read_text())["tokens"]
    return known


@pytest.fixture(scope="module")
def started(serve: Serve, tiny: Path) -> Iterator[Server]:
    with serve("--dtype", "float32", "--block-size", "16", model=tiny) as server:
        yield server


@pytest.fixture
def scored(started: Server) -> Iterator[httpx.Client]:
    with started.client() as client:
        yield client


def test_they_are_those_of_transformers_whatever_is_cached(
    scored: httpx.Client, tiny: Path, tokens: list[int]
) -> None:
    shape = json.loads((tiny / "reference.json").read_text())["shape"]
    logits = np.fromfile(tiny / "logits.f32", np.float32).reshape(shape).astype(np.float64)
    right = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    body = {"prompt": tokens, "max_tokens": 1, "temperature": 0}
    assert cached(sse.post(scored, "/v1/completions", body)) == 0
    assert cached(sse.post(scored, "/v1/completions", body)) > 0, "the prompt is cached by now"
    body |= {"prompt_logprobs": ALTERNATIVES, "n": 2, "return_token_ids": True}
    answer = sse.post(scored, "/v1/completions", body)
    assert cached(answer) == 0
    first, second = answer["choices"]
    assert first["prompt_logprobs"] == second["prompt_logprobs"]
    assert first["prompt_token_ids"] == tokens
    assert first["prompt_logprobs"][0] is None
    rows: list[Row] = first["prompt_logprobs"][1:]
    for row, token, expected in zip(rows, tokens[1:], right[:-1], strict=True):
        order = np.argsort(-expected, kind="stable")
        assert next(iter(row)) == str(token)
        assert len(row) == ALTERNATIVES + (token not in order[:ALTERNATIVES])
        for name, entry in row.items():
            value = expected[int(name)]
            assert entry["logprob"] == pytest.approx(value, abs=TOLERANCE)
            assert expected[order[entry["rank"] - 1]] == pytest.approx(value, abs=TOLERANCE)
            assert entry["decoded_token"] == bytes([int(name)]).decode(errors="replace")


def cached(answer: sse.Json) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_echoed_tokens_have_the_same(scored: httpx.Client, tokens: list[int]) -> None:
    options = {"echo": True, "logprobs": 2, "return_tokens_as_token_ids": True}
    choice = sse.complete(scored, tokens, 0, **options, prompt_logprobs=0)
    echoed, rows = choice["logprobs"], choice["prompt_logprobs"]
    assert echoed["tokens"] == [f"token_id:{token}" for token in tokens]
    own = [row[str(token)]["logprob"] for row, token in zip(rows[1:], tokens[1:], strict=True)]
    assert echoed["token_logprobs"] == [None, *own]
    assert {len(row) for row in rows[1:]} == {1}, "0 alternatives"
    assert {len(row) for row in echoed["top_logprobs"][1:]} <= {2, 3}
    (event,) = sse.whole(scored, "/v1/completions", {"prompt": tokens, "max_tokens": 0, **options})
    assert event["choices"][0]["logprobs"] == echoed


def test_they_are_those_of_llm(started: Server, tiny: Path, tokens: list[int]) -> None:
    """Both endpoints, and a gateway between."""
    wanted: sse.Json = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": ALTERNATIVES}
    wanted["return_token_ids"] = True
    turn = {"messages": [{"role": "user", "content": "score this"}]}
    with (
        Gateway("--backend", started.url) as gateway,
        httpx.Client(base_url=gateway.url, timeout=HANG) as client,
    ):
        choice = sse.post(client, "/v1/completions", {"prompt": tokens, **wanted})["choices"][0]
        chat = sse.post(client, "/v1/chat/completions", {**turn, **wanted})
        streamed = {"prompt": tokens, **wanted, "stream": True}
        refused = client.post("/v1/completions", json=streamed)
    assert refused.status_code == httpx.codes.BAD_REQUEST
    assert refused.json()["error"]["param"] == "prompt_logprobs"
    prompts = [tokens, chat["prompt_token_ids"]]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=ALTERNATIVES)
    llm = LLM(str(tiny), dtype="float32", max_num_seqs=2, kv_cache_memory_bytes="16MiB")
    try:
        results = llm.generate(prompts, params, use_tqdm=False)
    finally:
        llm.close()
    for answer, result in zip((choice, chat), results, strict=True):
        assert result.prompt_logprobs is not None
        shown = [
            row and {str(token): entry._asdict() for token, entry in row.items()}
            for row in result.prompt_logprobs
        ]
        assert numbers(answer["prompt_logprobs"]) == numbers(shown)


def numbers(rows: list[Row | None]) -> list[Row | None]:
    """With log-probabilities of 32 bits, which JSON writes with fewer digits than Python."""
    return [
        row and {token: {**e, "logprob": np.float32(e["logprob"])} for token, e in row.items()}
        for row in rows
    ]
