"""DSPy, by its adapters."""

import dspy
from check import BASE_URL, MODEL, QUESTION, feature
from pydantic import BaseModel, ConfigDict

LM = dspy.LM(
    f"hosted_vllm/{MODEL}",
    api_base=BASE_URL,
    api_key="none",
    max_tokens=200,
    temperature=0,
    cache=False,
)


class Judge(dspy.Signature):
    """Whether a sentence is true."""

    sentence: str = dspy.InputField()
    true: bool = dspy.OutputField()


@feature("LM")
def _() -> None:
    assert LM(QUESTION)[0]
    assert len(LM(QUESTION, n=2, temperature=1.0)) == 2


@feature("text completion")
def _() -> None:
    lm = dspy.LM(
        f"text-completion-openai/{MODEL}",
        model_type="text",
        api_base=BASE_URL,
        api_key="none",
        max_tokens=20,
        cache=False,
    )
    assert lm("Once upon a time")[0]


@feature("JSONAdapter, with a response_format of the LM")
def _() -> None:
    class Answer(BaseModel):
        model_config = ConfigDict(extra="forbid")
        true: bool

    # DSPy sends none by itself: it asks LiteLLM's list of models whether it may.
    lm = LM.copy(response_format=Answer)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        found = dspy.Predict(Judge)(sentence="Paris is the capital of France.")
    assert isinstance(found.true, bool)
