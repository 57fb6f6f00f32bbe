"""The official client library."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.server import Server
from tests.limits import HANG

openai = pytest.importorskip("openai", reason="install openai to test its client")

QUESTION = [{"role": "user", "content": "Tell me the capital of France."}]
PROMPTS = [f"The number {n} is" for n in range(8)]


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=HANG
    ) as made:
        yield made


def test_the_model_is_listed(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["smollm2", "alias"]


def test_chat(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model="smollm2", messages=QUESTION, temperature=0, max_tokens=30
    )
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "The capital of France is Paris."
    assert choice.finish_reason == "stop"
    assert answer.model == "smollm2"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (37, 8)


def test_chat_as_a_stream(sdk: openai.OpenAI) -> None:
    chunks = list(
        sdk.chat.completions.create(
            model="alias",
            messages=QUESTION,
            temperature=0,
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(texts) == "The capital of France is Paris."
    assert len([text for text in texts if text]) > 3, "it comes in pieces"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.total_tokens == 45
    assert {chunk.model for chunk in chunks} == {"alias"}
    assert len({chunk.id for chunk in chunks}) == 1


def test_chat_logprobs(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        temperature=0,
        max_tokens=4,
        logprobs=True,
        top_logprobs=3,
    )
    rows = answer.choices[0].logprobs.content
    assert "".join(row.token for row in rows) == answer.choices[0].message.content
    for row in rows:
        assert len(row.top_logprobs) == 3
        assert row.logprob == row.top_logprobs[0].logprob, "greedy takes the best"
        assert (
            row.top_logprobs[0].logprob
            >= row.top_logprobs[1].logprob
            >= row.top_logprobs[2].logprob
        )


def test_completions(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(
        model="smollm2", prompt=PROMPTS[:3], temperature=0, max_tokens=6
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    one = sdk.completions.create(model="smollm2", prompt=PROMPTS[1], temperature=0, max_tokens=6)
    assert one.choices[0].text == answer.choices[1].text


def test_many_at_once_say_what_each_says_alone(server: Server, sdk: openai.OpenAI) -> None:
    async def ask(client: openai.AsyncOpenAI, prompt: str) -> str:
        chunks = await client.completions.create(
            model="smollm2", prompt=prompt, temperature=0, max_tokens=20, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in chunks])

    async def all_at_once() -> list[str]:
        client = openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=HANG
        )
        async with client:
            return await asyncio.gather(*(ask(client, prompt) for prompt in PROMPTS))

    alone = [
        sdk.completions.create(model="smollm2", prompt=prompt, temperature=0, max_tokens=20)
        .choices[0]
        .text
        for prompt in PROMPTS
    ]
    assert asyncio.run(all_at_once()) == alone


def test_choices_of_one_prompt_share_its_tokens_in_the_usage(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model="smollm2", messages=QUESTION, n=3, seed=5, max_tokens=8, temperature=1.5
    )
    alone = sdk.chat.completions.create(
        model="smollm2", messages=QUESTION, seed=5, max_tokens=8, temperature=1.5
    )
    assert answer.usage is not None
    assert alone.usage is not None
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.choices[0].message.content == alone.choices[0].message.content
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens
    assert answer.usage.completion_tokens == 24
    streamed: dict[int, str] = {}
    for chunk in sdk.chat.completions.create(
        model="smollm2", messages=QUESTION, n=3, seed=5, max_tokens=8, temperature=1.5, stream=True
    ):
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    assert streamed == {choice.index: choice.message.content for choice in answer.choices}
    listed = sdk.completions.create(
        model="smollm2", prompt=["One, two,", "Red, green,"], n=2, seed=5, max_tokens=4
    )
    assert [choice.index for choice in listed.choices] == [0, 1, 2, 3]


def test_changes_of_the_logits_do_what_they_say(sdk: openai.OpenAI) -> None:
    def text(**options: Any) -> str:
        return (
            sdk.completions.create(
                model="smollm2", prompt="1 2 3 4", max_tokens=12, temperature=0, **options
            )
            .choices[0]
            .text
        )

    ids = (
        sdk.completions.create(
            model="smollm2",
            prompt="1 2 3 4",
            max_tokens=12,
            temperature=0,
            extra_body={"return_token_ids": True},
        )
        .choices[0]
        .model_extra
    )
    assert ids is not None
    first = ids["token_ids"][0]
    plain = text()
    assert text(logit_bias={str(first): -100}) != plain
    assert len(set(text(logit_bias={"33": 100}))) == 1
    only = text(extra_body={"allowed_token_ids": [33, 34]})
    assert set(only) <= set(text(logit_bias={"33": 100}) + text(logit_bias={"34": 100}))
    assert " 5" not in text(extra_body={"bad_words": ["5"]})
    assert "5" in plain
    assert text(extra_body={"repetition_penalty": 1.8}) != plain
    assert text(frequency_penalty=2, presence_penalty=2) != plain
    assert text(extra_body={"top_k": "3", "min_p": 0.2}) == plain
    stopped = text(stop=" 7", extra_body={"include_stop_str_in_output": True})
    assert stopped.endswith(" 7")
    assert plain.startswith(stopped)
    assert text(extra_body={"truncate_prompt_tokens": 100}) == plain


def test_errors_are_of_the_right_class(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        sdk.chat.completions.create(model="gpt-4", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        sdk.chat.completions.create(model="smollm2", messages=QUESTION, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="presence_penalty"):
        sdk.completions.create(model="smollm2", prompt="x", presence_penalty=3.0)
    with pytest.raises(
        openai.BadRequestError, match="maximum context length is 8192 tokens"
    ) as caught:
        sdk.completions.create(model="smollm2", prompt=[5] * 9000, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"


def test_a_key_is_asked_for(serve: Serve) -> None:
    with serve("--api-key", "one", "--api-key", "two") as server:
        for key in ["one", "two"]:
            client = openai.OpenAI(
                base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=HANG
            )
            with client:
                assert len(list(client.models.list())) == 1
        wrong = openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="three", max_retries=0, timeout=HANG
        )
        with wrong, pytest.raises(openai.AuthenticationError):
            wrong.chat.completions.create(model="smollm2", messages=QUESTION)
        with server.client() as probe:
            assert probe.get("/health").status_code == 200
            assert probe.post("/v1/completions", json={"prompt": "x"}).status_code == 401
        engine = Path(f"/proc/{server.engine()}/cmdline").read_bytes().split(b"\0")
        assert b"one" not in engine, "every user of the machine may read it"


TEXTS = [
    "Paris is the capital of France.",
    "The capital city of France is Paris.",
    "Bake the bread for forty minutes.",
]


def test_embeddings_in_both_encodings(sdk: openai.OpenAI) -> None:
    """The library asks for base64 unless told otherwise."""
    packed = sdk.embeddings.create(model="smollm2", input=TEXTS)
    plain = sdk.embeddings.create(model="smollm2", input=TEXTS, encoding_format="float")
    assert [item.index for item in packed.data] == [0, 1, 2]
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0
    for one, other in zip(packed.data, plain.data, strict=True):
        assert len(one.embedding) == 576
        assert one.embedding == pytest.approx(other.embedding, abs=1e-7)
        assert sum(number * number for number in one.embedding) == pytest.approx(1, abs=1e-5)
    short = sdk.embeddings.create(model="smollm2", input=TEXTS[0], dimensions=64)
    assert len(short.data[0].embedding) == 64
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.embeddings.create(model="smollm2", input="x", dimensions=577)
    assert refused.value.param == "dimensions"


def test_embeddings_beside_answers_have_the_same_bits(server: Server) -> None:
    async def all_at_once() -> list[Any]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=HANG
        ) as sdk:
            texts = [f"{text} {n}" for n in range(8) for text in TEXTS]
            alone = [(await sdk.embeddings.create(model="smollm2", input=text)) for text in texts]
            answers = [
                sdk.completions.create(model="smollm2", prompt=prompt, max_tokens=20)
                for prompt in PROMPTS
            ]
            together, *_ = await asyncio.gather(
                sdk.embeddings.create(model="smollm2", input=texts), *answers
            )
            return [
                [each.data[0].embedding for each in alone],
                [item.embedding for item in together.data],
            ]

    alone, together = asyncio.run(all_at_once())
    assert alone == together


def test_scores_and_reranking(client: httpx.Client) -> None:
    body = {"model": "smollm2", "text_1": TEXTS[0], "text_2": TEXTS}
    data = client.post("/v1/score", json=body).raise_for_status().json()["data"]
    scores = [item["score"] for item in data]
    assert scores[0] == pytest.approx(1, abs=1e-5)
    assert scores[1] > scores[2]
    asked = {"model": "smollm2", "query": TEXTS[0], "documents": TEXTS[:0:-1]}
    results = client.post("/v1/rerank", json=asked).raise_for_status().json()["results"]
    assert [result["index"] for result in results] == [1, 0]
    assert results[0]["relevance_score"] == pytest.approx(scores[1], abs=1e-6)
    assert results[0]["document"]["text"] == TEXTS[1]
