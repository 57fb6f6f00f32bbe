"""/v1/responses and /v1/messages, read by the client libraries of their protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter

from tests.e2e.server import Server
from tests.limits import HANG

openai = pytest.importorskip("openai", reason="install openai to test its client")
anthropic = pytest.importorskip("anthropic", reason="install anthropic to test its client")

GOLDEN = Path(__file__).parents[1] / "golden" / "sse"
QUESTION = [{"role": "user", "content": "Tell me the capital of France."}]
# The library knows models whose temperature is fixed.
GREEDY = {"temperature": 0}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
ANSWER = "The capital of France is Paris."


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=HANG
    ) as made:
        yield made


@pytest.fixture
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="any", max_retries=0, timeout=HANG
    ) as made:
        yield made


def golden(name: str) -> list[dict[str, Any]]:
    events = (GOLDEN / name).read_text().split("\n\n")[:-1]
    return [json.loads(event.split("\ndata: ")[1]) for event in events]


@pytest.mark.parametrize("name", ["response.sse", "response_failed.sse"])
def test_every_event_of_a_response_has_its_type(name: str) -> None:
    from openai.types.responses import Response, ResponseStreamEvent

    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in golden(name):
        read = adapter.validate_python(event, strict=True)
        assert read.type == event["type"]
        assert type(read).model_fields.keys() >= event.keys(), "no member that the type lacks"
    last = Response.model_validate(golden(name)[-1]["response"], strict=True)
    unknown = set(last.model_extra or {})
    assert unknown <= {"store"}, "which OpenAI's server sends and its library leaves out"


def test_every_event_of_a_message_has_its_type() -> None:
    from anthropic.types import RawMessageStreamEvent

    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for event in golden("message.sse"):
        if event["type"] != "ping":
            assert adapter.validate_python(event, strict=True).type == event["type"]


def test_a_response(sdk: openai.OpenAI) -> None:
    answer = sdk.responses.create(
        model="smollm2", input="Tell me the capital of France.", temperature=0, store=True
    )
    assert answer.output_text == ANSWER
    assert answer.status == "completed"
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (37, 8)
    counted = sdk.responses.input_tokens.count(model="smollm2", input=QUESTION)
    assert counted.input_tokens == 37


def test_a_response_as_a_stream(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(model="alias", input=QUESTION, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == ANSWER == final.output_text
    assert len(texts) > 3, "it comes in pieces"
    assert final.model == "alias"


def test_a_conversation_goes_on_with_what_was_answered(sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(model="smollm2", input=QUESTION, temperature=0)
    items = [item.model_dump(exclude_none=True) for item in first.output]
    more = [*QUESTION, *items, {"role": "user", "content": "And of Italy?"}]
    second = sdk.responses.create(
        model="smollm2", input=more, temperature=0, max_output_tokens=4, instructions="Be brief."
    )
    assert second.status == "incomplete"
    assert second.incomplete_details is not None
    assert second.incomplete_details.reason == "max_output_tokens"
    by_chat = sdk.chat.completions.create(
        model="smollm2",
        messages=[
            {"role": "system", "content": "Be brief."},
            *QUESTION,
            {"role": "assistant", "content": ANSWER},
            {"role": "user", "content": "And of Italy?"},
        ],
        temperature=0,
        max_tokens=4,
    )
    assert second.output_text == by_chat.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="whole conversation"):
        sdk.responses.create(model="smollm2", input="And?", previous_response_id=first.id)
    with pytest.raises(openai.NotFoundError, match="does not store"):
        sdk.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError, match="does not store"):
        sdk.responses.delete(first.id)


class City(BaseModel):
    name: str
    is_capital: bool


def test_demanded_calls_and_formats_of_a_response(sdk: openai.OpenAI) -> None:
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}
    question = "What is the weather in Paris?"
    answer = sdk.responses.create(
        model="smollm2",
        input=question,
        tools=[tool, {"type": "web_search"}],
        tool_choice={"type": "function", "name": "weather"},
        temperature=0,
    )
    (call,) = answer.output
    assert (call.type, call.name) == ("function_call", "weather")
    assert list(json.loads(call.arguments)) == ["city"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    after = sdk.responses.create(
        model="smollm2",
        input=[{"role": "user", "content": question}, call.model_dump(), result],
        tools=[tool],
        max_output_tokens=16,
    )
    assert after.output
    with sdk.responses.stream(
        model="smollm2", input="Describe Paris.", text_format=City, temperature=0
    ) as stream:
        parsed = stream.get_final_response().output_parsed
    assert isinstance(parsed, City)


def test_demanded_calls_and_formats_of_a_message(claude: anthropic.Anthropic) -> None:
    tool = {"name": "weather", "input_schema": PARAMETERS}
    question: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    with claude.messages.stream(
        model="smollm2",
        max_tokens=60,
        messages=question,
        tools=[tool],
        tool_choice={"type": "tool", "name": "weather"},
        extra_body=GREEDY,
    ) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    (call,) = message.content
    assert list(call.input) == ["city"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    history = [*question, {"role": "assistant", "content": message.content}]
    after = claude.messages.create(
        model="smollm2",
        max_tokens=16,
        messages=[*history, {"role": "user", "content": [result]}],
        tools=[tool],
    )
    assert after.content
    parsed = claude.messages.parse(
        model="smollm2",
        max_tokens=60,
        messages=[{"role": "user", "content": "Describe Paris."}],
        output_format=City,
        extra_body=GREEDY,
    )
    assert isinstance(parsed.parsed_output, City)


def test_a_message_goes_on_where_the_assistant_ended(claude: anthropic.Anthropic) -> None:
    begun = {"role": "assistant", "content": "The capital of France is"}
    answer = claude.messages.create(
        model="smollm2", max_tokens=2, messages=[*QUESTION, begun], extra_body=GREEDY
    )
    assert answer.content[0].text == " Paris."


def test_a_message(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.create(
        model="smollm2",
        max_tokens=30,
        messages=QUESTION,
        stop_sequences=["xyz"],
        extra_body=GREEDY,
    )
    assert [(block.type, block.text) for block in answer.content] == [("text", ANSWER)]
    assert answer.stop_reason == "end_turn"
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == 37
    assert usage.output_tokens == 8
    assert answer._request_id
    counted = claude.messages.count_tokens(model="smollm2", messages=QUESTION)
    assert counted.input_tokens == 37


def test_a_message_as_a_stream(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(
        model="alias",
        max_tokens=30,
        messages=QUESTION,
        extra_body=GREEDY,
        system=[{"type": "text", "text": "You are a helpful AI assistant."}],
        stop_sequences=["Paris"],
    ) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(texts) == final.content[0].text
    assert final.stop_reason in ("stop_sequence", "end_turn")
    assert final.model == "alias"


def test_errors_of_messages_are_of_the_library(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        claude.messages.create(model="other", max_tokens=3, messages=QUESTION)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        claude.messages.create(
            model="smollm2", max_tokens=3, messages=[{"role": "user", "content": "a b " * 9000}]
        )
    image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        claude.messages.create(
            model="smollm2", max_tokens=3, messages=[{"role": "user", "content": [image]}]
        )


def test_a_key_is_read_from_the_header_of_each_library(serve: Any) -> None:
    with serve("--api-key", "secret", "--served-model-name", "smollm2") as server:
        asked = {"model": "smollm2", "max_tokens": 3, "messages": QUESTION}
        for key, right in [("secret", True), ("wrong", False)]:
            client = anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)
            if right:
                client.messages.create(**asked)
            else:
                with pytest.raises(anthropic.AuthenticationError):
                    client.messages.create(**asked)
        answer = httpx.post(f"{server.url}/v1/responses", json={"input": "hi"})
        assert answer.status_code == 401


def test_the_document_is_openapi(server: Server) -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="`make test-tools`")
    document = httpx.get(f"{server.url}/openapi.json").json()
    validator.validate(document, cls=validator.OpenAPIV31SpecValidator)


def test_the_tokenizer_is_described_for_lm_eval(server: Server, client: httpx.Client) -> None:
    """What the RemoteTokenizer of lm-eval asks for."""
    info = client.get("/tokenizer_info").json()
    body = {"prompt": info["eos_token"], "add_special_tokens": False}
    (eos,) = client.post("/tokenize", json=body).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": [eos]}).json()["prompt"] == info["eos_token"]
    assert "add_generation_prompt" in info["chat_template"]
