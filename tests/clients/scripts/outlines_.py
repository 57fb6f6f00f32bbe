"""outlines, over the openai client and as vLLM."""

import outlines
from check import BASE_URL, MODEL, QUESTION, feature
from openai import OpenAI
from pydantic import BaseModel


class Capital(BaseModel):
    city: str
    country: str


client = OpenAI(base_url=BASE_URL, api_key="none")


@feature("openai: text")
def _() -> None:
    assert outlines.from_openai(client, MODEL)(QUESTION, max_tokens=20)


@feature("openai: JSON")
def _() -> None:
    found = outlines.from_openai(client, MODEL)(QUESTION, Capital, max_tokens=200)
    Capital.model_validate_json(found)


@feature("vllm: JSON")
def _() -> None:
    found = outlines.from_vllm(client, MODEL)(QUESTION, Capital, max_tokens=200)
    Capital.model_validate_json(found)


@feature("vllm: regex")
def _() -> None:
    found = outlines.from_vllm(client, MODEL)(QUESTION, outlines.regex("[A-Z][a-z]{2,9}"))
    assert found.isalpha()


@feature("vllm: choice")
def _() -> None:
    from typing import Literal

    found = outlines.from_vllm(client, MODEL)(QUESTION, Literal["Paris", "Rome"])
    assert found in ("Paris", "Rome")
