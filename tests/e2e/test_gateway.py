"""The gateway before real engines and modelled ones, with real clients.

Tried: the openai SDK, streamed and whole, against the answers of a replica itself; a replica that
is killed under load, one that is stopped as an operator does, one that refuses; prefixes that are
shared; limits of `--max-requests`; wrong settings.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway
from tests.e2e.server import Server, eventually
from tests.e2e.sim import Sim
from tests.e2e.sse import completion
from tests.limits import HANG

PROMPTS = [f"Write a line about the number {number}." for number in range(3)]
LIMITS = httpx.Limits(max_connections=None)


def backends(urls: list[str]) -> list[str]:
    return [word for url in urls for word in ("--backend", url)]


@pytest.fixture(scope="module")
def engines(serve: Serve) -> Iterator[list[Server]]:
    """Three servers of the default model; their pools are small so that all fit a machine."""
    flags = ("--served-model-name", "smollm2", "--num-gpu-blocks-override", "256")
    with ExitStack() as stack:
        yield [stack.enter_context(serve(*flags)) for _ in range(3)]


def ask(client: openai.OpenAI, prompt: str) -> str | None:
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=24,
    )
    return answer.choices[0].message.content


def ask_streamed(client: openai.OpenAI, prompt: str) -> str:
    chunks = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=24,
        stream=True,
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_answers_are_those_of_the_replicas(engines: list[Server]) -> None:
    direct = openai.OpenAI(base_url=f"{engines[0].url}/v1", api_key="x")
    with Gateway(*backends([engine.url for engine in engines])) as gateway:
        through = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x")
        assert [model.id for model in through.models.list()] == ["smollm2"]
        for prompt in PROMPTS:
            expected = ask(direct, prompt)
            assert ask(through, prompt) == expected
            assert ask_streamed(through, prompt) == expected
        with pytest.raises(openai.NotFoundError, match="Served here: smollm2"):
            through.chat.completions.create(model="gpt-4", messages=[])
        with pytest.raises(openai.BadRequestError, match="temperature"):
            through.completions.create(model="smollm2", prompt="x", temperature=-1)


async def end_of(client: httpx.AsyncClient, number: int) -> str:
    """How a streamed completion ends; it must end exactly once."""
    body = {"model": "sim", "prompt": f"t{number} t2 t3", "max_tokens": 40}
    return (await completion(client, body)).end


async def crowd(url: str, count: int, meanwhile: list[object]) -> Counter[str]:
    async with httpx.AsyncClient(base_url=url, timeout=HANG, limits=LIMITS) as client:
        tasks = [asyncio.create_task(end_of(client, number)) for number in range(count)]
        await asyncio.sleep(0.3)
        for call in meanwhile:
            assert callable(call)
            call()
        return Counter(await asyncio.gather(*tasks))


def test_a_replica_that_is_killed_takes_only_its_open_streams_along() -> None:
    with ExitStack() as stack:
        stay = stack.enter_context(Sim(replicas=2))
        lost = Sim()
        stack.enter_context(lost)
        gateway = stack.enter_context(Gateway(*backends([*stay.urls, lost.url])))
        ends = asyncio.run(crowd(gateway.url, 90, [lost.process.kill]))
        assert sum(ends.values()) == 90
        assert set(ends) <= {"finished", "failed"}, ends
        assert ends["finished"] >= 90 - 1.2 * 90 / 3, ends
        after = asyncio.run(crowd(gateway.url, 30, []))
        assert after == {"finished": 30}
        lost.wait()


def test_a_replica_that_is_stopped_under_load_loses_nothing(serve: Serve) -> None:
    """SIGTERM: it drains, its new requests go elsewhere."""
    with ExitStack() as stack:
        stay = stack.enter_context(Sim("--served-model-name", "smollm2"))
        leaving = stack.enter_context(serve("--served-model-name", "smollm2"))
        gateway = stack.enter_context(Gateway(*backends([stay.url, leaving.url])))

        async def ask_many() -> Counter[int]:
            body = {"model": "smollm2", "prompt": "t1 t2", "max_tokens": 30}
            async with httpx.AsyncClient(
                base_url=gateway.url, timeout=HANG, limits=LIMITS
            ) as client:
                tasks = []
                for number in range(60):
                    tasks.append(asyncio.create_task(client.post("/v1/completions", json=body)))
                    await asyncio.sleep(0.01)
                    if number == 20:
                        leaving.signal(signal.SIGTERM)
                return Counter([answer.status_code for answer in await asyncio.gather(*tasks)])

        assert asyncio.run(ask_many()) == {200: 60}
        assert leaving.wait() == 0


def test_replicas_that_are_gone_are_no_retries(tmp_path: Path) -> None:
    """Six of seven die at once, and no check has noticed: they look like the least loaded ones."""
    file = tmp_path / "gateway.yaml"
    check = f"{{period_s: 600, timeout_s: {HANG:.0f}}}"
    checks = f"fleet: {{health: {check}, metrics: {check}}}"
    with Sim() as stays:
        gone = Sim(replicas=6)
        with gone:
            listed = ", ".join([*gone.urls, stays.url])
            file.write_text(f"pools: [{{name: p, backends: [{listed}], {checks}}}]")
            gateway = Gateway("--config", str(file), "--retries", "0")
            with gateway, gateway.client() as client:

                def all_ready() -> bool:
                    page = client.get("/metrics").text
                    found = re.findall(r"^penstock:gateway_replica_ready.* 1$", page, re.MULTILINE)
                    return len(found) == 7

                eventually(all_ready, "seven replicas")
                gone.destroy()
                for number in range(7):
                    body = {"model": "sim", "prompt": f"t{number}", "max_tokens": 2}
                    answer = client.post("/v1/completions", json=body)
                    assert answer.status_code == 200, answer.text
        assert prompts_of(stays, 0) == 7


def test_a_burst_spreads() -> None:
    async def in_flight(url: str) -> list[int]:
        """Of each replica, when 200 streams are open."""
        counts: list[int] = []
        async with httpx.AsyncClient(base_url=url, timeout=HANG, limits=LIMITS) as client:
            streams = [asyncio.create_task(end_of(client, number)) for number in range(200)]
            while sum(counts) < 200:
                assert not any(stream.done() for stream in streams), "a stream has ended"
                page = (await client.get("/metrics")).text
                found = re.findall(r"^penstock:gateway_replica_in_flight\{.*\} (\d+)", page, re.M)
                counts = list(map(int, found))
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
        return counts

    # No stream ends by itself, so that a replica that stands still gets no fewer.
    with Sim("--fault", "stall", replicas=4) as sim, Gateway(*backends(sim.urls)) as gateway:
        counts = asyncio.run(in_flight(gateway.url))
    assert (len(counts), sum(counts)) == (4, 200)
    assert max(counts) <= 1.2 * 200 / 4, counts


STREAMS = 5000


@pytest.mark.slow
def test_thousands_of_streams_are_open_at_once(tmp_path: Path) -> None:
    """Each has its tokens, and the end; the gateway counts all of them at one time."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    profile = tmp_path / "profile.json"
    timing = {
        "base_us": 12e6,
        "decode_us": [],
        "prompt_us_per_token": 0,
        "decode_us_per_context_ktoken": 0,
        "prompt_us_per_context_ktoken": 0,
        "jitter": 0,
    }
    room = {"max_num_seqs": 8192, "max_num_batched_tokens": 1 << 20, "max_queue": 65536}
    more = {"num_blocks": 1 << 20, "max_model_len": 4096, "prefix_caching": False}
    profile.write_text(json.dumps({**room, **more, "timing": timing}))
    with ExitStack() as stack:
        sim = stack.enter_context(Sim("--profile", str(profile), replicas=2))
        gateway = stack.enter_context(Gateway(*backends(sim.urls)))
        host, port = gateway.url.removeprefix("http://").split(":")
        body = b'{"model": "sim", "prompt": "t1", "max_tokens": 4, "stream": true}'
        request = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
        ) % (len(body), body)

        async def stream() -> bytes:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            answer = await reader.read(-1)
            writer.close()
            return answer

        async def most_open() -> int:
            seen, name = 0, r"^penstock:gateway_requests_open\{.*\} (\d+)"
            async with httpx.AsyncClient(base_url=gateway.url, timeout=HANG) as client:
                while seen < STREAMS:
                    page = (await client.get("/metrics")).text
                    found = re.search(name, page, re.M)
                    seen = max(seen, int(found[1]) if found else 0)
                    await asyncio.sleep(0.2)
            return seen

        async def all_streams() -> list[bytes]:
            watch = asyncio.create_task(most_open())
            answers = await asyncio.gather(*(stream() for _ in range(STREAMS)))
            assert await asyncio.wait_for(watch, HANG) == STREAMS
            return answers

        answers = asyncio.run(all_streams())
    assert {answer.split(b"\r\n", 1)[0] for answer in answers} == {b"HTTP/1.1 200 OK"}
    assert all(answer.count(b"data: [DONE]") == 1 for answer in answers)
    assert all(answer.count(b'"text":"') >= 4 for answer in answers)


