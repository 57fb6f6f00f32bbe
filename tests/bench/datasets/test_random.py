"""Random lengths as drawn by `vllm bench serve`; prompts that share only the prefix."""

import math
import statistics
from itertools import combinations, pairwise

import pytest

from penstock.core import InvalidValueError
from penstock_lab.bench.datasets import RandomOptions, parse_range_ratio, random_requests
from tests.fakes.tokenizing import PlainMaker


def common(first, second) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first)
    )


def test_fixed_lengths() -> None:
    requests = random_requests(RandomOptions(20, 100, 30), PlainMaker(), 0)
    assert len(requests) == 20
    assert {(r.input_tokens, len(r.prompt), r.output_tokens, r.due) for r in requests} == {
        (100, 100, 30, 0.0)
    }


@pytest.mark.parametrize(("ratio_in", "ratio_out"), [(0.0, 0.3), (0.1, 0.9), (0.5, 0.5)])
def test_lengths_are_uniform_in_the_range(ratio_in: float, ratio_out: float) -> None:
    options = RandomOptions(4000, 37, 21, (ratio_in, ratio_out))
    requests = random_requests(options, PlainMaker(), 1)
    for mean, ratio, lengths in (
        (37, ratio_in, [r.input_tokens for r in requests]),
        (21, ratio_out, [r.output_tokens for r in requests]),
    ):
        low, high = math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio))
        assert set(lengths) == set(range(low, high + 1))
        assert statistics.fmean(lengths) == pytest.approx((low + high) / 2, rel=0.03)


def test_an_output_is_at_least_a_token() -> None:
    requests = random_requests(RandomOptions(200, 5, 1, (0.0, 0.9)), PlainMaker(), 0)
    assert {r.output_tokens for r in requests} == {1, 2}


def test_what_the_tokenizer_adds_is_part_of_the_length() -> None:
    (request,) = random_requests(RandomOptions(1, 50, 1), PlainMaker(special=2), 0)
    assert (len(request.prompt), request.input_tokens) == (48, 50)


def test_what_a_template_adds_comes_on_top() -> None:
    (request,) = random_requests(RandomOptions(1, 50, 1), PlainMaker(template=9), 0)
    assert (len(request.prompt), request.input_tokens) == (50, 59)


def test_the_prefix_comes_on_top_and_is_all_that_is_shared() -> None:
    requests = random_requests(RandomOptions(200, 30, 1, prefix_len=25), PlainMaker(200), 3)
    assert {r.input_tokens for r in requests} == {55}
    assert {common(a.prompt, b.prompt) for a, b in combinations(requests, 2)} == {25}


def test_seeds() -> None:
    options = RandomOptions(30, 40, 10, (0.5, 0.5), prefix_len=20)
    once = list(random_requests(options, PlainMaker(), 0))
    assert once == list(random_requests(options, PlainMaker(), 0))
    other = list(random_requests(options, PlainMaker(), 1))
    assert [r.input_tokens for r in once] != [r.input_tokens for r in other]
    assert max(common(a.prompt, b.prompt) for a in once for b in other) <= 2


def test_the_same_lengths_whatever_the_vocabulary() -> None:
    options = RandomOptions(50, 40, 10, (0.5, 0.5))
    by_size = [
        [(r.input_tokens, r.output_tokens) for r in random_requests(options, PlainMaker(size), 0)]
        for size in (64, 5000)
    ]
    assert by_size[0] == by_size[1]


def test_more_prompts_than_words_differ_all_the_same() -> None:
    requests = random_requests(RandomOptions(300, 12, 1), PlainMaker(10), 0)
    assert len({tuple(r.prompt) for r in requests}) == 300
    assert all(a.prompt[0] != b.prompt[0] for a, b in pairwise(requests))


def test_normal_lengths() -> None:
    options = RandomOptions(4000, 200, 50, input_stddev=20, output_stddev=40)
    requests = random_requests(options, PlainMaker(), 0)
    inputs, outputs = [r.input_tokens for r in requests], [r.output_tokens for r in requests]
    assert statistics.fmean(inputs) == pytest.approx(200, abs=2)
    assert statistics.pstdev(inputs) == pytest.approx(20, rel=0.05)
    assert min(outputs) == 1
    # Of a normal distribution, 11.2% lie below the mean less 1.2125 deviations (1.5 is rounded to
    # 2).
    assert sum(length == 1 for length in outputs) / 4000 == pytest.approx(0.112, abs=0.02)


def test_requests_are_built_when_asked_for() -> None:
    requests = random_requests(RandomOptions(10**6, 8, 1), PlainMaker(), 0)
    assert requests[999_999] == requests[-1]
    assert len(requests[5:8]) == 3


@pytest.mark.parametrize(
    ("text", "ratios"),
    [("0.3", (0.3, 0.3)), ("0", (0.0, 0.0)), ('{"input": 0.1, "output": 0.5}', (0.1, 0.5))],
)
def test_range_ratios(text: str, ratios: tuple[float, float]) -> None:
    assert parse_range_ratio(text) == ratios


@pytest.mark.parametrize("text", ["", "a lot", "[0.1]", '{"input": 0.1}', "null"])
def test_range_ratios_that_are_none(text: str) -> None:
    with pytest.raises(InvalidValueError, match="--random-range-ratio"):
        parse_range_ratio(text)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_prompts": 0}, "--num-prompts"),
        ({"input_len": -1}, "--random-input-len"),
        ({"output_len": 0}, "--random-output-len"),
        ({"prefix_len": -1}, "--random-prefix-len"),
        ({"range_ratio": (1.0, 0.0)}, "--random-range-ratio"),
        ({"range_ratio": (0.1, 0.0), "input_stddev": 3.0}, "--random-range-ratio"),
        ({"output_stddev": math.nan}, "standard deviation of the output"),
    ],
)
def test_options_out_of_range_are_named(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        RandomOptions(**fields)


@pytest.mark.parametrize(("length", "ratio"), [(2, 0.0), (3, 0.9), (0, 0.0)])
def test_a_prompt_that_could_be_empty(length: int, ratio: float) -> None:
    with pytest.raises(InvalidValueError, match="--random-input-len"):
        random_requests(RandomOptions(1, length, 1, (ratio, 0.0)), PlainMaker(special=2), 0)
    assert random_requests(
        RandomOptions(1, length, 1, (ratio, 0.0), prefix_len=1), PlainMaker(special=2), 0
    )
