"""langchain-openai."""

from check import BASE_URL, MODEL, QUESTION, feature
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from langchain_openai.chat_models.base import OpenAIContextOverflowError
from pydantic import BaseModel


class Capital(BaseModel):
    city: str
    country: str


@tool
def weather(city: str, unit: str = "celsius") -> str:
    """The weather in a city."""
    return f"18 degrees {unit} in {city}"


def chat(**more: object) -> ChatOpenAI:
    return ChatOpenAI(base_url=BASE_URL, api_key="none", model=MODEL, max_tokens=100, **more)


@feature("chat")
def _() -> None:
    assert chat().invoke(QUESTION).content


@feature("stream with usage")
def _() -> None:
    chunks = list(chat(stream_usage=True).stream(QUESTION))
    assert "".join(str(chunk.content) for chunk in chunks)
    assert any(chunk.usage_metadata for chunk in chunks)


@feature("completions")
def _() -> None:
    model = OpenAI(base_url=BASE_URL, api_key="none", model=MODEL, max_tokens=10)
    assert model.invoke("Once upon a time")


@feature("structured output: json_schema")
def _() -> None:
    assert isinstance(chat().with_structured_output(Capital).invoke(QUESTION), Capital)


@feature("structured output: json_mode")
def _() -> None:
    model = chat().with_structured_output(method="json_mode", include_raw=True)
    assert model.invoke(f"{QUESTION} Answer in JSON.")["raw"].content


@feature("structured output: function_calling")
def _() -> None:
    model = chat().with_structured_output(Capital, method="function_calling")
    assert isinstance(model.invoke(QUESTION), Capital)


@feature("tools: auto")
def _() -> None:
    chat().bind_tools([weather]).invoke("Is it warm in Rome?")


@feature("tools: required")
def _() -> None:
    answer = chat().bind_tools([weather], tool_choice="required").invoke("Is it warm in Rome?")
    assert answer.tool_calls[0]["name"] == "weather"
    assert isinstance(answer.tool_calls[0]["args"]["city"], str)


@feature("tools: streamed")
def _() -> None:
    model = chat().bind_tools([weather], tool_choice="weather")
    whole = None
    for chunk in model.stream("Is it warm in Rome?"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.tool_calls[0]["name"] == "weather"


@feature("responses")
def _() -> None:
    assert chat(use_responses_api=True).invoke(QUESTION).text


@feature("context overflow")
def _() -> None:
    try:
        chat().invoke("word " * 30_000)
    except OpenAIContextOverflowError:
        return
    raise AssertionError("accepted")


@feature("embeddings")
def _() -> None:
    """As langchain says for servers other than OpenAI's: texts are sent, not token ids."""
    model = OpenAIEmbeddings(
        base_url=BASE_URL, api_key="none", model=MODEL, check_embedding_ctx_length=False
    )
    vectors = model.embed_documents([QUESTION, "Once upon a time"])
    assert len(vectors) == 2
    assert len(model.embed_query(QUESTION)) == len(vectors[0])
