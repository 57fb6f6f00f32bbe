"""The simulated engine as its clients see it: over HTTP, and behind the real API server."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.e2e import sse
from tests.e2e.server import eventually, metric
from tests.e2e.sim import Sim
from tests.limits import HANG

openai = pytest.importorskip("openai", reason="install openai to test its client")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUESTION = [{"role": "user", "content": "one two three"}]
ANSWER = {"prompt": "one two three", "max_tokens": 6, "ignore_eos": True}
SLOW = {"timing": {"base_us": 20_000, "decode_us": [], "prompt_us_per_token": 0}}


def profile(path: Path, **members: object) -> str:
    path.write_text(json.dumps(members))
    return str(path)


def test_the_official_client_library() -> None:
    with Sim("--profile", "fast", "--served-model-name", "made-up") as sim:
        sdk = openai.OpenAI(base_url=f"{sim.url}/v1", api_key="any", max_retries=0, timeout=HANG)
        assert [model.id for model in sdk.models.list()] == ["made-up"]
        answer = sdk.chat.completions.create(model="made-up", messages=QUESTION, max_tokens=5)
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 5)
        assert answer.choices[0].finish_reason == "length"
        chunks = list(
            sdk.chat.completions.create(
                model="made-up",
                messages=QUESTION,
                max_tokens=5,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == answer.choices[0].message.content
        assert chunks[-1].usage == answer.usage
        with pytest.raises(openai.NotFoundError):
            sdk.completions.create(model="other", prompt="x")
        sdk.close()


def test_replicas_are_engines_of_their_own() -> None:
    with Sim("--profile", "fast", replicas=3) as sim:
        assert len(set(sim.urls)) == 3
        for replica in range(3):
            with sim.client_of(replica) as client:
                for _ in range(replica):
                    sse.whole(client, COMPLETIONS, ANSWER)
                assert metric(client, "vllm:generation_tokens_total") == 6 * replica


def test_equal_seeds_give_equal_answers() -> None:
    def said(seed: str) -> str:
        with Sim("--profile", "instant", "--seed", seed) as sim, sim.client() as client:
            return sse.text(sse.whole(client, COMPLETIONS, ANSWER))

    assert said("1") == said("1") != said("2")


def test_a_models_tokenizer_counts(model_file: Path) -> None:
    with Sim("--profile", "fast", "--tokenizer", str(model_file)) as sim, sim.client() as client:
        counted = client.post("/tokenize", json={"prompt": "The quick brown fox"}).json()
        answer = sse.post(client, COMPLETIONS, {**ANSWER, "prompt": "The quick brown fox"})
        assert answer["usage"]["prompt_tokens"] == counted["count"]
        text = answer["choices"][0]["text"]
        assert client.post("/tokenize", json={"prompt": text}).json()["count"] == 6


def test_faults_as_a_client_meets_them() -> None:
    def stream(client: httpx.Client) -> bytes:
        with client.stream("POST", COMPLETIONS, json={**ANSWER, "stream": True}) as response:
            return b"".join(response.iter_raw())

    with (
        Sim("--profile", "instant", "--fault", "cut:1:2") as sim,
        sim.client() as client,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        stream(client)
    with Sim("--profile", "instant", "--fault", "refuse") as sim, sim.client() as client:
        response = client.post(COMPLETIONS, json=ANSWER)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    with Sim("--profile", "instant", "--fault", "error-event:1:2") as sim, sim.client() as client:
        assert b'data: {"error":' in stream(client)
    with Sim("--profile", "instant", "--fault", "no-finish") as sim, sim.client() as client:
        assert b'"finish_reason":"' not in stream(client)
    with Sim("--profile", "instant", "--fault", "stall:1:2") as sim, sim.client() as client:
        client.timeout = httpx.Timeout(0.5)
        with pytest.raises(httpx.ReadTimeout):
            stream(client)


def test_a_share_of_requests_fails() -> None:
    with Sim("--profile", "instant", "--fault", "status:0.3:429") as sim, sim.client() as client:
        statuses = [client.post(COMPLETIONS, json=ANSWER).status_code for _ in range(200)]
    assert set(statuses) == {200, 429}
    assert 30 <= statuses.count(429) <= 90


def test_an_engine_that_dies() -> None:
    with Sim("--profile", "instant", "--die-after", "0.5") as sim:
        assert sim.wait() == 1


def test_leaving_frees_the_place(tmp_path: Path) -> None:
    slow = profile(tmp_path / "slow.json", **SLOW, max_num_seqs=1)
    with Sim("--profile", slow) as sim, sim.client() as client:
        with sse.stream(client, COMPLETIONS, {**ANSWER, "max_tokens": 4000}) as events:
            events.take(2)
            assert metric(client, "vllm:num_requests_running") == 1
        assert len(sse.whole(client, COMPLETIONS, ANSWER)) == 6
        eventually(lambda: metric(client, "vllm:kv_cache_usage_perc") == 0, "free blocks")


def test_exhausted_blocks_preempt(tmp_path: Path) -> None:
    tight = profile(
        tmp_path / "tight.json", block_size=16, num_blocks=8, prefix_caching=False, **SLOW
    )
    bodies = [{**ANSWER, "prompt": [1 + n] * 30, "max_tokens": 60} for n in range(3)]
    with Sim("--profile", tight) as sim, sim.client() as client, ThreadPoolExecutor() as threads:
        answers = list(threads.map(lambda body: sse.post(client, COMPLETIONS, body), bodies))
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [60] * 3
        assert metric(client, "vllm:num_preemptions_total") > 0


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--fault", "explode"], "no such fault"),
        (["--answer-tokens", "many"], "MEAN"),
        (["--replicas", "0"], "--replicas"),
    ],
)
def test_wrong_flags_are_refused(flags: list[str], complaint: str) -> None:
    sim = Sim(*flags)
    assert sim.wait() == 2
    assert complaint in "\n".join(sim.log)


class TestBehindTheFrontDoor:
    """The real API server with a simulated engine on the real wire."""

    def test_it_answers_and_counts(self, model_file: Path, tmp_path: Path) -> None:
        quick = profile(tmp_path / "quick.json", **SLOW, max_num_seqs=2)
        with (
            Sim("--front-door", str(model_file), "--profile", quick) as sim,
            sim.client() as client,
        ):
            events = sse.whole(
                client,
                COMPLETIONS,
                {**ANSWER, "max_tokens": 20, "stream_options": {"include_usage": True}},
            )
            assert events[-1]["usage"]["completion_tokens"] == 20
            assert len(sse.text(events).split()) == 20
            assert metric(client, "vllm:generation_tokens_total") == 20

    def test_a_prefix_is_cached(self, model_file: Path) -> None:
        with Sim("--front-door", str(model_file)) as sim, sim.client() as client:
            body = {**ANSWER, "prompt": list(range(100, 200))}
            cached = [
                sse.post(client, COMPLETIONS, body)["usage"]["prompt_tokens_details"][
                    "cached_tokens"
                ]
                for _ in range(2)
            ]
            assert cached == [0, 96]

    def test_leaving_frees_the_place(self, model_file: Path, tmp_path: Path) -> None:
        slow = profile(tmp_path / "slow.json", **SLOW, max_num_seqs=1)
        with Sim("--front-door", str(model_file), "--profile", slow) as sim, sim.client() as client:
            with sse.stream(client, COMPLETIONS, {**ANSWER, "max_tokens": 4000}) as events:
                events.take(2)
            assert len(sse.whole(client, COMPLETIONS, ANSWER)) == 6

    def test_a_full_queue_is_a_503(self, model_file: Path, tmp_path: Path) -> None:
        narrow = profile(tmp_path / "narrow.json", **SLOW, max_num_seqs=1, max_queue=1)
        body = {**ANSWER, "max_tokens": 100}

        def status(_: int) -> int:
            return client.post(COMPLETIONS, json=body).status_code

        with (
            Sim("--front-door", str(model_file), "--profile", narrow) as sim,
            sim.client() as client,
            ThreadPoolExecutor(6) as threads,
        ):
            statuses = list(threads.map(status, range(6)))
        assert set(statuses) == {200, 503}

    def test_faults(self, model_file: Path) -> None:
        door = ("--front-door", str(model_file), "--fault")
        with Sim(*door, "error-event:1:3") as sim, sim.client() as client:
            *tokens, error = sse.whole(client, COMPLETIONS, ANSWER)
            assert len(tokens) == 3
            assert "a fault on purpose" in error["error"]["message"]
        with Sim(*door, "early-stop:1:3") as sim, sim.client() as client:
            answer = sse.post(client, COMPLETIONS, ANSWER)
            assert answer["usage"]["completion_tokens"] == 3
            assert answer["choices"][0]["finish_reason"] == "stop"
        with Sim(*door, "stall:1:2") as sim, sim.client() as client:
            client.timeout = httpx.Timeout(1.0)
            # More tokens than are computed in that time: what was computed whole, and stalls, ends
            # with the time that running requests get after SIGTERM.
            with pytest.raises(httpx.ReadTimeout):
                client.post(COMPLETIONS, json={**ANSWER, "max_tokens": 4000})

    def test_an_engine_that_dies_is_replaced(self, model_file: Path) -> None:
        with (
            Sim("--front-door", str(model_file), "--die-after", "2") as sim,
            sim.client() as client,
        ):
            eventually(
                lambda: any("engine" in line and "restart" in line for line in sim.log),
                "a dead engine",
            )

            def answered() -> bool:
                with suppress(httpx.HTTPError):
                    return client.post(COMPLETIONS, json=ANSWER).status_code == httpx.codes.OK
                return False

            eventually(answered, "an answer of the next engine")
