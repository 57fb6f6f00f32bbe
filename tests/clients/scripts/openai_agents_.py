"""openai-agents: its default is the Responses API."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from check import BASE_URL, MODEL, QUESTION, feature
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)


class Capital(BaseModel):
    city: str
    country: str


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is warm in {city}."


SETTINGS = ModelSettings(max_tokens=200, temperature=0)

for name, kind in (("responses", OpenAIResponsesModel), ("chat", OpenAIChatCompletionsModel)):

    def agent(kind: type = kind, **more: object) -> Agent:
        client = AsyncOpenAI(base_url=BASE_URL, api_key="none")
        model = kind(model=MODEL, openai_client=client)
        return Agent(name="one", model=model, model_settings=SETTINGS, **more)

    @feature(f"{name}: run")
    def _(agent: object = agent) -> None:
        assert Runner.run_sync(agent(), QUESTION).final_output

    @feature(f"{name}: output type")
    def _(agent: object = agent) -> None:
        found = Runner.run_sync(agent(output_type=Capital), QUESTION)
        assert isinstance(found.final_output, Capital)

    @feature(f"{name}: tools")
    def _(agent: object = agent) -> None:
        Runner.run_sync(agent(tools=[weather]), "Is it warm in Rome?", max_turns=3)
