"""`SamplingParams(structured_outputs=...)`, checked by independent validators."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from penstock import LLM, GuidedDecodingParams, SamplingParams, StructuredOutputsParams
from penstock.core import InvalidValueError, PenstockError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [1, 22, 333]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
DIGITS = r"[0-9]{3}-[a-f]{2}"
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<a>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</a>",
    },
}


@pytest.fixture(scope="module")
def llm(model_file: Path) -> Iterator[LLM]:
    pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")
    made = LLM(str(model_file), max_num_seqs=8, kv_cache_memory_bytes="64MiB", max_model_len=512)
    yield made
    made.close()


def texts(llm: LLM, wanted: StructuredOutputsParams, **more: Any) -> list[str]:
    """Outputs of two prompts, two choices each, drawn far from what the model would say."""
    options = {"temperature": 1.5, "seed": 3, "n": 2, "max_tokens": 120, **more}
    params = SamplingParams(structured_outputs=wanted, **options)
    results = llm.generate(["Tell me about", "A person:"], params, use_tqdm=False)
    outputs = [output for result in results for output in result.outputs]
    assert [output.finish_reason for output in outputs] == ["stop"] * 4
    return [output.text for output in outputs]


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)])
def test_every_output_follows_a_schema(llm: LLM, schema: str | dict[str, Any]) -> None:
    for text in texts(llm, StructuredOutputsParams(json=schema)):
        jsonschema.validate(json.loads(text), SCHEMA)


def test_every_output_matches_a_pattern_and_is_one_of_the_choices(llm: LLM) -> None:
    for text in texts(llm, StructuredOutputsParams(regex=DIGITS)):
        assert re.fullmatch(DIGITS, text)
    choices = ["red", "green", "deep blue"]
    assert set(texts(llm, StructuredOutputsParams(choice=choices))) <= set(choices)


def test_any_object(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=200, structured_outputs=StructuredOutputsParams(json_object=True)
    )
    (output,) = llm.generate("A short JSON object:", params)[0].outputs
    if output.finish_reason == "stop":
        assert isinstance(json.loads(output.text), dict)
    else:
        assert output.text.startswith("{")


def test_grammars_and_tags(llm: LLM) -> None:
    gbnf = 'root ::= "yes " name | "no"\nname ::= [a-c]+ "."'
    for text in texts(llm, StructuredOutputsParams(grammar=gbnf)):
        assert re.fullmatch(r"yes [a-c]+\.|no", text)
    for text in texts(llm, StructuredOutputsParams(structural_tag=TAG)):
        found = re.fullmatch("<a>(.*)</a>", text, re.DOTALL)
        assert found
        jsonschema.validate(json.loads(found[1]), SCHEMA)


def test_the_older_name_and_different_grammars_in_one_batch(llm: LLM) -> None:
    older = SamplingParams(guided_decoding=GuidedDecodingParams(choice=["x", "y"]))
    free = SamplingParams(temperature=0, max_tokens=5)
    pattern = SamplingParams(structured_outputs=StructuredOutputsParams(regex="z{4}"))
    results = llm.generate(["One", "Two", "Three"], [older, free, pattern])
    first, second, third = (result.outputs[0] for result in results)
    assert first.text in ("x", "y")
    assert second.token_ids == llm.generate("Two", free)[0].outputs[0].token_ids
    assert (third.text, third.finish_reason) == ("zzzz", "stop")


def test_end_tokens_are_drawn_only_where_the_output_is_whole(llm: LLM) -> None:
    """Also with `min_tokens`, which is void where nothing but the end may follow."""
    stop = llm.get_tokenizer().encode("!", False)
    four = StructuredOutputsParams(regex="[0-9]{4}")
    for more in ({"stop_token_ids": stop, "logit_bias": {stop[0]: 50.0}}, {"min_tokens": 20}):
        for text in texts(llm, four, **more):
            assert re.fullmatch("[0-9]{4}", text)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "structured_outputs"),
        ({"regex": "a", "choice": ["a"]}, "structured_outputs"),
        ({"json": 7}, "json"),
        ({"json": {"a": {1}}}, "json"),
        ({"choice": "ab"}, "choice"),
        ({"choice": ["a", 1]}, "choice"),
        ({"regex": 1}, "regex"),
        ({"json": {}, "whitespace_pattern": " "}, "whitespace_pattern"),
        ({"json": {}, "disable_any_whitespace": True}, "disable_any_whitespace"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{named}"):
        StructuredOutputsParams(**fields)


def test_what_does_not_go_together_is_refused_by_name() -> None:
    wanted = StructuredOutputsParams(regex="a")
    with pytest.raises(InvalidValueError, match="ignore_eos"):
        SamplingParams(structured_outputs=wanted, ignore_eos=True)
    with pytest.raises(InvalidValueError, match="guided_decoding"):
        SamplingParams(structured_outputs=wanted, guided_decoding=wanted)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (StructuredOutputsParams(json='{"type": "strin'), r"structured_outputs\.json: .*not JSON"),
        (StructuredOutputsParams(json={"not": {}}), r"structured_outputs\.json: .*not"),
        (StructuredOutputsParams(regex="a(?=b)"), r"structured_outputs\.regex"),
        (StructuredOutputsParams(grammar="root ::= nowhere"), r"structured_outputs\.grammar"),
        (StructuredOutputsParams(choice=[]), r"structured_outputs\.choice"),
        (StructuredOutputsParams(structural_tag={"type": "x"}), r"structured_outputs\.structural"),
    ],
)
def test_a_wrong_grammar_ends_the_batch_before_it_begins(
    llm: LLM, wanted: StructuredOutputsParams, reason: str
) -> None:
    with pytest.raises(PenstockError, match=reason):
        llm.generate(["a", "b"], SamplingParams(structured_outputs=wanted))
    assert llm.generate("a", SamplingParams(max_tokens=1))[0].finished