def test_shared_prefixes_stay_together() -> None:
    with Sim(replicas=4) as sim, Gateway(*backends(sim.urls)) as gateway:
        shared = " ".join(f"t{number}" for number in range(2000))
        with gateway.client() as client:
            for number in range(8):
                body = {"model": "sim", "prompt": f"{shared} t{number}", "max_tokens": 2}
                assert client.post("/v1/completions", json=body).status_code == 200
        assert sorted(prompts_of(sim, replica) for replica in range(4)) == [0, 0, 0, 8]


def prompts_of(sim: Sim, replica: int) -> int:
    with sim.client_of(replica) as client:
        page = client.get("/metrics").text
    found = re.findall(r"^vllm:request_success_total\{.*\} (\d+)", page, re.MULTILINE)
    return sum(map(int, found))


def test_replicas_of_one_command(serve: Serve) -> None:
    """A replica that is killed is started again; nothing is left at the end."""
    small = ("--served-model-name", "smollm2", "--max-model-len", "512")
    with serve("--replicas", "2", *small) as server, server.client() as client:
        openai_client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x")
        expected = ask(openai_client, PROMPTS[0])
        children = server.children()
        assert len(children) == 2
        command = Path(f"/proc/{children[0]}/cmdline").read_bytes().decode()
        assert "--max-model-len\x00512" in command
        os.kill(children[0], signal.SIGKILL)
        for _ in range(4):
            assert ask(openai_client, PROMPTS[0]) == expected

        def both() -> bool:
            page = client.get("/metrics").text
            return len(re.findall(r"^penstock:gateway_replica_ready.* 1$", page, re.MULTILINE)) == 2

        eventually(lambda: children[0] not in server.children() and both(), "a second replica")


