"""Tool calls of a small model through the official client: cases of the kind of the Berkeley
function-calling leaderboard, with calls demanded, so that a grammar makes them certain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.e2e.server import Server
from tests.limits import HANG

openai = pytest.importorskip("openai", reason="install openai to test its client")

Schema = dict[str, Any]


def tool(name: str, description: str, required: list[str], **properties: Schema) -> Schema:
    """A function in OpenAI's form; strings are short, so that an answer ends."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOKENS = 160
"""Enough for a call of any of these functions."""
WORD: Schema = {"type": "string", "maxLength": 24}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 1000}
UNIT: Schema = {"type": "string", "enum": ["celsius", "fahrenheit"]}

WEATHER = tool("get_weather", "The weather of a city.", ["city"], city=WORD, unit=UNIT)
TIME = tool("get_time", "The time in a zone.", ["zone"], zone=WORD)
SUM = tool("add", "The sum of two numbers.", ["a", "b"], a=COUNT, b=COUNT)
AREA = tool(
    "triangle.area", "The area of a triangle.", ["base", "height"], base=COUNT, height=COUNT
)
MAIL = tool(
    "send_mail",
    "Sends a letter.",
    ["to", "subject", "urgent"],
    to={"type": "array", "items": WORD, "minItems": 1, "maxItems": 3},
    subject=WORD,
    urgent={"type": "boolean"},
)
BOOK = tool(
    "book_table",
    "Books a table.",
    ["guests", "when"],
    guests={"type": "integer", "minimum": 1, "maximum": 20},
    when={
        "type": "object",
        "properties": {"day": WORD, "hour": {"type": "integer", "minimum": 0, "maximum": 23}},
        "required": ["day", "hour"],
        "additionalProperties": False,
    },
    note={"anyOf": [WORD, {"type": "null"}]},
)
NOTHING = {"type": "function", "function": {"name": "stop_music", "description": "Stops it."}}
ALL = [WEATHER, TIME, SUM, AREA, MAIL, BOOK, NOTHING]

SIMPLE = [
    ([WEATHER], "What is the weather in Paris in celsius?"),
    ([TIME], "What time is it in Tokyo?"),
    ([SUM], "What is 17 and 25 together?"),
    ([AREA], "A triangle has a base of 10 and a height of 5. What is its area?"),
    ([MAIL], "Write to Anna and Ben that lunch is ready, it is urgent."),
    ([BOOK], "A table for four on Friday at seven in the evening, please."),
    ([NOTHING], "Please turn the music off."),
]
PARALLEL = [
    ([WEATHER, TIME], "What is the weather in Rome, and what time is it in Oslo?"),
    ([SUM], "Add 1 and 2, then add 3 and 4."),
]


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=HANG
    ) as made:
        yield made


def checked(tools: list[Schema], calls: list[tuple[str, str]]) -> list[str]:
    """Names of the calls, whose arguments follow the schemas."""
    schemas = {t["function"]["name"]: t["function"].get("parameters", {}) for t in tools}
    for name, arguments in calls:
        value = json.loads(arguments)
        assert isinstance(value, dict)
        jsonschema.validate(value, schemas[name])
    return [name for name, _ in calls]


def ask(
    sdk: openai.OpenAI, tools: list[Schema], question: str, **more: Any
) -> tuple[list[tuple[str, str]], str]:
    """Calls and finish reason."""
    answer = sdk.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": question}],
        tools=tools,
        **{"max_tokens": TOKENS, **more},
    )
    (choice,) = answer.choices
    calls = choice.message.tool_calls or []
    assert len({call.id for call in calls}) == len(calls)
    return [(call.function.name, call.function.arguments) for call in calls], choice.finish_reason


