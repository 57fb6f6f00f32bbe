from array import array

from penstock.core import FinishReason, StepOutputs, TierTokens


def test_rows_give_each_request_its_tokens_and_extras() -> None:
    outputs = StepOutputs(
        ids=array("Q", [7, 8, 9]),
        finish=array("B", [0, 1, 4]),
        stop_tokens=array("i", [-1, 2, -1]),
        cached_tokens=array("I", [16, 0, 0]),
        queue_us=array("I", [5, 0, 0]),
        counts=array("H", [2, 1, 0]),
        tokens=array("I", [10, 11, 2]),
        logprobs={0: [(-1.0, 1, [])]},
        errors={2: "broken"},
        tier_tokens={0: TierTokens(disk=8)},
    )
    first, second, third = outputs.rows()
    assert (first.id, list(first.tokens), first.cached_tokens) == (7, [10, 11], 16)
    assert (first.tier_tokens.disk, sum(second.tier_tokens)) == (8, 0)
    assert first.logprobs == [(-1.0, 1, [])]
    assert (second.finish, second.stop_token, list(second.tokens)) == (FinishReason.STOP, 2, [2])
    assert (third.finish, third.error, list(third.tokens)) == (FinishReason.ERROR, "broken", [])
