"""Hugging Face directories: tiny random checkpoints of each family, whose answers transformers
gave.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.grammar import vocabulary

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)


def write_tokenizer(directory: Path) -> None:
    """Each byte a token: as many as the checkpoints' vocabularies have."""
    vocabulary.write_tokenizer(directory, {"chat_template": TEMPLATE})


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> Path:
    directory = tmp_path / request.param
    shutil.copytree(repository / "tests/fixtures/tiny" / request.param, directory)
    write_tokenizer(directory)
    return directory


# tests/llm/test_families.py has the tokens of all families, without a server.
@pytest.mark.parametrize("checkpoint", ["llama", "deepseek3", "gptoss"], indirect=True)
def test_a_directory_is_served(serve: Serve, checkpoint: Path) -> None:
    reference = json.loads((checkpoint / "reference.json").read_text())
    with serve("--dtype", "float32", model=checkpoint) as server, server.client() as client:
        (card,) = client.get("/v1/models").json()["data"]
        assert card["id"] == checkpoint.name
        count = len(reference["greedy"])
        options = {"ignore_eos": True, "return_token_ids": True}
        choice = sse.complete(client, reference["tokens"], count, **options)
        assert choice["token_ids"] == reference["greedy"]
        question = {
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 4,
            "return_token_ids": True,
        }
        answer = sse.post(client, "/v1/chat/completions", question)
        assert bytes(answer["prompt_token_ids"]) == b"user: hi\nassistant:"


@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
def test_settings_of_the_checkpoint_apply(serve: Serve, checkpoint: Path) -> None:
    """Its generation_config asks for sampling, and ends at either of two tokens."""
    with serve(model=checkpoint) as server, server.client() as client:
        body = {"prompt": "some text", "max_tokens": 60, "return_token_ids": True}
        choices = [sse.post(client, "/v1/completions", body)["choices"][0] for _ in range(8)]
        assert len({tuple(choice["token_ids"]) for choice in choices}) > 1
        for choice in choices:
            ended = choice["finish_reason"] == "stop"
            assert (choice["token_ids"][-1] in (0, 2)) == ended


def test_without_a_tokenizer_token_ids_are_taken(serve: Serve, repository: Path) -> None:
    model = repository / "tests/fixtures/tiny/llama3"
    reference = json.loads((model / "reference.json").read_text())
    flags = ("--skip-tokenizer-init", "--dtype", "float32")
    with serve(*flags, model=model) as server, server.client() as client:
        options = {"ignore_eos": True, "return_token_ids": True, "logprobs": 1}
        choice = sse.complete(client, reference["tokens"], len(reference["greedy"]), **options)
        assert (choice["token_ids"], choice["text"]) == (reference["greedy"], "")
        assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in reference["greedy"]]
        for path, field, body in (
            ("/v1/completions", "prompt", {"prompt": "token_id:3"}),
            ("/v1/completions", "stop", {"prompt": [3], "stop": "token_id:3"}),
            ("/v1/chat/completions", "messages", {"messages": [{"role": "user", "content": "hi"}]}),
            ("/v1/embeddings", "input", {"input": "hi"}),
        ):
            refused = client.post(path, json=body)
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, field)
            assert "--skip-tokenizer-init" in error["message"]
