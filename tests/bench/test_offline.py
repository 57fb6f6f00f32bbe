"""Throughput of a batch, by a fake backend, and of the default model in this process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench import offline
from penstock_lab.bench.batches import Batch, OnServer
from penstock_lab.bench.progress import Silent
from penstock_lab.bench.request import Request
from penstock_lab.bench.target import Address, Target
from tests.bench.batching import FakeBackend, whole
from tests.bench.measuring import parse
from tests.fakes.load import Answer, PlayedRun, exact

SMALL = ("--num-prompts", "4", "--random-input-len", "10", "--random-output-len", "6")


def test_one_batch_after_a_warm_up_of_other_prompts() -> None:
    backend = FakeBackend(lambda _index, requests: whole(requests, 2.0))
    measured = offline.measure(parse(offline, *SMALL, "--num-warmups", "2"), backend)
    warmups, requests = backend.batches
    assert (len(warmups), len(requests)) == (2, 4)
    assert not {tuple(request.prompt) for request in warmups} & {
        tuple(request.prompt) for request in requests
    }
    assert measured == Batch(2.0, 4, 0, 40, 24)
    assert offline.lines(measured) == [
        "Throughput: 2.00 requests/s, 32.00 total tokens/s, 12.00 output tokens/s",
        "Total num prompt tokens:  40",
        "Total num output tokens:  24",
    ]


def test_keys_are_vllms() -> None:
    backend = FakeBackend(lambda _index, requests: whole(requests, 2.0))
    parsed = parse(offline, *SMALL, "--seed", "3")
    kept = offline.record(parsed, backend, offline.measure(parsed, backend))
    ours = kept.pop("penstock")
    assert kept == {
        "model_id": "model",
        "elapsed_time": 2.0,
        "num_requests": 4,
        "total_num_tokens": 64,
        "requests_per_second": 2.0,
        "tokens_per_second": 32.0,
    }
    assert (ours["server"], ours["workload"], ours["seed"]) == ("fake", "random 10/6", 3)
    assert ours["output_tokens_per_second"] == 12.0


def test_failed_requests_are_said_and_not_counted() -> None:
    measured = Batch(2.0, 3, 1, 30, 18, examples=["connect: refused"])
    lines = offline.lines(measured)
    assert lines[0].startswith("Throughput: 1.50 requests/s, 24.00 total")
    assert lines[-1] == "Requests failed: 1 of 4"


def test_a_warm_up_that_fails_as_a_whole_ends_it() -> None:
    def answer(_index: int, requests: Sequence[Request]) -> Batch:
        return Batch(0.1, 0, len(requests), 0, 0, examples=["connect: refused"])

    with pytest.raises(PenstockError, match="connect: refused"):
        offline.measure(parse(offline, *SMALL, "--num-warmups", "1"), FakeBackend(answer))


def on_server(serve: object, *words: str) -> OnServer:
    target = Target(Address("http://host:1"), "openai", "/v1/completions", "m", "org/m")
    played = lambda text: PlayedRun(text, serve)  # type: ignore[arg-type] # noqa: E731
    return OnServer(parse(offline, *words), target, Silent(), played)


REQUESTS = [Request(f"a b c {number}", 4, 5) for number in range(3)]


def test_a_server_gets_all_requests_at_once_and_must_produce_every_token() -> None:
    bodies = []

    def serve(index: int, body: dict[str, object]) -> Answer:
        bodies.append(body)
        return exact(index, body)

    done = on_server(serve, "--temperature", "0").run(REQUESTS, "requests")
    assert done == Batch(pytest.approx(0.09), 3, 0, 12, 15, examples=[])
    assert {(body["ignore_eos"], body["temperature"], body["max_tokens"]) for body in bodies} == {
        (True, 0.0, 5)
    }


def test_a_server_that_stops_early_has_failed() -> None:
    def serve(index: int, body: dict[str, object]) -> Answer:
        return Answer(completion_tokens=4 if index == 1 else 5, prompt_tokens=4)

    done = on_server(serve).run(REQUESTS, "requests")
    assert (done.completed, done.failed, done.output_tokens) == (2, 1, 10)
    assert [example.split(":")[0] for example in done.examples] == ["short"]


def test_engine_settings_are_not_for_a_server() -> None:
    with pytest.raises(InvalidValueError, match="--max-num-seqs"):
        offline.run(parse(offline, "--port", "1", "--max-num-seqs", "8"))


def test_without_a_server_a_model_is_needed() -> None:
    with pytest.raises(InvalidValueError, match="--model"):
        offline.run(parse(offline))


@pytest.mark.parametrize("words", [("--min-p", "0.1"), ("--extra-body", '{"a": 1}')])
def test_what_only_a_server_knows_is_refused_in_process(words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidValueError, match=words[0]):
        offline.run(parse(offline, "--model", "smollm2", *words))


class TestInProcess:
    """The default model, with prompts and answers of exact lengths."""

    WORDS = (*SMALL, "--max-num-seqs", "4", "--kv-cache-memory-bytes", "64MiB", "--disable-tqdm")

    def test_tokens_are_counted_as_the_engine_counts_them(
        self, model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip(
            "penstock._native", reason="the extension is not built: run `make install`"
        )
        file = tmp_path / "new" / "throughput.json"
        words = (
            "--model",
            str(model_file),
            *self.WORDS,
            "--num-warmups",
            "1",
            "--output-json",
            str(file),
        )
        assert offline.run(parse(offline, *words)) == 0
        kept = json.loads(file.read_text())
        assert (kept["num_requests"], kept["total_num_tokens"]) == (4, 4 * 16)
        assert kept["requests_per_second"] == pytest.approx(4 / kept["elapsed_time"])
        assert kept["penstock"]["server"] == "in process"
        assert "Total num output tokens:  24" in capsys.readouterr().out

    def test_ctrl_c_leaves_the_requests_that_ended(
        self, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip(
            "penstock._native", reason="the extension is not built: run `make install`"
        )
        from penstock.llm import LLM

        whole, seen = LLM.generate, []

        def interrupting(
            self: LLM, texts: object, params: object, *, use_tqdm: bool, on_end: Any
        ) -> object:
            def ended(answer: object) -> None:
                on_end(answer)
                seen.append(answer)
                if len(seen) == 2:
                    raise KeyboardInterrupt

            assert not use_tqdm
            return whole(self, texts, params, on_end=ended)  # type: ignore[arg-type]

        monkeypatch.setattr(LLM, "generate", interrupting)
        file = tmp_path / "throughput.json"
        words = ("--model", str(model_file), *self.WORDS, "--output-json", str(file))
        assert offline.run(parse(offline, *words)) == 130
        kept = json.loads(file.read_text())
        assert (kept["num_requests"], kept["penstock"]["failed"], kept["penstock"]["partial"]) == (
            2,
            2,
            True,
        )
