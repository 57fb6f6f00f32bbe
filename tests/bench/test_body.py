"""What goes over the wire for a request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core import PenstockError
from penstock_lab.bench.body import Body
from penstock_lab.bench.request import Request


def encoded(body: Body, request: Request, index: int = 0) -> tuple[int, dict[str, Any]]:
    must, text = body.encode(request, index)
    return must, json.loads(text)


def test_completions() -> None:
    must, fields = encoded(Body(chat=False, model="m"), Request("hé", 1, 7))
    assert must == 0
    assert fields == {
        "model": "m",
        "prompt": "hé",
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_chat() -> None:
    _, fields = encoded(Body(chat=True, model="m", logprobs=2), Request("hi", 1, 7))
    assert fields["messages"] == [{"role": "user", "content": "hi"}]
    assert fields["max_completion_tokens"] == 7
    assert (fields["logprobs"], fields["top_logprobs"]) == (True, 2)


def test_messages_are_sent_as_they_are() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert encoded(Body(chat=True, model="m"), Request(messages, 1, 7))[1]["messages"] == messages


def test_an_answer_must_have_its_length_with_ignore_eos() -> None:
    must, fields = encoded(Body(chat=False, model="m", ignore_eos=True), Request([1, 2], 2, 7))
    assert must == 7
    assert fields["ignore_eos"] is True
    assert fields["prompt"] == [1, 2]
    assert (
        encoded(Body(chat=False, model="m", extra={"ignore_eos": True}), Request("a", 1, 7))[0] == 7
    )


def test_extra_fields_win_and_a_requests_own_win_over_them() -> None:
    body = Body(
        chat=False, model="m", ignore_eos=True, extra={"ignore_eos": False, "top_p": 0.5, "seed": 1}
    )
    must, fields = encoded(body, Request("a", 1, 7, extra={"seed": 2}))
    assert must == 0
    assert (fields["ignore_eos"], fields["top_p"], fields["seed"]) == (False, 0.5, 2)


def test_request_ids() -> None:
    assert encoded(Body(chat=False, model="m", request_id_prefix="run-"), Request("a", 1, 7), 3)[1][
        "request_id"
    ] == ("run-3")


def test_what_an_endpoint_cannot_take_is_refused() -> None:
    with pytest.raises(PenstockError, match="--prompt-ids"):
        encoded(Body(chat=True, model="m"), Request([1, 2], 2, 7))
    with pytest.raises(PenstockError, match="openai-chat"):
        encoded(Body(chat=False, model="m"), Request([{"role": "user", "content": "u"}], 2, 7))
