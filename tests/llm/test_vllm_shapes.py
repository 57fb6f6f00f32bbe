"""`penstock.LLM` as its callers know it from vLLM: shapes of prompts, options and results."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import LLM, SamplingParams
from penstock.core import InvalidValueError, PenstockError
from penstock.hub import ALIASES
from penstock.llm.metrics import Counter, Gauge

GREEDY = SamplingParams(temperature=0, max_tokens=6)
TEXT = "The capital of France is"
QUESTION = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def llm(model_file: Path) -> Iterator[LLM]:
    pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")
    made = LLM(
        str(model_file),
        max_num_seqs=4,
        kv_cache_memory_bytes="64MiB",
        max_model_len=512,
        gpu_memory_utilization=0.5,
        enforce_eager=True,
        trust_remote_code=False,
        quantization=None,
        load_format="auto",
    )
    yield made
    made.close()


def test_the_package_shows_its_names() -> None:
    assert {"LLM", "SamplingParams", "TextPrompt"} <= set(dir(penstock))


def test_all_shapes_of_a_prompt_are_the_same_prompt(llm: LLM) -> None:
    text = llm.generate(TEXT, GREEDY)[0]
    ids = text.prompt_token_ids
    shapes = [
        {"prompt": TEXT},
        {"prompt_token_ids": ids},
        {"prompt": TEXT, "prompt_token_ids": ids, "cache_salt": "mine"},
        {"prompt": TEXT, "cache_salt": "mine", "multi_modal_data": None},
        ids,
    ]
    results = [llm.generate(shape, GREEDY)[0] for shape in shapes]  # type: ignore[arg-type]
    assert {tuple(result.outputs[0].token_ids) for result in results} == {
        tuple(text.outputs[0].token_ids)
    }
    assert [result.prompt for result in results] == [TEXT, None, TEXT, TEXT, None]
    together = llm.generate(shapes, GREEDY)  # type: ignore[arg-type]
    assert [result.prompt for result in together] == [TEXT, None, TEXT, TEXT, None]


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ({"prompt": TEXT, "multi_modal_data": {"image": 1}}, "multi_modal_data"),
        ({"text": TEXT}, "text"),
        ({"cache_salt": "x"}, "prompt"),
    ],
)
def test_a_mapping_that_is_no_prompt_is_refused(
    llm: LLM, prompt: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidValueError, match=named):
        llm.generate(prompt, GREEDY)  # type: ignore[arg-type]


def test_a_salt_keeps_cached_keys_and_values_apart(llm: LLM) -> None:
    llm.reset_prefix_cache()
    ids = list(range(100, 200))
    first, again, salted = (
        llm.generate({"prompt_token_ids": ids, **more}, GREEDY)[0]  # type: ignore[misc]
        for more in ({}, {}, {"cache_salt": "b"})
    )
    assert (first.num_cached_tokens, salted.num_cached_tokens) == (0, 0)
    assert again.num_cached_tokens >= 64
    llm.reset_prefix_cache()
    assert llm.generate(ids, GREEDY)[0].num_cached_tokens == 0


def test_results_have_the_fields_of_vllm(llm: LLM) -> None:
    first, second = llm.generate([TEXT, TEXT], GREEDY)
    assert int(second.request_id) == int(first.request_id) + 1
    assert first.finished
    assert first.outputs[0].finished()
    assert (first.outputs[0].finish_reason, first.outputs[0].stop_reason) == ("length", None)
    assert first.lora_request is first.kv_transfer_params is first.encoder_prompt is None
    metrics = first.metrics
    assert metrics is not None
    assert metrics.first_token_time is not None
    assert metrics.finished_time is not None
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.finished_time
    assert metrics.first_token_latency == metrics.first_token_time - metrics.arrival_time


def test_without_a_limit_an_answer_ends_at_the_models_length(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    result = llm.generate([[5] * 500, [5] * 508], params)
    assert [len(each.outputs[0].token_ids) for each in result] == [12, 4]


def test_parameters_can_be_changed_and_are_checked_again(llm: LLM) -> None:
    params = llm.get_default_sampling_params()
    assert (params.temperature, params.max_tokens) == (1.0, 16)
    params.max_tokens, params.temperature = 3, 0.0
    assert len(llm.generate(TEXT, params)[0].outputs[0].token_ids) == 3
    params.top_p = 7.0
    with pytest.raises(InvalidValueError, match="top_p"):
        llm.generate(TEXT, params)


def test_text_is_left_out_and_prompts_are_cut_where_asked(llm: LLM) -> None:
    silent = SamplingParams(temperature=0, max_tokens=4, detokenize=False)
    output = llm.generate(TEXT, silent)[0].outputs[0]
    assert (output.text, len(output.token_ids)) == ("", 4)
    ids = list(range(100, 700))
    for keep, kept in ((10, ids[-10:]), (-1, ids[-511:])):
        params = SamplingParams(temperature=0, max_tokens=1, truncate_prompt_tokens=keep)
        assert llm.generate(ids, params)[0].prompt_token_ids == kept


def test_a_conversation_is_rendered_as_asked(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    whole = llm.chat(QUESTION, GREEDY)[0]
    assert whole.prompt == tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, tokenize=False
    )
    assert whole.prompt is not None
    assert whole.prompt.endswith("<|im_start|>assistant\n")
    bare = llm.chat(QUESTION, GREEDY, add_generation_prompt=False)[0]
    assert whole.prompt == f"{bare.prompt}<|im_start|>assistant\n"
    own = "{{ messages[0].content }}|{{ tools[0].function.name }}|{{ style }}"
    tools = [{"type": "function", "function": {"name": "greet"}}]
    answer = llm.chat(
        [QUESTION, QUESTION],
        GREEDY,
        use_tqdm=False,
        chat_template=own,
        tools=tools,
        chat_template_kwargs={"style": "short"},
    )
    assert [each.prompt for each in answer] == ["Say hello.|greet|short"] * 2
    assert answer[0].prompt_token_ids == tokenizer.encode("Say hello.|greet|short", False)
    with pytest.raises(PenstockError, match="template"):
        llm.chat(QUESTION, GREEDY, chat_template="{% if %}")


def test_the_last_message_is_continued(llm: LLM) -> None:
    talk = [*QUESTION, {"role": "assistant", "content": "Hello, my name"}]
    result = llm.chat(talk, GREEDY, add_generation_prompt=False, continue_final_message=True)[0]
    assert result.prompt is not None
    assert result.prompt.endswith("<|im_start|>assistant\nHello, my name")
    with pytest.raises(InvalidValueError, match="add_generation_prompt"):
        llm.chat(talk, GREEDY, continue_final_message=True)
    silent = [*QUESTION, {"role": "assistant", "content": None}]
    with pytest.raises(PenstockError, match="no text to continue"):
        llm.chat(silent, GREEDY, add_generation_prompt=False, continue_final_message=True)


def test_the_tokenizer_is_there(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode(TEXT)
    assert tokenizer(TEXT)["input_ids"] == ids
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.decode(ids[0]) == "The"
    assert len(tokenizer) == tokenizer.vocab_size == 49152
    assert tokenizer.decode([tokenizer.eos_token_id or 0]) == "<|im_end|>"


def test_the_engine_can_be_read(llm: LLM) -> None:
    engine = llm.llm_engine
    assert engine.model_config.max_model_len == 512
    assert engine.get_model_config().get_vocab_size() == 49152
    assert engine.cache_config.num_gpu_blocks * engine.cache_config.block_size >= 512


def test_metrics_count_what_was_done(llm: LLM) -> None:
    def read() -> dict[str, float]:
        return {each.name: each.value for each in llm.get_metrics()}

    before = read()
    llm.generate([TEXT, TEXT], GREEDY)
    after = read()
    assert after["vllm:request_success"] == before["vllm:request_success"] + 2
    assert after["vllm:generation_tokens"] == before["vllm:generation_tokens"] + 12
    assert after["vllm:num_requests_running"] == 0
    assert {type(each) for each in llm.get_metrics()} == {Gauge, Counter}


def test_what_is_not_built_says_why(llm: LLM) -> None:
    with pytest.raises(AttributeError, match="no 'reward': `encode` and `classify`"):
        llm.reward(["x"])
    with pytest.raises(AttributeError, match="no 'generatte'"):
        llm.generatte("x")
    with pytest.raises(InvalidValueError, match="lora_request"):
        llm.generate(TEXT, GREEDY, lora_request=7)  # type: ignore[arg-type]


def test_the_alias_samples_as_its_card_says(
    model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    ALIASES["smollm2"].path.parent.mkdir()
    ALIASES["smollm2"].path.symlink_to(model_file)
    for options, expected in (({}, (0.2, 0.9)), ({"generation_config": "vllm"}, (1.0, 1.0))):
        llm = LLM("smollm2", kv_cache_memory_bytes="16MiB", **options)
        params = llm.get_default_sampling_params()
        llm.close()
        assert (params.temperature, params.top_p) == expected


def test_options_of_vllm_are_ignored_as_on_the_command_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = str(tmp_path / "missing.gguf")
    with caplog.at_level(logging.WARNING), pytest.raises(PenstockError, match="no such file"):
        LLM(missing, enforce_eager=True)
    caplog.clear()
    (tmp_path / "missing.gguf").write_bytes(b"")
    with caplog.at_level(logging.WARNING), pytest.raises(PenstockError, match="empty"):
        LLM(missing, enforce_eager=True, swap_space=4, dtype="half", trust_remote_code=False)
    assert caplog.messages == [
        "enforce_eager is ignored: graphs are captured on GPUs, without a choice",
        "swap_space is ignored: KV of preempted requests goes to RAM with --kv-tier ram:SIZE",
    ]
    with pytest.raises(InvalidValueError, match="task is 'draft'"):
        LLM(missing, task="draft")
    with pytest.raises(PenstockError, match="no argument max_num_seq; did you mean max_num_seqs"):
        LLM(missing, max_num_seq=1)


def test_a_closed_llm_is_named(model_file: Path) -> None:
    closed = LLM(str(model_file), max_num_seqs=1, kv_cache_memory_bytes="64MiB")
    closed.close()
    for use in (closed.generate, closed.embed):
        with pytest.raises(PenstockError, match="this LLM is closed"):
            use("a")  # type: ignore[operator]
