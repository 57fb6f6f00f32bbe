"""What is sent when a trace is replayed: times, lengths, and prefixes that repeat as they did."""

import json
import math
from itertools import takewhile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.prompts import Served, make
from penstock_lab.bench.traces import Arrival, ReplayOptions, Trace, read, replay
from tests.fakes.tokenizing import PlainMaker

pytestmark = pytest.mark.heavy

MAKER = PlainMaker(8000)


def trace_of(*arrivals: Arrival) -> Trace:
    return Trace(Path("a.jsonl"), "mooncake", arrivals)


def common(first, second) -> int:
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    )


SECONDS = trace_of(*(Arrival(float(second), 100 + second, 10) for second in range(10)))


@pytest.mark.parametrize("scale", [0.4, 1.0, 1.6])
@pytest.mark.parametrize("name", ["azure_llm_2023_conv.csv", "mooncake_conversation.jsonl"])
def test_send_times_at_several_scales(shared: Path, name: str, scale: float) -> None:
    path = shared / "data/traces" / name
    trace = read(path)
    requests = replay(trace, ReplayOptions(time_scale=scale), MAKER, 0)
    assert len(requests) == len(trace.arrivals)
    lines = path.read_text().splitlines()
    last = 3501.721937 if name.startswith("azure") else json.loads(lines[-1])["timestamp"] / 1000
    assert requests[-1].due == pytest.approx(scale * last, abs=1e-6)
    for index in (0, 1, 500, 9_000):
        assert requests[index].due == scale * trace.arrivals[index].at
    every = len(trace.arrivals)
    assert requests.notes == {
        "total": every, "failures": 0, "selected": every, "shortened": 0, "dropped": 0
    }  # fmt: skip


def test_lengths_are_the_traces(shared: Path) -> None:
    trace = read(shared / "data/traces/azure_llm_2023_conv.csv")
    requests = replay(trace, ReplayOptions(num_prompts=300), PlainMaker(special=1), 0)
    for request, arrival in zip(requests, trace.arrivals, strict=False):
        assert (request.input_tokens, request.output_tokens) == (
            arrival.input_tokens,
            arrival.output_tokens,
        )
        assert len(request.prompt) == arrival.input_tokens - 1


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.01])
def test_mooncakes_prefixes_repeat_as_they_did(shared: Path, scale: float) -> None:
    trace = read(shared / "data/traces/mooncake_conversation.jsonl")
    requests = replay(trace, ReplayOptions(length_scale=scale), MAKER, 0)
    block = max(1, round(512 * scale))
    rng = Random(0)
    pairs = [tuple(rng.sample(range(3000), 2)) for _ in range(300)]
    pairs += [(n, n + 1) for n in range(100)] + same_conversation(trace)
    longer_than_a_block = 0
    for one, other in pairs:
        first, second = trace.arrivals[one].hash_ids, trace.arrivals[other].hash_ids
        shared_blocks = common(first, second)
        left, right = requests[one].prompt, requests[other].prompt
        expected = min(shared_blocks * block, len(left), len(right))
        found = common(left, right)
        if differ_at_once(first, second, shared_blocks):
            assert found == expected
        assert expected <= found <= expected + 2
        longer_than_a_block += shared_blocks > 1
    assert longer_than_a_block >= 20


def same_conversation(trace: Trace) -> list[tuple[int, int]]:
    """Pairs of requests with a long prefix in common."""
    seen: dict[tuple[int, ...], int] = {}
    pairs = []
    for index, arrival in enumerate(trace.arrivals[:3000]):
        before = seen.setdefault(arrival.hash_ids[:4], index)
        if before != index and len(arrival.hash_ids) >= 4:
            pairs.append((before, index))
    return pairs[:100]


def differ_at_once(first: tuple[int, ...], second: tuple[int, ...], at: int) -> bool:
    """Whether the words that follow the common blocks cannot be equal by accident."""
    if at >= min(len(first), len(second)):
        return True
    return (first[at] - second[at]) % len(MAKER.vocabulary) != 0


def test_blocks_by_hand() -> None:
    described = [(1200, (5, 6, 7)), (1100, (5, 6, 8)), (600, (5, 6))]
    trace = trace_of(*(Arrival(0.0, length, 1, hash_ids, 512) for length, hash_ids in described))
    first, second, third = (request.prompt for request in replay(trace, ReplayOptions(), MAKER, 0))
    assert [len(first), len(second), len(third)] == [1200, 1100, 600]
    assert common(first, second) == 1024
    assert third == first[:600]


def test_fewer_hash_ids_than_the_input_has_blocks() -> None:
    trace = trace_of(Arrival(0.0, 1000, 1, (5,), 512), Arrival(1.0, 1000, 1, (5,), 512))
    first, second = (request.prompt for request in replay(trace, ReplayOptions(), MAKER, 0))
    assert len(first) == len(second) == 1000
    assert common(first, second) == 512


def test_without_hash_ids_nothing_is_shared() -> None:
    prompts = [request.prompt for request in replay(SECONDS, ReplayOptions(), MAKER, 0)]
    assert len({prompt[0] for prompt in prompts}) == 10


def test_a_window_changes_no_prompt() -> None:
    whole = replay(SECONDS, ReplayOptions(), MAKER, 0)
    part = replay(SECONDS, ReplayOptions(start=3.5, duration=4, time_scale=0.5), MAKER, 0)
    assert [r.prompt for r in part] == [r.prompt for r in whole[4:8]]
    assert [r.due for r in part] == [0.0, 0.5, 1.0, 1.5]
    assert part.notes["selected"] == 4


