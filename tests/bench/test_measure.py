"""A workload's flags become requests, a load and a result, again and again."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench import client, prompts
from penstock_lab.bench.measure import measure, parse_workload
from penstock_lab.bench.progress import Silent
from penstock_lab.bench.target import Address, Target
from tests.fakes.load import Answer, PlayedRun, Serve, exact


class Words:
    """A vocabulary of 100 words."""

    name = "a hundred words"
    vocabulary = range(100)
    special = 0
    template = 0
    overhead = 0

    def prompt(self, ids: list[int]) -> str:
        return " ".join(f"w{token}" for token in ids)

    def count(self, prompt: object) -> int | None:
        return len(prompt.split()) if isinstance(prompt, str) else None


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "make", lambda *_: Words())


class Played:
    """Every load of a test, played under a virtual clock."""

    def __init__(self) -> None:
        self.serve: Serve = exact
        self.moments: Mapping[float, Callable[[], None]] = {}
        self.bodies: list[list[dict[str, Any]]] = []

    def open(self, description: str) -> PlayedRun:
        bodies: list[dict[str, Any]] = []
        self.bodies.append(bodies)

        def serve(index: int, body: dict[str, Any]) -> Answer:
            bodies.append(body)
            return self.serve(index, body)

        return PlayedRun(description, serve, self.moments)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    made = Played()
    monkeypatch.setattr(client, "native_run", made.open)
    return made


def target(max_model_len: int | None = None) -> Target:
    return Target(
        Address("http://server:1"), "openai", "/v1/completions", "m", "org/m", max_model_len
    )


def measured(
    line: str, *, seed: int = 0, at: Target | None = None, **tags: object
) -> dict[str, Any]:
    return measure(
        parse_workload(line.split()), at or target(), seed=seed, tags=tags, progress=Silent()
    )


RANDOM = "serve --random-input-len 20 --random-output-len 5 --num-prompts 10"


def test_random_prompts_have_the_length_and_must_be_answered_in_full(played: Played) -> None:
    found = measured(RANDOM)
    (bodies,) = played.bodies
    assert [len(body["prompt"].split()) for body in bodies] == [20] * 10
    assert all(body["max_tokens"] == 5 and body["ignore_eos"] is True for body in bodies)
    assert len({body["prompt"] for body in bodies}) == 10
    assert (found["completed"], found["total_input_tokens"], found["total_output_tokens"]) == (
        10,
        200,
        50,
    )
    assert found["penstock"]["usage"] == {"reported": 10, "prompt_mismatch": 0, "cached_tokens": 0}
    # Five events, 10 ms apart, the first after 50 ms.
    assert found["mean_ttft_ms"] == pytest.approx(50)
    assert found["mean_tpot_ms"] == pytest.approx(10)
    assert found["mean_e2el_ms"] == pytest.approx(90)


def test_the_same_seed_is_the_same_load_and_another_seed_another(played: Played) -> None:
    for seed in (1, 1, 2):
        measured(f"{RANDOM} --request-rate 5", seed=seed)
    first, again, other = played.bodies
    assert first == again
    assert not {body["prompt"] for body in first} & {body["prompt"] for body in other}


def test_arrivals_end_when_the_rate_says(played: Played) -> None:
    found = measured(f"{RANDOM} --request-rate 5")
    assert found["penstock"]["detail"]["due"][-1] == pytest.approx(2.0)
    assert found["penstock"]["send_lateness_ms"]["max"] == pytest.approx(0.0)
    assert found["request_rate"] == 5.0
    assert (found["penstock"]["axis"], found["penstock"]["point"]) == ("rate", 5.0)


def test_a_ramp(played: Played) -> None:
    line = (
        f"{RANDOM} --ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 10 "
        "--burstiness inf"
    )
    found = measured(line)
    rates = [event["rps"] for event in found["rps_change_events"]]
    assert rates == list(range(1, 11))
    assert found["request_rate"] == "inf"


def test_tags_are_the_callers_or_what_is_known(played: Played) -> None:
    ours = measured(f"{RANDOM} --max-concurrency 2")["penstock"]
    assert (ours["command"], ours["server"], ours["seed"]) == ("serve", "http://server:1", 0)
    assert (ours["workload"], ours["axis"], ours["point"]) == ("random 20/5", "concurrency", 2.0)
    assert ours["prompts"] == "a hundred words"
    ours = measured(RANDOM, seed=7, server="mine", command="sweep", repeat=3, workload="w")[
        "penstock"
    ]
    assert [ours[key] for key in ("server", "command", "repeat", "workload", "seed")] == [
        "mine",
        "sweep",
        3,
        "w",
        7,
    ]


def test_warm_up_requests_are_not_those_of_the_measurement(played: Played) -> None:
    found = measured(f"{RANDOM} --num-warmups 3")
    warm, main = played.bodies
    assert (len(warm), len(main), found["completed"]) == (3, 10, 10)
    assert not {body["prompt"] for body in warm} & {body["prompt"] for body in main}


def test_a_warm_up_that_fails_ends_the_measurement(played: Played) -> None:
    played.serve = lambda *_: Answer((), 0.1, failure="http_status", detail="404 no such model")
    with pytest.raises(PenstockError, match=r"warm-up.*404 no such model"):
        measured(f"{RANDOM} --num-warmups 2")
    assert measured(RANDOM)["penstock"]["failures"] == {"http_status": 10}


def test_an_interrupt_marks_the_result_partial_and_one_in_the_warm_up_is_raised(
    played: Played,
) -> None:
    interrupt = {0.5: lambda: os.kill(os.getpid(), signal.SIGINT)}
    played.moments = interrupt
    found = measured(f"{RANDOM} --request-rate 5")
    assert found["penstock"]["partial"]
    assert 0 < found["completed"] < 10
    played.serve = lambda *_: Answer((9.0,), 9.0)
    with pytest.raises(KeyboardInterrupt):
        measured(f"{RANDOM} --num-warmups 2")


def test_sampling_flags_reach_the_body_and_are_not_there_by_default(played: Played) -> None:
    measured(RANDOM)
    measured(f'{RANDOM} --temperature 0.5 --top-k 3 --extra-body {{"min_p":0.1}} --logprobs 2')
    plain, given = (bodies[0] for bodies in played.bodies)
    assert set(plain) == {"model", "prompt", "max_tokens", "stream", "stream_options", "ignore_eos"}
    assert (given["temperature"], given["top_k"], given["min_p"], given["logprobs"]) == (
        0.5,
        3,
        0.1,
        2,
    )


def test_lengths_for_all_datasets(played: Played, tmp_path: Path) -> None:
    measured(f"{RANDOM} --input-len 7 --output-len 3")
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one two three"}\n')
    found = measured(
        f"serve --dataset-name custom --dataset-path {path} --num-prompts 2 --output-len 4"
    )
    random, custom = (bodies[0] for bodies in played.bodies)
    assert (len(random["prompt"].split()), random["max_tokens"]) == (7, 3)
    assert (custom["prompt"], custom["max_tokens"]) == ("one two three", 4)
    assert "ignore_eos" not in custom
    assert found["penstock"]["workload"] == "custom prompts"


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:00:00.0000000,10,3
2023-11-16 18:00:02.0000000,50,4
2023-11-16 18:00:04.0000000,12,5
2023-11-16 18:01:00.0000000,12,5
"""


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


