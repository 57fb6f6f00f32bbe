"""pydantic-ai."""

import asyncio

from check import BASE_URL, MODEL, QUESTION, feature
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Capital(BaseModel):
    city: str
    country: str


provider = OpenAIProvider(base_url=BASE_URL, api_key="none")
chat = OpenAIChatModel(MODEL, provider=provider)
SETTINGS = {"max_tokens": 200, "temperature": 0.0}


@feature("run")
def _() -> None:
    assert Agent(chat, model_settings=SETTINGS).run_sync(QUESTION).output


@feature("stream")
def _() -> None:
    async def streamed() -> str:
        async with Agent(chat, model_settings=SETTINGS).run_stream(QUESTION) as result:
            return "".join([text async for text in result.stream_text(delta=True)])

    assert asyncio.run(streamed())


for name, output in (("tool", Capital), ("native", NativeOutput(Capital))):

    @feature(f"output type by {name}")
    def _(output: object = output) -> None:
        found = Agent(chat, output_type=output, model_settings=SETTINGS).run_sync(QUESTION)
        assert isinstance(found.output, Capital)


@feature("output type by prompt")
def _() -> None:
    agent = Agent(chat, output_type=PromptedOutput(Capital), model_settings=SETTINGS)
    assert isinstance(agent.run_sync(QUESTION).output, Capital)


@feature("tools")
def _() -> None:
    agent = Agent(chat, model_settings=SETTINGS)

    @agent.tool_plain
    def weather(city: str) -> str:
        return f"It is warm in {city}."

    agent.run_sync("Is it warm in Rome?")


@feature("responses")
def _() -> None:
    model = OpenAIResponsesModel(MODEL, provider=provider)
    assert Agent(model, model_settings=SETTINGS).run_sync(QUESTION).output