def test_the_metrics_page_has_the_replicas(tmp_path: Path) -> None:
    with Sim(replicas=2) as sim:
        listed = tmp_path / "replicas"
        listed.write_text(f"{sim.urls[0]}\n")
        with Gateway("--backends-file", str(listed)) as gateway, gateway.client() as client:

            def replicas() -> set[str]:
                page = client.get("/metrics").text
                return set(re.findall(r'gateway_replica_ready\{.*replica="([^"]*)"\} 1', page))

            first, second = (url.removeprefix("http://") for url in sim.urls)
            assert replicas() == {first}
            listed.write_text("\n".join(sim.urls))
            eventually(lambda: replicas() == {first, second}, "the second replica")
            assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ([], "replicas are missing"),
        (["--backend", "localhost:8000"], "http://10.0.0.1:8000"),
        (["--backend", "http://a", "--backends-dns", "b:1"], "give one"),
        (["--backends-dns", "b"], "NAME:PORT"),
        (["--config", "/nonexistent.yaml"], "/nonexistent.yaml"),
    ],
)
def test_wrong_settings_are_named(flags: list[str], wanted: str) -> None:
    command = [sys.executable, "-m", "penstock", "gateway", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode in (1, 2)
    assert wanted in done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_that_leaves_before_the_answer_is_counted_and_logged() -> None:
    body = json.dumps({"prompt": "t1", "max_tokens": 6000, "ignore_eos": True})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with (
        Sim() as sim,
        Gateway("--backend", sim.url, "--access-log") as gateway,
        gateway.client() as client,
        sim.client() as replica,
    ):
        eventually(lambda: client.get("/ready").status_code == 200, "a replica")
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as leaving:
            leaving.sendall((head + body).encode())
            running = re.compile(r"^vllm:num_requests_running\{.*\} 1", re.MULTILINE)
            eventually(lambda: running.search(replica.get("/metrics").text), "a request")
        [line] = gateway.lines("POST /v1/completions 499", least=1)
        assert line.endswith(" s, client left"), line
        page = client.get("/metrics").text
        assert ',pool="default",outcome="client_gone"} 1' in page
        assert 'penstock:http_responses_total{code="499"} 1' in page
        assert "GET /ready" not in gateway.text(), "probes are not in the access log"


def test_a_file_has_pools_models_and_profiles(tmp_path: Path) -> None:
    with Sim("--served-model-name", "v1") as old, Sim("--served-model-name", "v2") as new:
        file = tmp_path / "gateway.yaml"
        file.write_text(
            f"""
            access_log: true
            pools:
              - name: old
                backends: [{old.url}]
                profile: {{scorers: [{{name: running}}], picker: round-robin}}
              - name: new
                backends: [{{url: "{new.url}", labels: {{zone: a}}}}]
            models:
              - name: chat
                targets:
                  - {{pool: old, model: v1, weight: 3}}
                  - {{pool: new, model: v2, weight: 1}}
            """
        )
        with Gateway("--config", str(file)) as gateway, gateway.client() as client:
            names = [model["id"] for model in client.get("/v1/models").json()["data"]]
            assert names == ["chat", "v1", "v2"]
            for _ in range(8):
                body = {"model": "chat", "prompt": "t1", "max_tokens": 2}
                answer = client.post("/v1/completions", json=body)
                assert answer.json()["model"] == "chat"
            assert prompts_of(old, 0) == 6
            assert prompts_of(new, 0) == 2
        for line in gateway.lines("POST /v1/completions 200", least=8):
            assert re.search(r", \d+ \+ 2 tokens.*, from 127\.0\.0\.1:\d+; (old|new): ", line), line
        file.write_text(f"pools: [{{name: p, backends: ['{old.url}'], profil: {{}}}}]")
        command = [sys.executable, "-m", "penstock", "gateway", "--config", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
        assert done.returncode == 2
        assert "profil" in done.stderr
