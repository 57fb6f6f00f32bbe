from array import array

import pytest

from penstock.core import GenerationParams, InvalidValueError, Request


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("prompt_logprobs", -2),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InvalidValueError, match=f"^{field} is ") as caught:
        GenerationParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_prompt_needs_a_token() -> None:
    with pytest.raises(InvalidValueError, match="prompt"):
        Request(1, array("i"), GenerationParams())
