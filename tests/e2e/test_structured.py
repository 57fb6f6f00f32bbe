"""Structured output: what clients send for it, checked by independent validators."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.server import Server, metric
from tests.limits import HANG

ASK = [{"role": "user", "content": "Name a person and their age."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


class Person(BaseModel):
    name: str
    age: int
    mood: Literal["happy", "sad"]


@pytest.fixture(scope="module")
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(sdk: openai.OpenAI, **fields: object) -> openai.types.chat.ChatCompletion:
    options = {"max_tokens": 200, "seed": 1, **fields}
    return sdk.chat.completions.create(model="smollm2", messages=ASK, **options)


def valid(text: str, schema: dict[str, object]) -> object:
    value = json.loads(text)
    jsonschema.validate(value, schema)
    return value


def test_the_sdk_parses_a_model(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.parse(
        model="smollm2", messages=ASK, response_format=Person, max_tokens=300, temperature=0
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Person)


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_every_choice_is_valid_streamed_and_whole(sdk: openai.OpenAI, temperature: float) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": SCHEMA}}
    options = {"response_format": wanted, "n": 3, "temperature": temperature}
    whole = ask(sdk, **options)
    texts = ["", "", ""]
    for event in ask(sdk, stream=True, **options):
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
    assert [c.message.content for c in whole.choices] == texts
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        valid(choice.message.content or "", SCHEMA)


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"structured_outputs": {"regex": "[a-f]{3}-[0-9]{4}"}}, "[a-f]{3}-[0-9]{4}"),
        ({"guided_regex": "^(yes|no)!+\\.$"}, r"(yes|no)!+\."),
        ({"regex": "é{2}[^a-z]"}, "é{2}[^a-z]"),
        ({"structured_outputs": {"choice": ["red", "green", "red-ish"]}}, "red|green|red-ish"),
        ({"guided_choice": ["a b", 'c"d']}, 'a b|c"d'),
        ({"grammar": 'root ::= "x" [0-9]+ ("," item)? "."\nitem ::= [a-c]'}, r"x\d+(,[a-c])?\."),
        ({"guided_grammar": 'start: "x" NUM\nNUM: /[0-9]{2}/'}, r"x\d\d"),
    ],
)
def test_texts_match(sdk: openai.OpenAI, extra: dict[str, object], pattern: str) -> None:
    for seed in range(3):
        answer = ask(sdk, extra_body=extra, seed=seed, temperature=1.2)
        (choice,) = answer.choices
        text = choice.message.content or ""
        if choice.finish_reason == "stop":
            assert re.fullmatch(pattern, text), text
        else:
            assert choice.finish_reason == "length"


def test_any_object(sdk: openai.OpenAI) -> None:
    answer = ask(sdk, response_format={"type": "json_object"}, max_tokens=1000, temperature=0)
    (choice,) = answer.choices
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content or ""), dict)
    assert (choice.message.content or "").startswith("{")


def test_a_structural_tag_constrains_its_part(sdk: openai.OpenAI) -> None:
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "tags_with_separator",
            "separator": "\n",
            "at_least_one": True,
            "stop_after_first": True,
            "tags": [
                {
                    "type": "tag",
                    "begin": "<call>",
                    "content": {"type": "json_schema", "json_schema": SCHEMA},
                    "end": "</call>",
                }
            ],
        },
    }
    answer = ask(sdk, extra_body={"response_format": tag}, temperature=1)
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    found = re.fullmatch("<call>(.*)</call>", choice.message.content or "", re.DOTALL)
    assert found
    valid(found[1], SCHEMA)


def test_completions_take_them_too(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(
        model="smollm2",
        prompt=["The sky is", "Grass is"],
        n=2,
        extra_body={"structured_outputs": {"choice": [" blue", " green"]}},
    )
    assert len(answer.choices) == 4
    assert {choice.text for choice in answer.choices} <= {" blue", " green"}
    assert all(choice.finish_reason == "stop" for choice in answer.choices)


def test_the_length_limit_cuts(sdk: openai.OpenAI) -> None:
    answer = ask(sdk, extra_body={"regex": "[a-z]{400}"}, max_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage
    assert answer.usage.completion_tokens == 5


DEEP = "(" * 5000 + "a" + ")" * 5000
CHAIN = "\n".join(f"r{i}: r{i + 1}" for i in range(12_000)) + '\nr12000: "a"\nstart: r0'
REFS = {
    "$defs": {
        **{f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)},
        "d5000": {"type": "null"},
    },
    "$ref": "#/$defs/d0",
}
WIDE = {
    "type": "object",
    "properties": {f"p{i}": {"type": "string", "maxLength": 9000} for i in range(4000)},
}
CROSS = {"allOf": [{"anyOf": [{"minimum": i} for i in range(60)]} for _ in range(60)]}


@pytest.mark.parametrize(
    ("extra", "param", "reason"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
         "response_format", "not"),
        ({"guided_json": {"type": "nothing"}}, "guided_json", "nothing"),
        ({"guided_json": "{"}, "guided_json", "JSON"),
        ({"guided_json": {"$ref": "http://example.com/x"}}, "guided_json", "example.com"),
        ({"guided_json": {"x-guidance": {"lenient": True}}}, "guided_json", "x-guidance"),
        ({"guided_json": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}, "guided_json", "oneOf"),
        ({"guided_json": False}, "guided_json", ""),
        ({"guided_json": {"type": "integer", "multipleOf": 99_999_989}}, "guided_json",
         "multipleOf"),
        ({"guided_grammar": 'start: %json {"multipleOf": 99999989}'}, "guided_grammar",
         "multipleOf"),
        ({"guided_regex": "(a"}, "guided_regex", ""),
        ({"guided_regex": "(?=a)b"}, "guided_regex", "look"),
        ({"guided_regex": DEEP}, "guided_regex", "deeper"),
        ({"guided_choice": []}, "guided_choice", "no choice"),
        ({"guided_grammar": "start: other"}, "guided_grammar", "other"),
        ({"guided_grammar": 'root ::= other'}, "guided_grammar", "other"),
        ({"guided_grammar": 'start: "a'}, "guided_grammar", ""),
        ({"structural_tag": {"format": {"type": "qwen_xml_parameter"}}}, "structural_tag", "qwen"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "one at a time"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "guided_regex"),
        ({"guided_whitespace_pattern": " ", "guided_json": {}}, "guided_whitespace_pattern", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_name(
    sdk: openai.OpenAI, extra: dict[str, object], param: str, reason: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(sdk, extra_body=extra)
    assert refused.value.param == param
    assert reason.lower() in str(refused.value).lower()


LARGE: dict[str, dict[str, object]] = {
    "rules": {"guided_grammar": CHAIN},
    "refs": {"guided_json": REFS},
    "properties": {"guided_json": WIDE},
    "products": {"guided_json": CROSS},
    "counts": {"guided_regex": "[a-z]{1,30000}"},
    "nested counts": {"guided_regex": "((a{1,999}){1,999}){1,999}"},
    "nested small counts": {"guided_regex": "((a{1,100}){1,100}){1,100}"},
    "stars": {"guided_regex": "(a|b|ab)*" * 400},
    "choices": {"guided_choice": [f"choice {i}" for i in range(9000)]},
    "values": {"guided_json": {"enum": [f"value {i}" for i in range(9000)]}},
}


@pytest.mark.parametrize("extra", LARGE.values(), ids=LARGE)
def test_large_grammars_answer_in_time(
    sdk: openai.OpenAI, server: Server, extra: dict[str, object]
) -> None:
    """An answer or a refusal within the time to compile and a few tokens; others go on."""
    (field,) = extra
    body = {"messages": ASK, "max_tokens": 3, **extra}
    with server.client() as client:
        found = client.post("/v1/chat/completions", json=body, timeout=HANG)
    if found.status_code == 200:
        assert found.json()["choices"][0]["finish_reason"] in ("length", "stop")
    else:
        assert (found.status_code, found.json()["error"]["param"]) == (400, field)
    assert ask(sdk, max_tokens=2).choices[0].finish_reason == "length"
    with server.client() as client:
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("ranks", [(), ("-tp", "2"), ("-pp", "2")], ids=["one", "tp", "pp"])
def test_outputs_are_the_same_at_any_load(serve: Serve, ranks: tuple[str, ...]) -> None:
    """Alone and together, where chunks are small and memory is short."""
    short = ["--max-model-len", "320", "--block-size", "16", "--kv-cache-memory-bytes", "8MiB"]
    with serve(*short, "--max-num-batched-tokens", "48", *ranks) as server:
        alone = [answer(server, seed) for seed in range(8)]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda seed: answer(server, seed), range(8))) == alone
        with server.client() as client:
            assert ranks or metric(client, "vllm:num_preemptions_total") > 0
    whole = [text for text, finish in alone if finish == "stop"]
    assert whole
    for text in whole:
        valid(text, LONG)


LONG = {"type": "array", "items": SCHEMA, "minItems": 2, "maxItems": 3}


def answer(server: Server, seed: int) -> tuple[str, str]:
    fields = {"seed": seed, "temperature": 1.0, "max_tokens": 140, "guided_json": LONG}
    with httpx.Client(base_url=server.url, timeout=HANG) as client:
        found = sse.post(client, "/v1/chat/completions", {"messages": ASK, **fields})
    (choice,) = found["choices"]
    return choice["message"]["content"], choice["finish_reason"]