@pytest.mark.parametrize("scale", [0.25, 1.0, 1.6])
def test_a_trace_comes_when_it_came(played: Played, azure: Path, scale: float) -> None:
    found = measured(f"trace {azure} --time-scale {scale} --duration 10")
    ours = found["penstock"]
    assert ours["detail"]["due"] == pytest.approx([0.0, 2 * scale, 4 * scale])
    assert ours["detail"]["sent"] == pytest.approx([0.0, 2 * scale, 4 * scale])
    assert found["input_lens"] == [10, 50, 12]
    assert found["output_lens"] == [3, 4, 5]
    assert (ours["command"], ours["axis"], ours["point"]) == ("trace", "time_scale", scale)
    assert ours["trace"]["total"] == 4
    assert found["request_rate"] == pytest.approx(3 / (4 * scale), rel=1e-3)


def test_a_trace_is_cut_to_what_the_server_takes(played: Played, azure: Path) -> None:
    found = measured(f"trace {azure}", at=target(max_model_len=40))
    assert found["input_lens"] == [10, 36, 12, 12]
    assert found["penstock"]["trace"]["shortened"] == 1
    found = measured(f"trace {azure} --max-model-len 30", at=target(max_model_len=40))
    assert found["input_lens"] == [10, 26, 12, 12]