def test_a_window_ends_before_its_end() -> None:
    assert len(replay(SECONDS, ReplayOptions(duration=3), MAKER, 0)) == 3
    assert len(replay(SECONDS, ReplayOptions(start=9), MAKER, 0)) == 1
    assert len(replay(SECONDS, ReplayOptions(start=2, num_prompts=4), MAKER, 0)) == 4
    assert len(replay(SECONDS, ReplayOptions(num_prompts=400), MAKER, 0)) == 10


@pytest.mark.parametrize(
    "options", [ReplayOptions(start=9.5), ReplayOptions(start=4.2, duration=0.5)]
)
def test_an_empty_window_names_the_span(options: ReplayOptions) -> None:
    with pytest.raises(PenstockError, match=r"a\.jsonl.*spans seconds 0 to 9\.0"):
        replay(SECONDS, options, MAKER, 0)


def test_all_at_once() -> None:
    assert {r.due for r in replay(SECONDS, ReplayOptions(time_scale=0), MAKER, 0)} == {0.0}


def test_seeds() -> None:
    trace = trace_of(Arrival(0.0, 100, 5, (1,), 512), Arrival(1.0, 100, 5))
    once, again, other = (list(replay(trace, ReplayOptions(), MAKER, seed)) for seed in (0, 0, 1))
    assert once == again
    assert all(common(a.prompt, b.prompt) <= 1 for a, b in zip(once, other, strict=True))
    assert [r.input_tokens for r in once] == [r.input_tokens for r in other]


def test_scaled_lengths_are_at_least_a_token() -> None:
    trace = trace_of(Arrival(0.0, 1000, 10), Arrival(1.0, 1, 0))
    requests = replay(trace, ReplayOptions(length_scale=0.25), MAKER, 0)
    assert [(r.input_tokens, r.output_tokens) for r in requests] == [(250, 2), (1, 1)]


def test_what_does_not_fit_is_shortened_or_dropped_and_counted() -> None:
    trace = trace_of(
        Arrival(0.0, 500, 50), Arrival(1.0, 1000, 50), Arrival(2.0, 10, 700), Arrival(3.0, 9, 590)
    )
    maker = PlainMaker(special=1, template=4)
    requests = replay(trace, ReplayOptions(max_model_len=600), maker, 0)
    assert [(r.input_tokens, r.output_tokens) for r in requests] == [
        (504, 50),
        (550, 50),
        (10, 590),
    ]
    assert [len(r.prompt) for r in requests] == [499, 545, 5]
    assert requests.notes == {
        "total": 4,
        "failures": 0,
        "selected": 4,
        "shortened": 2,
        "dropped": 1,
    }


def test_caps() -> None:
    requests = replay(SECONDS, ReplayOptions(max_input_len=105, max_output_len=3), MAKER, 0)
    assert [r.input_tokens for r in requests] == [100, 101, 102, 103, 104, 105, 105, 105, 105, 105]
    assert {r.output_tokens for r in requests} == {3}
    assert requests.notes["shortened"] == 4


def test_nothing_fits() -> None:
    with pytest.raises(PenstockError, match=r"none of 10 requests fits .*--length-scale"):
        replay(SECONDS, ReplayOptions(max_model_len=10), MAKER, 0)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"time_scale": -1.0}, "--time-scale"),
        ({"time_scale": math.inf}, "--time-scale"),
        ({"length_scale": 0.0}, "--length-scale"),
        ({"start": math.nan}, "--start"),
        ({"duration": 0.0}, "--duration"),
        ({"num_prompts": 0}, "--num-prompts"),
        ({"max_model_len": 0}, "--max-model-len"),
        ({"max_input_len": -4}, "--max-input-len"),
        ({"max_output_len": 0}, "--max-output-len"),
    ],
)
def test_options_out_of_range_are_named(fields: dict[str, float], named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        ReplayOptions(**fields)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 500)), min_size=1, max_size=8),
    scale=st.floats(0.001, 3),
    most=st.none() | st.integers(20, 3000),
    special=st.integers(0, 2),
    hashed=st.booleans(),
)
def test_every_request_is_as_long_as_it_says(
    lengths: list[tuple[int, int]], scale: float, most: int | None, special: int, hashed: bool
) -> None:
    arrivals = [
        Arrival(float(n), i, o, tuple(range(-(-i // 512))), 512 if i else 0)
        if hashed
        else Arrival(float(n), i, o)
        for n, (i, o) in enumerate(lengths)
    ]
    maker = PlainMaker(special=special, template=3)
    try:
        requests = replay(
            trace_of(*arrivals), ReplayOptions(length_scale=scale, max_model_len=most), maker, 0
        )
    except PenstockError:
        assert most is not None
        return
    for request in requests:
        assert len(request.prompt) >= 1
        assert request.output_tokens >= 1
        assert request.input_tokens == len(request.prompt) + maker.overhead
        assert most is None or request.input_tokens + request.output_tokens <= most
    notes = requests.notes
    assert notes["selected"] == notes["total"] == len(lengths) == len(requests) + notes["dropped"]


def test_real_words(shared: Path, model_file: Path) -> None:
    """Blocks of text share as many tokens as blocks of ids."""
    maker = make(Served("offline"), tokenizer=str(model_file))
    trace = read(shared / "data/traces/mooncake_conversation.jsonl")
    requests = replay(trace, ReplayOptions(length_scale=0.1, num_prompts=40), maker, 0)
    counts = [maker.count(request.prompt) for request in requests]
    assert counts == [request.input_tokens for request in requests]