def ask_as_a_stream(
    sdk: openai.OpenAI, tools: list[Schema], question: str, **more: Any
) -> tuple[list[tuple[str, str]], str]:
    calls: list[list[str]] = []
    finish = ""
    stream = sdk.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": question}],
        tools=tools,
        max_tokens=TOKENS,
        stream=True,
        **more,
    )
    for chunk in stream:
        (choice,) = chunk.choices
        for call in choice.delta.tool_calls or []:
            if call.id:
                assert call.index == len(calls)
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments or ""
        finish = choice.finish_reason or finish
    return [(name, arguments) for name, arguments in calls], finish


ONE_CALL = {"tool_choice": "required", "parallel_tool_calls": False}


@pytest.mark.parametrize(("tools", "question"), SIMPLE)
def test_one_call_is_demanded(sdk: openai.OpenAI, tools: list[Schema], question: str) -> None:
    whole, finish = ask(sdk, tools, question, **ONE_CALL, temperature=0)
    assert len(checked(tools, whole)) == 1
    assert finish == "tool_calls"
    assert ask_as_a_stream(sdk, tools, question, **ONE_CALL, temperature=0) == (whole, finish)


@pytest.mark.parametrize("question", [question for _, question in SIMPLE])
def test_one_call_of_several_functions_is_demanded(sdk: openai.OpenAI, question: str) -> None:
    calls, finish = ask(sdk, ALL, question, **ONE_CALL, temperature=0)
    assert len(checked(ALL, calls)) == 1
    assert finish == "tool_calls"


def test_random_answers_are_calls_too(sdk: openai.OpenAI) -> None:
    for seed, (tools, question) in enumerate(SIMPLE):
        calls, _ = ask(sdk, tools, question, **ONE_CALL, seed=seed, temperature=1.2)
        assert len(checked(tools, calls)) == 1


@pytest.mark.parametrize("name", [t["function"]["name"] for t in ALL])
def test_a_named_call(sdk: openai.OpenAI, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    calls, finish = ask(sdk, ALL, "Do something.", tool_choice=choice, temperature=0)
    assert checked(ALL, calls) == [name]
    assert finish == "stop"


@pytest.mark.parametrize(("tools", "question"), PARALLEL)
def test_several_calls_may_come(sdk: openai.OpenAI, tools: list[Schema], question: str) -> None:
    calls, finish = ask(sdk, tools, question, tool_choice="required", temperature=0)
    # The last one may be cut off by max_tokens.
    whole = calls if finish == "tool_calls" else calls[:-1]
    assert checked(tools, whole)
    assert ask_as_a_stream(sdk, tools, question, tool_choice="required", temperature=0) == (
        calls,
        finish,
    )


def test_the_result_of_a_call_goes_back(sdk: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = sdk.chat.completions.create(
        model="smollm2",
        messages=messages,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=TOKENS,
    )
    message = answer.choices[0].message
    assert message.tool_calls
    (call,) = message.tool_calls
    messages += [
        message,
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 24 degrees."},
    ]
    answer = sdk.chat.completions.create(
        model="smollm2", messages=messages, tools=[WEATHER], temperature=0, max_tokens=60
    )
    assert answer.choices[0].finish_reason in ("stop", "tool_calls", "length")


def test_tools_may_be_left_alone(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Tell me the capital of France."}],
        tools=[WEATHER],
        tool_choice="none",
        temperature=0,
        max_tokens=30,
    )
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content


def test_strict_calls_follow_their_schemas_where_text_is_free(sdk: openai.OpenAI) -> None:
    tools = [WEATHER, TIME, SUM]
    strict = [{**each, "function": {**each["function"], "strict": True}} for each in tools]
    names = []
    for _, question in SIMPLE[:3]:
        for seed in (1, 2):
            told = f'{question} Call a tool: write <tool_call>\n{{"name": "'
            drawn = {"temperature": 1.0, "top_p": 0.9, "seed": seed, "max_tokens": 80}
            calls, reason = ask(sdk, strict, told, **drawn)
            if reason != "length":
                names += checked(strict, calls)
    assert names, "the model never called: the test has seen nothing"
