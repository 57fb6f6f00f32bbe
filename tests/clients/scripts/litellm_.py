"""The litellm SDK, over its two providers for servers of this kind."""

import json

import litellm
from check import BASE_URL, MODEL, QUESTION, feature
from pydantic import BaseModel, Field


class Capital(BaseModel):
    city: str = Field(max_length=40)
    country: str = Field(max_length=40)


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
MESSAGES = [{"role": "user", "content": QUESTION}]


for provider in ("openai", "hosted_vllm"):

    def complete(provider: str = provider, **more: object) -> object:
        return litellm.completion(
            model=f"{provider}/{MODEL}",
            messages=MESSAGES,
            api_base=BASE_URL,
            api_key="none",
            max_tokens=200,
            **more,
        )

    @feature(f"{provider}: chat")
    def _(complete: object = complete) -> None:
        assert complete().choices[0].message.content

    @feature(f"{provider}: stream")
    def _(complete: object = complete) -> None:
        chunks = complete(stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    @feature(f"{provider}: n and penalties")
    def _(complete: object = complete) -> None:
        assert len(complete(n=2, presence_penalty=0.5, frequency_penalty=0.5).choices) == 2

    @feature(f"{provider}: tools")
    def _(complete: object = complete) -> None:
        answer = complete(tools=[TOOL], tool_choice="required")
        call = answer.choices[0].message.tool_calls[0].function
        assert call.name == "weather"
        assert isinstance(json.loads(call.arguments)["city"], str)

    @feature(f"{provider}: response_format")
    def _(complete: object = complete) -> None:
        Capital.model_validate_json(complete(response_format=Capital).choices[0].message.content)


@feature("responses")
def _() -> None:
    found = litellm.responses(
        model=f"openai/{MODEL}",
        input=QUESTION,
        api_base=BASE_URL,
        api_key="none",
        max_output_tokens=50,
    )
    assert found.output


@feature("anthropic messages")
def _() -> None:
    found = litellm.completion(
        model=f"anthropic/{MODEL}",
        messages=MESSAGES,
        api_base=BASE_URL.removesuffix("/v1"),
        api_key="none",
        max_tokens=50,
    )
    assert found.choices[0].message.content


@feature("context overflow")
def _() -> None:
    try:
        litellm.completion(
            model=f"hosted_vllm/{MODEL}",
            messages=[{"role": "user", "content": "word " * 30_000}],
            api_base=BASE_URL,
            api_key="none",
        )
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("accepted")


for provider in ("openai", "hosted_vllm"):

    @feature(f"{provider}: embeddings")
    def _(provider: str = provider) -> None:
        found = litellm.embedding(
            model=f"{provider}/{MODEL}",
            input=[QUESTION, "Once upon a time"],
            api_base=BASE_URL,
            api_key="none",
        )
        assert len(found.data) == 2


@feature("hosted_vllm: rerank")
def _() -> None:
    found = litellm.rerank(
        model=f"hosted_vllm/{MODEL}",
        query=QUESTION,
        documents=["Paris is the capital of France.", "Bread is made of flour."],
        top_n=1,
        api_base=BASE_URL.removesuffix("/v1"),
        api_key="none",
    )
    assert len(found.results) == 1
