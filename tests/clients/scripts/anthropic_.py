"""Anthropic's library."""

import anthropic
from check import BASE_URL, MODEL, QUESTION, feature

client = anthropic.Anthropic(
    base_url=BASE_URL.removesuffix("/v1"), api_key="none", max_retries=0, timeout=120
)
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    },
}


@feature("messages")
def _() -> None:
    answer = client.messages.create(model=MODEL, max_tokens=20, messages=MESSAGES, system="Be kind")
    assert answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")


@feature("stream")
def _() -> None:
    with client.messages.stream(model=MODEL, max_tokens=20, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        assert text == stream.get_final_message().content[0].text


@feature("tools: any")
def _() -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    answer = client.messages.create(
        model=MODEL, max_tokens=200, messages=MESSAGES, tools=[TOOL], tool_choice=choice
    )
    assert answer.stop_reason == "tool_use"
    assert isinstance(answer.content[-1].input["city"], str)


@feature("count_tokens")
def _() -> None:
    assert client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 5


@feature("errors")
def _() -> None:
    try:
        client.messages.create(model="other", max_tokens=5, messages=MESSAGES)
    except anthropic.NotFoundError:
        return
    raise AssertionError("a model that is not there")
