"""Errors name an argument of a wrong name or type, what was given, and what is expected."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.core import InvalidValueError, PenstockError
from penstock.llm import BeamSearchParams, PoolingParams, StructuredOutputsParams
from penstock.llm.arguments import ArgumentError, check_types
from penstock.llm.prompts import Prompt, listed, read_prompt


@pytest.mark.parametrize(
    ("hint", "value", "fault"),
    [
        (int, "3", "x is '3', expected a whole number"),
        (int, 3.0, "x is 3.0, expected a whole number"),
        (int, True, "x is True, expected a whole number"),
        (float, "0.5", "x is '0.5', expected a number"),
        (bool, 1, "x is 1, expected True or False"),
        (str | None, 3, "x is 3, expected a text or None"),
        (Sequence[str] | None, "abc", "x is 'abc', expected a list of texts or None"),
        (str | Sequence[str], ["a", 3], "x[1] is 3, expected a text"),
        (Sequence[Sequence[int]], [[1], [2, "b"]], "x[1][1] is 'b', expected a whole number"),
        (Mapping[int, float], [1], "x is [1], expected a mapping"),
        (Mapping[int, float], {"1": 2}, "a key of x is '1', expected a whole number"),
        (Mapping[int, float], {1: "b"}, "x[1] is 'b', expected a number"),
        (SamplingParams | None, {"n": 1}, "x is {'n': 1}, expected SamplingParams or None"),
        (Callable[..., None], 3, "x is 3, expected a function"),
        (Prompt | Sequence[Prompt], [1, "b"], "x[1] is 'b', expected a whole number"),
        (Prompt | Sequence[Prompt], [[1, None]], "x[0][1] is None, expected a whole number"),
        (
            Prompt,
            b"abc",
            "x is b'abc', expected a text, a list of whole numbers or a mapping",
        ),
    ],
)
def test_a_value_of_a_wrong_type(hint: Any, value: object, fault: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        check_types({"x": value}, {"x": hint})
    assert str(caught.value) == fault


def test_values_that_count_as_the_type() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    for hint, value in (
        (float, 1),
        (float, numpy.float32(0.5)),
        (int, numpy.int64(3)),
        (Sequence[int], numpy.arange(3)),
        (Sequence[int], {1, 2}),
        (Sequence[int], ()),
        (Prompt | Sequence[Prompt], ["a", [1], {"prompt": "b"}]),
        (Any, object()),
    ):
        check_types({"x": value, "unannotated": None}, {"x": hint})
    assert listed(numpy.arange(3)) == [[0, 1, 2]]
    assert listed([numpy.arange(2)])[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (lambda: SamplingParams(max_token=3), "SamplingParams has no argument max_token; did you "),
        (lambda: SamplingParams(max_new_tokens=3), "no argument max_new_tokens: use max_tokens"),
        (lambda: SamplingParams(best_of=2), "SamplingParams has no argument best_of: ask for n"),
        (lambda: SamplingParams(*range(40)), "SamplingParams: too many positional arguments"),
        (lambda: BeamSearchParams(2), "BeamSearchParams: missing a required argument: 'max_token"),
        (lambda: PoolingParams(dimension=2), "no argument dimension; did you mean dimensions?"),
        (lambda: StructuredOutputsParams(schema={}), "StructuredOutputsParams has no argument sch"),
        (LLM, "LLM: missing a required argument: 'model'"),
        (lambda: LLM("a", "b"), "LLM: too many positional arguments"),
        (lambda: LLM("a", port=1), "LLM has no argument port: it is a setting of the server"),
        (lambda: LLM("a", qqq=1), "LLM has no argument qqq; there is .*max_num_seqs.*tokenizer"),
        (lambda: LLM("a", max_seqs=1), "no argument max_seqs; did you mean max_num_seqs?"),
        (lambda: LLM("a", gpu_memory_utilisation=1), "did you mean gpu_memory_utilization?"),
    ],
)
def test_an_argument_of_a_wrong_name(call: Callable[[], object], fault: str) -> None:
    with pytest.raises(ArgumentError, match=fault) as caught:
        call()
    assert isinstance(caught.value, PenstockError)
    assert isinstance(caught.value, TypeError)


def test_arguments_of_vllm_that_are_not_set_are_no_error() -> None:
    params: Any = {"logits_processors": None, "flat_logprobs": False}
    assert SamplingParams(**params) == SamplingParams()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"model": 3}, "model is 3, expected a text or a path"),
        ({"model": None}, "model is None, expected a text or a path"),
        ({"model": "m", "tokenizer": 3}, "tokenizer is 3, expected a text or None"),
        ({"model": "m", "max_model_len": "abc"}, "max_model_len is 'abc', expected an integer in"),
        ({"model": "m", "max_model_len": [1, 2]}, r"max_model_len is \[1, 2\], expected an integ"),
        ({"model": "m", "max_num_seqs": {"a": 1}}, "max_num_seqs is .*, expected an integer in"),
        ({"model": "m", "kv_events_config": {"a": {1}}}, "kv_events_config is .* JSON: Object of"),
        ({"model": "m", "skip_tokenizer_init": 3}, "skip_tokenizer_init is '3', expected true or"),
        (
            {"model": "m", "skip_tokenizer_init": True, "tokenizer": "t"},
            "tokenizer is 't', expected None: no tokenizer is used",
        ),
    ],
)
def test_arguments_of_llm(arguments: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidValueError, match=fault):
        LLM(**arguments)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("n", "2", "a whole number"),
        ("temperature", None, "a number"),
        ("max_tokens", 1.5, "a whole number or None"),
        ("stop", 3, "a text, a list of texts or None"),
        ("bad_words", "abc", "a list of texts or None"),
        ("ignore_eos", "yes", "True or False"),
        ("logprobs", True, "a whole number or None"),
        ("structured_outputs", {"json": {}}, "StructuredOutputsParams or None"),
        ("top_k", 2**70, "an integer in -1..2147483647"),
        ("prompt_logprobs", -1, "an integer in 0..20"),
    ],
)
def test_sampling_parameters_are_checked_when_made_and_when_changed(
    field: str, value: Any, expected: str
) -> None:
    fault = f"{field} is {value!r}, expected {expected}"
    with pytest.raises(InvalidValueError) as made:
        SamplingParams(**{field: value})
    changed = SamplingParams()
    setattr(changed, field, value)
    with pytest.raises(InvalidValueError) as later:
        changed.check()
    assert str(made.value) == str(later.value) == fault


@pytest.mark.parametrize(
    ("field", "value"),
    [("stop_token_ids", [-1]), ("allowed_token_ids", [2**31]), ("logit_bias", {-1: 1.0})],
)
def test_token_ids_that_no_model_has(field: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=f"token id of {field} is .*, expected an integer"):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        ({"prompt": 3}, "prompt is 3, expected a text or None"),
        ({"prompt_token_ids": ["a"]}, r"prompt_token_ids\[0\] is 'a', expected a whole number"),
        ({"prompt_token_ids": [1, 2**40]}, "prompt_token_ids is 1099511627776, expected token ids"),
        ([-(2**31) - 1], "prompts is -2147483649, expected token ids"),
    ],
)
def test_prompts(prompt: Any, fault: str) -> None:
    with pytest.raises(InvalidValueError, match=fault):
        read_prompt(prompt, None)  # type: ignore[arg-type]


def test_methods_and_a_model_without_a_tokenizer(repository: Path) -> None:
    path = repository / "tests/fixtures/tiny/llama3"
    with pytest.raises(PenstockError, match=r"llama3: .* no tokenizer: .*skip_tokenizer_init=True"):
        LLM(path)
    reference = json.loads((path / "reference.json").read_text())
    llm: Any = LLM(path, skip_tokenizer_init=True, dtype="float32", max_num_seqs=2)
    prompt, greedy = {"prompt_token_ids": reference["tokens"]}, reference["greedy"]
    params = SamplingParams(temperature=0, max_tokens=len(greedy), logprobs=1, ignore_eos=True)
    (answer,) = llm.generate(prompt, params, use_tqdm=False)
    (output,) = answer.outputs
    assert (output.text, output.token_ids) == ("", greedy)
    assert [list(row) for row in output.logprobs] == [[token] for token in greedy]
    (beams,) = llm.beam_search([prompt], BeamSearchParams(1, 3, ignore_eos=True))
    assert beams.sequences[0].tokens == [*reference["tokens"], *greedy[:3]]
    assert len(llm.embed([5, 6], use_tqdm=False)[0].outputs.embedding) == 32
    assert llm.llm_engine.tokenizer is None
    for call, fault in (
        (lambda: llm.generate("a"), "prompts is 'a', expected token ids, with skip_tokenizer_init"),
        (lambda: llm.embed({"prompt": "a"}), "prompts is .*, expected token ids"),
        (lambda: llm.chat([{"role": "user", "content": "a"}]), "chat needs a tokenizer"),
        (llm.get_tokenizer, "there is no tokenizer"),
        (lambda: llm.generate([5], SamplingParams(stop="a")), "stop is 'a', expected None"),
        (lambda: llm.generate([5], SamplingParams(bad_words=["a"])), "bad_words is .* None"),
        (lambda: llm.generate([5], [1]), r"sampling_params\[0\] is 1, expected SamplingParams"),
        (lambda: llm.generate([5], sampling_parms=1), "did you mean sampling_params?"),
        (lambda: llm.generate(3.5), "prompts is 3.5, expected a text, a list of whole numbers,"),
        (lambda: llm.generate([5], lora_request=1), "lora_request is 1, expected None: there are"),
        (lambda: llm.chat("hi"), "messages is 'hi', expected a list of mappings"),
        (lambda: llm.score("a", 3), "data_2 is 3, expected a text or a list of texts"),
        (lambda: llm.beam_search([[5]], {}), "params is {}, expected BeamSearchParams"),
    ):
        with pytest.raises(PenstockError, match=fault):
            call()
    llm.close()
