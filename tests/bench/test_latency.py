"""Latency of a fixed batch: what is run, what counts, and vLLM's lines and keys."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from penstock.core import PenstockError
from penstock_lab.bench import latency
from penstock_lab.bench.batches import Batch
from penstock_lab.bench.latency import Latencies
from penstock_lab.bench.progress import Silent
from penstock_lab.bench.request import Request
from tests.bench.batching import FakeBackend, whole
from tests.bench.measuring import parse

SMALL = ("--batch-size", "3", "--input-len", "5", "--output-len", "7")
FAILED = Batch(1.0, 2, 1, 10, 14, examples=["short: 6 of 7 tokens"])
INTERRUPTED = Batch(1.0, 1, 2, 5, 7, examples=["interrupted"], partial=True)


def measured_by(
    answer: Callable[[int, Sequence[Request]], Batch], *words: str
) -> tuple[Latencies, FakeBackend]:
    backend = FakeBackend(answer)
    return latency.measure(parse(latency, *SMALL, *words), backend, Silent()), backend


def test_the_defaults_are_vllms() -> None:
    parsed = parse(latency)
    assert (parsed.batch_size, parsed.input_len, parsed.output_len) == (8, 32, 128)
    assert (parsed.num_iters_warmup, parsed.num_iters) == (10, 30)


def test_warm_ups_do_not_count_and_no_prompt_is_met_twice() -> None:
    words = ("--num-iters-warmup", "2", "--num-iters", "4")
    found, backend = measured_by(lambda index, requests: whole(requests, index / 10), *words)
    assert found == Latencies(pytest.approx([0.2, 0.3, 0.4, 0.5]))
    assert [len(requests) for requests in backend.batches] == [3] * 6
    everything = list(itertools.chain.from_iterable(backend.batches))
    assert {
        (request.input_tokens, request.output_tokens, request.due) for request in everything
    } == {(5, 7, 0)}
    assert len({tuple(request.prompt) for request in everything}) == 18


def test_the_seed_decides_the_prompts() -> None:
    first, again, other = (
        measured_by(lambda _index, requests: whole(requests, 1.0), "--seed", seed)[1].batches
        for seed in ("1", "1", "2")
    )
    assert first == again
    assert first != other


def test_an_iteration_with_a_failure_does_not_count() -> None:
    def answer(index: int, requests: Sequence[Request]) -> Batch:
        return FAILED if index == 1 else whole(requests, 0.5)

    found, _ = measured_by(answer, "--num-iters-warmup", "0", "--num-iters", "3")
    assert (found.seconds, found.failed, found.examples) == (
        [0.5, 0.5],
        1,
        ["short: 6 of 7 tokens"],
    )
    assert latency.lines(found)[-1] == "Iterations with failed requests: 1"


def test_a_failure_of_the_warm_up_ends_it() -> None:
    with pytest.raises(PenstockError, match="short: 6 of 7 tokens"):
        measured_by(lambda _index, _requests: FAILED)


@pytest.mark.parametrize("raised", [False, True])
def test_ctrl_c_leaves_the_iterations_until_then(raised: bool) -> None:
    def answer(index: int, requests: Sequence[Request]) -> Batch:
        if index == 3 and raised:
            raise KeyboardInterrupt
        return INTERRUPTED if index == 3 else whole(requests, 0.5)

    found, backend = measured_by(answer, "--num-iters-warmup", "1", "--num-iters", "9")
    assert (found.seconds, found.partial, len(backend.batches)) == ([0.5, 0.5], True, 4)
    assert latency.lines(found)[-1] == "Interrupted after 2 iterations"


def test_lines_and_keys_are_vllms() -> None:
    seconds = [0.31, 0.27, 0.3, 0.29, 0.5, 0.28]
    percentiles = dict(
        zip([10, 25, 50, 75, 90, 99], np.percentile(seconds, [10, 25, 50, 75, 90, 99]), strict=True)
    )
    lines = latency.lines(Latencies(seconds))
    label, value = lines[0].removesuffix(" seconds").split(": ")
    assert (label, float(value)) == ("Avg latency", pytest.approx(np.mean(seconds)))
    for line, (percent, exact) in zip(lines[1:], percentiles.items(), strict=True):
        label, value = line.removesuffix(" seconds").split(": ")
        assert (label, float(value)) == (f"{percent}% percentile latency", pytest.approx(exact))
    backend = FakeBackend(lambda _index, requests: whole(requests, 0.0))
    kept = latency.record(parse(latency, *SMALL), backend, Latencies(seconds, partial=True))
    assert list(kept) == ["model_id", "avg_latency", "latencies", "percentiles", "penstock"]
    assert kept["percentiles"] == {
        str(percent): pytest.approx(exact) for percent, exact in percentiles.items()
    }
    assert kept["latencies"] == seconds
    assert (kept["penstock"]["partial"], kept["penstock"]["workload"]) == (True, "3 x 5/7")
