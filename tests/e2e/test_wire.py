"""What goes over HTTP, byte by byte where clients depend on it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import httpx
import pytest

from tests.e2e import sse
from tests.e2e.server import Server, metric

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = {
    "messages": [{"role": "user", "content": "Say hello."}],
    "temperature": 0,
    "max_tokens": 12,
}
STORY = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 40}
LONG_PROMPT = " ".join(f"Item {n} costs {n * 7 % 100} coins." for n in range(40))

# What the dashboard in vLLM's repository and the Gateway API inference extension read.
DASHBOARD = [
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_max_num_generation_tokens_sum",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:lora_requests_info",
]


def test_a_chat_stream_has_the_chunks_that_clients_expect(client: httpx.Client) -> None:
    events = sse.whole(client, CHAT, {**HELLO, "stream_options": {"include_usage": True}})
    *chunks, usage = events
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert [finish for finish in finishes if finish] == finishes[-1:]
    assert usage["choices"] == []
    counts = usage["usage"]
    assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]
    whole = sse.post(client, CHAT, HELLO)
    assert whole["object"] == "chat.completion"
    assert sse.text(chunks) == whole["choices"][0]["message"]["content"]
    for name in ["prompt_tokens", "completion_tokens"]:
        assert whole["usage"][name] == counts[name]


def test_a_completion_stream_is_the_answer_in_pieces(client: httpx.Client) -> None:
    events = sse.whole(client, COMPLETIONS, {**STORY, "return_token_ids": True})
    assert {event["object"] for event in events} == {"text_completion"}
    whole = sse.complete(client, STORY["prompt"], 40, return_token_ids=True)
    assert sse.text(events) == whole["text"]
    ids = [event["choices"][0]["token_ids"] for event in events]
    assert list(itertools.chain(*ids)) == whole["token_ids"]
    assert all("usage" not in event or event["usage"] is None for event in events)


def test_usage_on_every_chunk_for_those_who_ask(client: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = sse.whole(client, COMPLETIONS, {**STORY, "stream_options": options})
    counted = [event["usage"]["completion_tokens"] for event in events]
    assert counted == sorted(counted)
    assert counted[-1] == 40


def test_a_prompt_seen_before_is_taken_from_the_cache(client: httpx.Client) -> None:
    before = metric(client, "vllm:prefix_cache_hits_total")
    body = {"prompt": LONG_PROMPT, "temperature": 0, "max_tokens": 16}
    first, second = (sse.post(client, COMPLETIONS, body) for _ in range(2))
    prompt_tokens = first["usage"]["prompt_tokens"]
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert prompt_tokens - 33 <= cached < prompt_tokens, "all but the last block"
    assert second["choices"] == first["choices"]
    assert metric(client, "vllm:prefix_cache_hits_total") == before + cached
    salted = sse.post(client, COMPLETIONS, {**body, "cache_salt": "somebody else"})
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    "prompt",
    [
        "\U0001f389\U0001f38a" * 4,
        "日本語のテキスト: こんにちは、世界。こんにちは、世界。こんにちは、",
        "naïve café — “quotes” … naïve café — “quotes” … naïve",
    ],
    ids=["emoji", "japanese", "accents"],
)
def test_characters_are_never_cut(client: httpx.Client, prompt: str) -> None:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 48, "return_token_ids": True}
    choices = [event["choices"][0] for event in sse.whole(client, COMPLETIONS, body)]
    pieces = [choice["text"] for choice in choices]
    ids = [token for choice in choices for token in choice["token_ids"]]
    assert any(not piece.isascii() for piece in pieces)
    # All bytes at once: a replacement character is there only where the model itself wrote no
    # character. One that max_tokens cuts is no text.
    whole: str = sse.post(client, "/detokenize", {"tokens": ids})["prompt"]
    assert "".join(pieces) == whole.removesuffix("\ufffd")


def test_echo_gives_the_prompt_back(client: httpx.Client) -> None:
    prompt = "Ünïcödé \U0001f600 and 数字 42"
    assert sse.complete(client, prompt, 0, echo=True)["text"] == prompt
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 8, "echo": True}
    text = sse.text(sse.whole(client, COMPLETIONS, body))
    assert text == prompt + sse.complete(client, prompt, 8)["text"]


def test_stop_strings_end_the_answer_and_are_not_in_it(client: httpx.Client) -> None:
    story = sse.complete(client, STORY["prompt"], 40)["text"]
    middle = len(story) // 2
    # Neither begins nor ends with a token.
    stop = story[middle : middle + 7]
    expected = story[: story.index(stop)]
    body = {**STORY, "stop": ["never said", stop]}
    events = sse.whole(client, COMPLETIONS, body)
    assert sse.text(events) == expected
    last = events[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    whole = sse.complete(client, STORY["prompt"], 40, stop=stop)
    assert (whole["text"], whole["finish_reason"]) == (expected, "stop")


def test_stop_tokens_and_ignore_eos(client: httpx.Client) -> None:
    ids = sse.complete(client, STORY["prompt"], 10, return_token_ids=True)["token_ids"]
    stopped = sse.complete(client, STORY["prompt"], 10, stop_token_ids=[ids[4]])
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", ids[4])
    question = {
        "messages": [{"role": "user", "content": "Tell me the capital of France."}],
        "temperature": 0,
    }
    assert (
        sse.post(client, CHAT, {**question, "max_tokens": 30})["choices"][0]["finish_reason"]
        == "stop"
    )
    on = sse.post(client, CHAT, {**question, "max_tokens": 30, "ignore_eos": True})
    assert on["usage"]["completion_tokens"] == 30


def test_a_seed_repeats_the_answer(client: httpx.Client) -> None:
    def sample(**more: object) -> str:
        text: str = sse.complete(client, "My favourite", 24, **{"temperature": 1.0, **more})["text"]
        return text

    assert sample(seed=11, top_p=0.9, top_k=100) == sample(seed=11, top_p=0.9, top_k=100)
    assert sample(seed=11) != sample(seed=12)
    assert sample() != sample()
    assert sample(top_k=1) == sample(temperature=0)


def test_tokens_and_text_convert_both_ways(client: httpx.Client) -> None:
    text = "Grüße, 世界!"
    tokens = sse.post(client, "/tokenize", {"prompt": text})["tokens"]
    assert sse.post(client, "/detokenize", {"tokens": tokens})["prompt"] == text
    by_ids = sse.complete(client, tokens, 8)["text"]
    assert by_ids == sse.complete(client, text, 8)["text"]


def test_a_token_is_likelier_where_it_belongs(client: httpx.Client) -> None:
    """What evaluation harnesses do: the sum of the continuation's log-probabilities, read off an
    echo.
    """

    def loglikelihood(context: str, continuation: str) -> float:
        start = len(context)
        rows = sse.complete(client, context + continuation, 1, echo=True, logprobs=1)["logprobs"]
        assert len({len(column) for column in rows.values()}) == 1
        of_output = len(context + continuation)
        pairs = zip(rows["text_offset"], rows["token_logprobs"], strict=True)
        return sum(logprob for offset, logprob in pairs if start <= offset < of_output)

    context = "The capital of Italy is"
    cities = [" Rome", " Berlin", " Madrid"]
    assert max(cities, key=lambda city: loglikelihood(context, city)) == " Rome"


def test_an_echo_does_not_depend_on_the_cache(client: httpx.Client) -> None:
    sse.complete(client, LONG_PROMPT, 1)
    body = {"echo": True, "logprobs": 2}
    first, second = (sse.complete(client, LONG_PROMPT, 0, **body) for _ in range(2))
    assert first == second
    assert None not in first["logprobs"]["token_logprobs"][1:]


def test_metrics_have_the_names_that_dashboards_read(client: httpx.Client) -> None:
    sse.complete(client, "x", 2)
    lines = client.get("/metrics").text.splitlines()
    names = {line.split("{")[0] for line in lines if not line.startswith("#")}
    assert not [name for name in DASHBOARD if name not in names]
    labelled = [line for line in lines if line.startswith("vllm:")]
    assert all('model_name="smollm2"' in line for line in labelled)


def test_every_step_and_every_token_is_counted(client: httpx.Client) -> None:
    names = ["iteration_tokens_total_sum", "prompt_tokens_total", "generation_tokens_total"]
    names += ["iteration_tokens_total_count", "prompt_tokens_cached_total"]

    def read() -> list[float]:
        return [metric(client, f"vllm:{name}") for name in names]

    before = read()
    prompt = list(range(300, 820))
    sse.complete(client, prompt, 20, ignore_eos=True)
    computed, prompts, generated, steps, cached = (
        after - earlier for after, earlier in zip(read(), before, strict=True)
    )
    assert (prompts, generated, cached) == (520, 20, 0)
    assert computed == 520 + 19, "the last token is never computed"
    assert steps == 3 + 19, (
        "520 tokens take three steps of at most 256; the last gives the first token"
    )


def test_the_start_is_logged_in_four_lines(server: Server) -> None:
    """Model and precision, memory, address, what to try."""
    told = [line.partition(": ")[2] for line in server.log if " INFO penstock" in line][:4]
    model, memory, ready, suggestion = told
    assert re.fullmatch(
        r"SmolLM2-135M-Instruct\.Q4_1 loaded [\d.]+ s \(weights w4\+w8, 92 MiB; activations "
        r"\w+; KV bf16; \w+ on \d threads?\)",
        model,
    )
    assert re.fullmatch(
        r"memory allocated [\d.]+ s \(KV of [\d,]+ tokens in [\d.]+ [MG]iB of bf16, no tiers; "
        r"[\d.]+ [MG]iB of memory free\)",
        memory,
    )
    assert re.fullmatch(
        rf"ready [\d.]+ s \(open, no key; context \d+ tokens, \d+ sequences\), listening on "
        rf"{re.escape(server.url)}",
        ready,
    )
    assert suggestion == f"try: penstock chat --url {server.url}, or curl {server.url}/v1/models"


def test_a_model_of_another_name_is_not_there(client: httpx.Client, model_file: Path) -> None:
    answer = client.post(COMPLETIONS, json={"model": model_file.stem, "prompt": "x"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
