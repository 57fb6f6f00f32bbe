from array import array

import pytest
from penstock.core import InvalidValueError, Request, SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", float("nan")),
        ("seed", -1),
        ("seed", 2**64),
        ("choice", -1),
        ("logprobs", 21),
        ("prompt_logprobs", -2),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InvalidValueError, match=f"^{field} is ") as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_the_neutral_values_are_accepted() -> None:
    assert SamplingParams() == SamplingParams(
        max_tokens=16, temperature=1.0, top_k=0, top_p=1.0, seed=0
    )


def test_a_prompt_needs_a_token() -> None:
    with pytest.raises(InvalidValueError, match="prompt"):
        Request(1, array("i"), SamplingParams())
