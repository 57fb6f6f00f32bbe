"""Chat templates of requests, which a process of its own runs."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.test_tiny import write_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]
HOSTILE = [
    (
        "{% set ns = namespace(x='aaaaaaaa') %}"
        "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x|length }}"
    ),
    "{{ 'a'|indent(10**12) }}",
    (
        "{% set ns = namespace(x=[]) %}"
        "{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}"
    ),
]


def test_what_a_template_builds_takes_no_memory_of_the_server(
    serve: Serve, repository: Path, tmp_path: Path
) -> None:
    model = tmp_path / "llama"
    shutil.copytree(repository / "tests/fixtures/tiny/llama", model)
    write_tokenizer(model)
    options = ("--dtype", "float32", "--trust-request-chat-template")
    with serve(*options, model=model) as server, server.client() as client:

        def ask(template: str) -> httpx.Response:
            body = {"messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
            return client.post("/v1/chat/completions", json={**body, "chat_template": template})

        for template in HOSTILE:
            answer = ask(template)
            assert answer.status_code == httpx.codes.BAD_REQUEST, template
            assert "template" in answer.json()["error"]["message"]
        refused = ask("{{ raise_exception('not so') }}").json()["error"]["message"]
        assert "not so" in refused
        prompt = ask("<{{ messages[0].content }}>").json()["prompt_token_ids"]
        assert bytes(prompt) == b"<hi>"
        assert sse.post(client, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1})


LOOPS = 4
"""Twice as many as there are processes for templates."""


def test_templates_of_requests_wait_apart(serve: Serve, repository: Path, tmp_path: Path) -> None:
    model = tmp_path / "llama"
    shutil.copytree(repository / "tests/fixtures/tiny/llama", model)
    write_tokenizer(model)
    loop = "{% for a in range(100000) %}" * 3 + "{% set x = 1 %}" + "{% endfor %}" * 3
    plain: dict[str, object] = {"messages": MESSAGES, "max_tokens": 1}
    options = ("--dtype", "float32", "--trust-request-chat-template")
    with serve(*options, model=model) as server, server.client() as client:

        def ask(template: str) -> int:
            body = {**plain, "chat_template": template}
            return client.post("/v1/chat/completions", json=body).status_code

        with ThreadPoolExecutor(LOOPS) as pool:
            looping = [pool.submit(ask, loop) for _ in range(LOOPS)]
            answer = client.post("/v1/chat/completions", json=plain)
            assert answer.status_code == httpx.codes.OK
            # In their queue it would begin when all but one of them have ended.
            assert sum(request.done() for request in looping) < LOOPS - 1
            statuses = {request.result() for request in looping}
        assert statuses == {httpx.codes.BAD_REQUEST}
        counted = client.post("/tokenize", json={"messages": MESSAGES, "chat_template": "abc"})
        assert counted.json()["count"] == len("abc")
        cut = {"prompt": "abcdef", "truncate_prompt_tokens": 2, "add_special_tokens": False}
        assert bytes(client.post("/tokenize", json=cut).json()["tokens"]) == b"ef"
        cut["truncation_side"] = "right"
        assert bytes(client.post("/tokenize", json=cut).json()["tokens"]) == b"ab"
