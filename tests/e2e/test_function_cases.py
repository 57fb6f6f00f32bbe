"""The function-calling set with the grammar on: every call of a small model is well-formed."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.e2e.function_cases import CATEGORIES, Case, Schema
from tests.e2e.server import Server
from tests.e2e.test_tools import ask, ask_as_a_stream, checked, openai, sdk

__all__ = ["sdk"]
FEW = 2
"""Cases of each category in `make test`; `make test-full` has all, at several temperatures."""

some = pytest.mark.parametrize(
    ("most", "temperatures"),
    [
        (FEW, (0.0,)),
        pytest.param(None, (0.0, 1.0), marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)


def cases(names: str, most: int | None) -> Iterator[Case]:
    for name in names.split():
        yield from CATEGORIES[name][:most]


@some
def test_one_call_is_made_and_follows_the_schema(
    sdk: openai.OpenAI, most: int | None, temperatures: tuple[float, ...]
) -> None:
    for tools, question in cases("simple multiple", most):
        for temperature in temperatures:
            more = {
                "tool_choice": "required",
                "parallel_tool_calls": False,
                "temperature": temperature,
            }
            calls, finish = ask(sdk, tools, question, seed=1, **more)
            assert len(checked(tools, calls)) == 1, question
            assert finish == "tool_calls", question
            assert ask_as_a_stream(sdk, tools, question, seed=1, **more) == (calls, finish)


@some
def test_several_calls_follow_their_schemas(
    sdk: openai.OpenAI, most: int | None, temperatures: tuple[float, ...]
) -> None:
    made: Counter[str] = Counter()
    for tools, question in cases("parallel parallel_multiple", most):
        for temperature in temperatures:
            more = {"tool_choice": "required", "temperature": temperature, "seed": 1}
            calls, finish = ask(sdk, tools, question, **more)
            # The last one may be cut off by max_tokens.
            whole = calls if finish == "tool_calls" else calls[:-1]
            made.update(checked(tools, whole))
            assert whole, question
    print(dict(made))


def strict(tools: list[Schema]) -> list[Schema]:
    made = copy.deepcopy(tools)
    for tool in made:
        tool["function"]["strict"] = True
    return made


@some
def test_calls_that_nobody_demanded_follow_their_schemas(
    sdk: openai.OpenAI, server: Server, most: int | None, temperatures: tuple[float, ...]
) -> None:
    """Whether a model of this size calls when it should not is its own affair."""
    called = answered = 0
    for tools, question in cases("irrelevance", most):
        for temperature in temperatures:
            more = {"tool_choice": "auto", "temperature": temperature, "seed": 1}
            calls, finish = ask(sdk, strict(tools), question, **more)
            checked(tools, calls if finish != "length" else calls[:-1])
            called, answered = called + bool(calls), answered + (not calls)
    print(f"{called} called, {answered} answered in text")
