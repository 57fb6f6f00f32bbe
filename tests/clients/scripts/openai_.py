"""OpenAI's library for Python."""

import openai
from check import BASE_URL, MODEL, QUESTION, feature
from pydantic import BaseModel

client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=120)
MESSAGES = [{"role": "user", "content": QUESTION}]


class Capital(BaseModel):
    city: str


@feature("chat")
def _() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20)
    assert answer.choices[0].message.content


@feature("stream")
def _() -> None:
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, max_tokens=20) as stream:
        assert "".join(event.delta for event in stream if event.type == "content.delta")


@feature("parse")
def _() -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Capital, max_tokens=300, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Capital)


@feature("completions")
def _() -> None:
    answer = client.completions.create(model=MODEL, prompt="A list:", max_tokens=10, logprobs=2)
    assert len(answer.choices[0].logprobs.tokens) == 10


@feature("responses")
def _() -> None:
    answer = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=20)
    assert answer.output_text


@feature("responses: stream")
def _() -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, max_output_tokens=20) as stream:
        kinds = [event.type for event in stream]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert "response.output_text.delta" in kinds


@feature("models")
def _() -> None:
    assert client.models.retrieve(MODEL).id == MODEL


@feature("embeddings")
def _() -> None:
    """The client asks for base64 and decodes it."""
    found = client.embeddings.create(model=MODEL, input=[QUESTION, "Once upon a time"])
    assert [row.index for row in found.data] == [0, 1]
    floats = client.embeddings.create(model=MODEL, input=QUESTION, encoding_format="float")
    assert len(floats.data[0].embedding) == len(found.data[0].embedding)
    assert found.usage.prompt_tokens > 0
