"""The offline interface with the default model, and what it refuses without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.core import InvalidValueError, PenstockError

GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPTS = ["The capital of France is", "Once upon a time", "2 + 2 ="]


@pytest.fixture(scope="module")
def llm(model_file: Path) -> Iterator[LLM]:
    pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")
    made = LLM(str(model_file), max_num_seqs=4, kv_cache_memory_bytes="64MiB", max_model_len=512)
    yield made
    made.close()


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    results = llm.generate(PROMPTS, GREEDY)
    assert [result.prompt for result in results] == PROMPTS
    assert " Paris" in results[0].outputs[0].text
    for result in results:
        output = result.outputs[0]
        assert (len(output.token_ids), output.finish_reason) == (12, "length")


def test_a_batch_gives_what_each_prompt_gives_alone(llm: LLM) -> None:
    together = [result.outputs[0].token_ids for result in llm.generate(PROMPTS, GREEDY)]
    alone = [llm.generate(prompt, GREEDY)[0].outputs[0].token_ids for prompt in PROMPTS]
    assert together == alone


def test_text_and_its_token_ids_are_the_same_prompt(llm: LLM) -> None:
    text = llm.generate(PROMPTS[0], GREEDY)[0]
    ids = llm.generate(text.prompt_token_ids, GREEDY)[0]
    assert ids.prompt is None
    assert ids.outputs[0].text == text.outputs[0].text


def test_a_seed_repeats_and_choices_differ(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=7, max_tokens=16)
    first, second = (llm.generate("Tell me", params)[0].outputs for _ in range(2))
    assert [output.token_ids for output in first] == [output.token_ids for output in second]
    assert len({output.text for output in first}) > 1
    assert [output.index for output in first] == [0, 1, 2]


def test_a_stop_text_is_cut_off_and_named(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].text
    stopped = llm.generate(
        PROMPTS[0], SamplingParams(temperature=0, max_tokens=12, stop=[" Paris"])
    )[0].outputs[0]
    assert stopped.text == whole[: whole.index(" Paris")]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", " Paris")


def test_changes_of_the_logits(llm: LLM) -> None:
    def ids(**options: Any) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=12, **options)
        return llm.generate(PROMPTS[0], params)[0].outputs[0].token_ids

    plain = ids()
    assert plain[0] not in ids(logit_bias={plain[0]: -100.0})
    assert ids(logit_bias={7: 100.0}) == [7] * 12
    assert set(ids(allowed_token_ids=[7, 9])) <= {7, 9}
    assert len(set(ids(repetition_penalty=100.0, ignore_eos=True))) == 12
    assert len(set(ids(logit_bias={7: 20.0}, frequency_penalty=2.0))) > 1
    end = ids(stop_token_ids=[plain[2]])
    assert end == plain[:3]
    later = ids(stop_token_ids=[plain[2]], min_tokens=8)
    assert len(later) >= 8
    assert plain[2] not in later[:8]
    with pytest.raises(PenstockError, match="presence_penalty"):
        SamplingParams(presence_penalty=9.0)


def test_logprobs_of_output_and_prompt(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=0)
    result = llm.generate(PROMPTS[0], params)[0]
    output = result.outputs[0]
    assert result.prompt_logprobs is not None
    assert output.logprobs is not None
    assert [list(row or {}) for row in result.prompt_logprobs] == [
        [],
        *([token] for token in result.prompt_token_ids[1:]),
    ]
    total = 0.0
    for token, row in zip(output.token_ids, output.logprobs, strict=True):
        assert next(iter(row)) == token
        best, second = row.values()
        assert (best.rank, second.rank) == (1, 2)
        assert best.logprob >= second.logprob
        total += best.logprob
    assert output.cumulative_logprob == pytest.approx(total)
    plain = llm.generate(PROMPTS[0], GREEDY)[0]
    assert (plain.prompt_logprobs, plain.outputs[0].logprobs) == (None, None)
    assert plain.outputs[0].cumulative_logprob is None


def test_each_request_is_handed_over_when_its_last_choice_has_ended(llm: LLM) -> None:
    seen: list[str | None] = []
    params = [SamplingParams(max_tokens=length, n=2, ignore_eos=True) for length in (24, 3, 6)]
    results = llm.generate(PROMPTS, params, on_end=lambda ended: seen.append(ended.prompt))
    assert seen == [PROMPTS[1], PROMPTS[2], PROMPTS[0]]
    assert all(output.finish_reason for result in results for output in result.outputs)


def test_a_request_that_ends_at_a_stop_text_is_handed_over_once(llm: LLM) -> None:
    seen: list[str] = []
    params = SamplingParams(temperature=0, n=2, max_tokens=12, stop=[" Paris"])
    llm.generate(
        PROMPTS[0], params, on_end=lambda ended: seen.append(ended.outputs[0].finish_reason)
    )
    assert seen == ["stop"]


def test_chat_goes_through_the_template(llm: LLM) -> None:
    answer = llm.chat(
        [{"role": "user", "content": "Say hello."}], SamplingParams(temperature=0, max_tokens=40)
    )[0]
    assert answer.prompt_token_ids[0] == 1
    assert answer.outputs[0].text


def test_a_prompt_that_is_too_long_is_refused_and_leaves_the_model_usable(llm: LLM) -> None:
    with pytest.raises(PenstockError, match="maximum model length is 512"):
        llm.generate([[5] * 600, [5, 6]], GREEDY)
    assert llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", float("nan")),
        ("seed", -1),
        ("seed", 2**64),
        ("stop", ""),
        ("logprobs", 21),
        ("prompt_logprobs", -2),
        ("max_tokens", 0),
    ],
)
def test_sampling_parameters_are_checked_when_they_are_made(field: str, value: object) -> None:
    with pytest.raises(InvalidValueError, match=f"^{field} is "):
        SamplingParams(**{field: value})  # type: ignore[arg-type]
