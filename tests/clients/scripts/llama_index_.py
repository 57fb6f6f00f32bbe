"""LlamaIndex, by OpenAILike."""

from check import BASE_URL, MODEL, QUESTION, feature
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Capital(BaseModel):
    city: str
    country: str


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is warm in {city}."


MESSAGES = [ChatMessage(role="user", content=QUESTION)]


def model(**more: object) -> OpenAILike:
    return OpenAILike(
        model=MODEL,
        api_base=BASE_URL,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_tokens=200,
        context_window=8192,
        **more,
    )


@feature("chat")
def _() -> None:
    assert model().chat(MESSAGES).message.content


@feature("stream")
def _() -> None:
    assert "".join(str(chunk.delta) for chunk in model().stream_chat(MESSAGES))


@feature("structured")
def _() -> None:
    found = model().as_structured_llm(Capital).chat(MESSAGES)
    assert isinstance(found.raw, Capital)


@feature("tools: required")
def _() -> None:
    tool = FunctionTool.from_defaults(weather)
    llm = model()
    found = llm.chat_with_tools([tool], user_msg="Is it warm in Rome?", tool_required=True)
    assert llm.get_tool_calls_from_response(found)[0].tool_name == "weather"


@feature("embeddings")
def _() -> None:
    embeddings = OpenAILikeEmbedding(model_name=MODEL, api_base=BASE_URL, api_key="none")
    assert len(embeddings.get_text_embedding_batch([QUESTION, "Once upon a time"])) == 2
