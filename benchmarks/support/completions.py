"""Completions with the time of their first token."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    ttft: float
    """Seconds from the request to its first event."""
    prompt: int
    """Tokens."""
    output: int
    cached: int
    """Prompt tokens that were not computed."""


def complete(port: int, model: str, prompt: Sequence[int], output: int) -> Answer:
    """Send a streamed completion.

    Raises:
        RuntimeError: the server refused it, or reports no usage.
    """
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": True,
    }
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    began = time.perf_counter()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{answer.status}: {answer.read()[:500]!r}")
    while not answer.readline().startswith(b"data: {"):
        pass
    ttft = time.perf_counter() - began
    said = [line[6:] for line in answer.read().splitlines() if line.startswith(b"data: {")]
    connection.close()
    usage = next(
        (usage for line in reversed(said) if (usage := json.loads(line).get("usage"))), None
    )
    if usage is None:
        raise RuntimeError(f"an answer without usage: {said[-1:]!r}")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer(ttft, usage["prompt_tokens"], usage["completion_tokens"], cached)


def complete_all(
    port: int, model: str, prompts: Sequence[Sequence[int]], output: int, concurrency: int
) -> tuple[list[Answer], float]:
    """The answers, and the seconds from the first request to the last answer."""
    began = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as threads:
        answers = list(threads.map(lambda prompt: complete(port, model, prompt, output), prompts))
    return answers, time.perf_counter() - began
