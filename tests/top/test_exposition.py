from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ops.top.exposition import increase, parse, quantile
from tests.top.pages import server_page, server_text


def test_samples_are_summed_over_their_series() -> None:
    page = parse(
        'vllm:num_requests_running{model_name="a",engine="0"} 2\n'
        'vllm:num_requests_running{model_name="a",engine="1"} 3\n'
        'vllm:num_requests_running{model_name="b",engine="0"} 4 1700000000\n'
    )
    name = "vllm:num_requests_running"
    assert page.total(name) == 9
    assert page.total(name, engine="0", model_name="a") == 2
    assert page.by(name, "model_name") == {"a": 5, "b": 4}
    assert page.most(name) == 4
    assert page.total(name, engine="7") is None


def test_labels_keep_what_is_escaped_in_them() -> None:
    page = parse(r'penstock:x{tier="a\"b\\c\nd}, e=",le="1"} 1')
    assert page.samples["penstock:x"][0].labels == {"tier": 'a"b\\c\nd}, e=', "le": "1"}


@pytest.mark.parametrize(
    "line",
    [
        "<html>",
        "# HELP vllm:x y",
        "vllm:x",
        "vllm:x NaN",
        "vllm:x +Inf",
        "vllm:x{ 1",
        "other_metric 1",
        "vllm:x 1 2 3",
        "",
    ],
)
def test_other_lines_are_skipped(line: str) -> None:
    assert not parse(line).samples


@given(st.text())
def test_any_text_is_a_page(text: str) -> None:
    parse(text)
    parse(f"vllm:x{{{text}}} 1")


def test_quantiles_are_linear_inside_a_bucket_as_in_prometheus() -> None:
    buckets = {0.1: 4.0, 0.5: 8.0, math.inf: 8.0}
    assert quantile(buckets, 0.25) == pytest.approx(0.05)
    assert quantile(buckets, 0.75) == pytest.approx(0.3)
    assert quantile({0.1: 0.0, 0.5: 0.0, math.inf: 3.0}, 0.5) == 0.5, "the last bound is a floor"
    assert quantile({}, 0.5) is None
    assert quantile({math.inf: 0.0}, 0.5) is None


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_quantiles_ascend_within_the_bounds(counts: list[int], one: float, other: float) -> None:
    total, buckets = 0.0, {}
    for place, count in enumerate(counts):
        total += count
        bound = math.inf if place == len(counts) - 1 else float(place + 1)
        buckets[bound] = total
    low, high = (quantile(buckets, share) for share in sorted((one, other)))
    if total == 0:
        assert low is None
        return
    assert low is not None
    assert high is not None
    assert 0 <= low <= high <= len(counts)


def test_the_increase_of_a_histogram() -> None:
    name = "vllm:time_to_first_token_seconds"
    before = server_page(first={"0.1": 4, "0.5": 8, "+Inf": 8}).buckets(name)
    after = server_page(first={"0.1": 4, "0.5": 18, "+Inf": 18}).buckets(name)
    assert increase(after, before) == {0.1: 0, 0.5: 10, math.inf: 10}
    assert increase(before, before) == {}, "nothing was observed"
    assert increase(after, {}) == {}
    assert increase(before, after) == {}, "another process has begun to count"


def test_a_page_without_an_infinite_bound_has_no_histogram() -> None:
    text = server_text().replace('le="+Inf"', 'le="9"')
    assert parse(text).buckets("vllm:time_to_first_token_seconds") == {}
