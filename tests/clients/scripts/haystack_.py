"""Haystack's generator of chats."""

from check import BASE_URL, MODEL, QUESTION, feature
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret


def weather(city: str) -> str:
    return f"It is warm in {city}."


TOOL = Tool(
    name="weather",
    description="The weather in a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    function=weather,
)


def reply(question: str = QUESTION, **more: object) -> ChatMessage:
    generator = OpenAIChatGenerator(
        api_key=Secret.from_token("none"),
        model=MODEL,
        api_base_url=BASE_URL,
        **{"generation_kwargs": {"max_tokens": 200}, **more},
    )
    return generator.run([ChatMessage.from_user(question)])["replies"][0]


@feature("chat")
def _() -> None:
    assert reply().text


@feature("stream")
def _() -> None:
    chunks: list[object] = []
    assert reply(streaming_callback=chunks.append).text
    assert len(chunks) > 1


@feature("tools: required")
def _() -> None:
    demanded = {"max_tokens": 200, "tool_choice": "required"}
    found = reply("Is it warm in Rome?", tools=[TOOL], generation_kwargs=demanded)
    assert found.tool_calls[0].tool_name == "weather"


@feature("tools: auto")
def _() -> None:
    found = reply("Is it warm in Rome?", tools=[TOOL])
    assert found.text or found.tool_calls