def test_a_window_of_a_trace(played: Played, azure: Path) -> None:
    found = measured(f"trace {azure} --start 1 --num-prompts 2 --length-scale 0.5")
    assert found["penstock"]["detail"]["due"] == [0.0, 2.0]
    assert found["input_lens"] == [25, 6]


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("serve --dataset-name sharegpt", "--dataset-path"),
        ("serve --random-range-ratio 2", "--random-range-ratio"),
        ("serve --ramp-up-strategy linear", "--ramp-up-start-rps"),
        ("serve --ramp-up-strategy linear --request-rate 2", "--request-rate"),
        ("trace x.csv --time-scale -1", "--time-scale"),
    ],
)
def test_what_does_not_fit_together_names_the_flag(line: str, flag: str, played: Played) -> None:
    with pytest.raises(InvalidValueError) as caught:
        measured(line)
    assert caught.value.field == flag


@pytest.mark.parametrize(
    "words",
    [
        "serve --max-concurrency 0",
        "serve --request-rate 0",
        "serve --percentile-metrics ttft,nonsense",
        "serve --metric-percentiles 101",
        "serve --goodput itl:3",
        "serve --extra-body [1]",
        "serve --num-prompts 0",
        "serve --port 1",
        "offline --request-rate 3",
        "nothing",
    ],
)
def test_wrong_words_end_with_the_usage(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_workload(words.split())
    assert caught.value.code == 2
    assert "workload" in capsys.readouterr().err


def test_an_offline_workload_sends_all_requests_at_once(played: Played) -> None:
    words = "--num-prompts 5 --random-input-len 8 --random-output-len 4"
    found = [measured(f"{kind} {words}", seed=3) for kind in ("offline", "serve")]
    offline, serve = played.bodies
    assert offline == serve
    assert len(offline) == 5
    assert found[0]["output_throughput"] == found[1]["output_throughput"] > 0
    assert found[0]["request_rate"] == "inf"
    assert found[0]["max_concurrency"] is None


def test_the_defaults_are_vllms() -> None:
    parsed = parse_workload(["serve"])
    expected = {
        "dataset_name": "random",
        "num_prompts": 1000,
        "random_input_len": 1024,
        "random_output_len": 128,
        "random_prefix_len": 0,
        "custom_output_len": 256,
        "sharegpt_output_len": None,
        "request_rate": math.inf,
        "burstiness": 1.0,
        "max_concurrency": None,
        "seed": 0,
        "num_warmups": 0,
        "ignore_eos": False,
        "temperature": None,
        "logprobs": None,
        "percentile_metrics": ("ttft", "tpot", "itl"),
        "metric_percentiles": (99.0,),
    }
    assert {name: getattr(parsed, name) for name in expected} == expected


def test_a_result_is_strict_json(played: Played) -> None:
    json.dumps(measured(f"{RANDOM} --goodput ttft:100 tpot:5"), allow_nan=False)
