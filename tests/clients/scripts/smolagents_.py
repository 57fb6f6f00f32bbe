"""smolagents."""

from check import BASE_URL, MODEL, QUESTION, feature
from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: name of the city
    """
    return f"It is warm in {city}."


def model() -> OpenAIServerModel:
    return OpenAIServerModel(
        model_id=MODEL, api_base=BASE_URL, api_key="none", max_tokens=200, temperature=0
    )


@feature("model")
def _() -> None:
    assert model()([{"role": "user", "content": QUESTION}]).content


@feature("tool calling agent")
def _() -> None:
    agent = ToolCallingAgent(tools=[weather], model=model(), max_steps=2, verbosity_level=0)
    agent.run("Is it warm in Rome?")
    calls = [step.tool_calls for step in agent.memory.steps if getattr(step, "tool_calls", None)]
    assert calls, "no call was parsed"
