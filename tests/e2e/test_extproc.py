"""The endpoint picker with a real Envoy before it, and modelled and real replicas behind that.

Tried: whole and streamed answers against those of a replica itself, in every pair of body modes;
bodies of several MB, trailers, clients that leave; a picker that is killed and comes back, with
both failure modes; refusals, subsets, renamed models, keys, TLS, the health service; and that both
doors decide alike.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.conftest import Serve
from tests.e2e.echo import Echo
from tests.e2e.envoy import Config, Envoy, Parts, binary
from tests.e2e.gateway import Gateway, Picker
from tests.e2e.server import eventually
from tests.e2e.sim import Sim
from tests.e2e.test_operating import Certificate
from tests.limits import HANG

BODY = {"model": "sim", "prompt": "t1 t2 t3", "max_tokens": 8}
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Count to five."}]
ERROR = {"message", "type", "param", "code"}


@pytest.fixture(scope="module", autouse=True)
def there() -> None:
    binary()


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    with Sim(replicas=2) as started:
        yield started


@pytest.fixture(scope="module")
def picker(sim: Sim) -> Iterator[Picker]:
    with Picker("--explain", *backends(sim.urls)) as started:
        yield started


@pytest.fixture(scope="module")
def envoy(sim: Sim, picker: Picker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    with Envoy(tmp_path_factory.mktemp("envoy"), picker.picker_url, sim.urls) as started:
        yield started


def backends(urls: list[str]) -> list[str]:
    return [word for url in urls for word in ("--backend", url)]


def ask(client: httpx.Client, **more: object) -> httpx.Response:
    return client.post("/v1/completions", json={**BODY, **more})


def endings(gateway: Gateway) -> dict[str, int]:
    """Requests by how they ended."""
    with gateway.client() as client:
        page = client.get("/metrics").text
    found = re.findall(r'gateway_requests_total\{.*outcome="(\w+)"\} (\d+)', page)
    return {outcome: int(count) for outcome, count in found}


def is_empty(gateway: Gateway) -> bool:
    with gateway.client() as client:
        page = client.get("/metrics").text
    return re.search(r"^penstock:gateway_requests_open\{.*\} 0$", page, re.MULTILINE) is not None


MODES = [
    ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
    ("BUFFERED", "STREAMED"),
    ("BUFFERED_PARTIAL", "BUFFERED"),
    ("STREAMED", "NONE"),
    ("NONE", "FULL_DUPLEX_STREAMED"),
]


@pytest.mark.parametrize(("request_mode", "answer_mode"), MODES)
def test_answers_are_those_of_the_replica_in_every_mode(
    sim: Sim, picker: Picker, tmp_path: Path, request_mode: str, answer_mode: str
) -> None:
    def change(parts: Parts) -> None:
        parts.modes.update(request_body_mode=request_mode, response_body_mode=answer_mode)

    with (
        Envoy(tmp_path, picker.picker_url, sim.urls, change) as envoy,
        envoy.client() as client,
        sim.client_of(0) as direct,
    ):
        answer = ask(client)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"] == ask(direct).json()["choices"]
        place = answer.headers["x-penstock-replica"]
        assert f"http://{place}" in sim.urls
        streamed = texts(ask(client, stream=True))
        assert streamed == texts(ask(direct, stream=True))
        assert client.get("/version").json() == direct.get("/version").json()
    eventually(lambda: is_empty(picker), "the end of all requests")


def texts(answer: httpx.Response) -> list[str]:
    """The choices of a stream's events, which have ids of their own otherwise."""
    return [re.sub(r".*\"choices\":", "", line) for line in answer.text.splitlines()]


def test_a_real_engine_answers_through_envoy(serve: Serve, tmp_path: Path) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(serve("--served-model-name", "smollm2"))
        picker = stack.enter_context(Picker("--backend", engine.url))
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, [engine.url]))

        def answers(url: str) -> list[str | None]:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="x")
            whole = client.chat.completions.create(
                model="smollm2", temperature=0, max_tokens=24, messages=MESSAGES
            )
            chunks = client.chat.completions.create(
                model="smollm2", temperature=0, max_tokens=24, messages=MESSAGES, stream=True
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            return [whole.choices[0].message.content, text]

        assert answers(envoy.url) == answers(engine.url)
        assert endings(picker) == {"served": 2}


def test_envoy_lists_the_models_of_all_pools(picker: Picker, envoy: Envoy) -> None:
    with picker.client() as own, envoy.client() as client:
        answer = client.get("/v1/models")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == own.get("/v1/models").json()
        assert [one["id"] for one in answer.json()["data"]] == ["sim"]


def test_large_bodies_and_trailers_arrive_whole(tmp_path: Path) -> None:
    def change(parts: Parts) -> None:
        parts.manager["http_protocol_options"] = {"enable_trailers": True}
        # Envoy 1.40 sends the body twice where it keeps it for a retry
        del parts.route["retry_policy"]

    with ExitStack() as stack:
        echo = stack.enter_context(Echo())
        picker = stack.enter_context(Picker("--backend", echo.url))
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, [echo.url], change))
        client = stack.enter_context(envoy.client())
        body = {"model": "echo", "prompt": "x" * (8 << 20)}
        answer = client.post("/v1/completions", json=body)
        assert answer.json() == {"model": "echo", "bytes": len(answer.request.content)}
        assert echo.seen[-1].body == answer.request.content
        text = b'{"model": "echo", "prompt": "y"}'
        status = chunked_with_trailers(envoy.url, text)
        assert status.startswith(b"HTTP/1.1 200"), status
        assert echo.seen[-1].body == text
        too_large = client.post("/v1/completions", content=b" " * (21 << 20))
        assert too_large.status_code == 413
        assert set(too_large.json()["error"]) == ERROR


def chunked_with_trailers(url: str, body: bytes) -> bytes:
    """Send a request with trailers; the answer's first line."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=HANG) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\nx-checksum: 1\r\n\r\n"
        connection.sendall(head + chunk)
        return connection.makefile("rb").readline()


def test_a_client_that_leaves_ends_its_reservation(sim: Sim, picker: Picker, envoy: Envoy) -> None:
    before = endings(picker).get("client_gone", 0)
    with envoy.client() as client:
        body = {**BODY, "max_tokens": 4000, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()  # the stream lasts as long as its iterator
            assert next(lines)
            assert not is_empty(picker)
    eventually(lambda: is_empty(picker), "the end of the request")
    assert endings(picker)["client_gone"] == before + 1


@pytest.mark.parametrize("fails_open", [False, True])
def test_a_picker_is_killed_and_comes_back(sim: Sim, tmp_path: Path, fails_open: bool) -> None:
    """An Envoy that has handed over the body cannot go on without the picker: it has to keep it."""

    def change(parts: Parts) -> None:
        parts.processor["failure_mode_allow"] = fails_open
        if fails_open:
            parts.modes["request_body_mode"] = "BUFFERED"

    picker = Picker(*backends(sim.urls))
    with ExitStack() as stack:
        stack.callback(picker.destroy)
        picker.wait_ready()
        port = int(picker.picker_url.rsplit(":", 1)[1])
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, sim.urls, change))
        client = stack.enter_context(envoy.client())
        assert ask(client).status_code == 200
        picker.signal(signal.SIGKILL)
        picker.wait()
        assert ask(client).status_code == (200 if fails_open else 500)
        with Picker(*backends(sim.urls), port=port) as again:
            eventually(lambda: ask(client).status_code == 200, "an answer")
            eventually(lambda: ask(client) and endings(again), "a request that the picker saw")


def test_refusals_are_the_gateways_own(sim: Sim, tmp_path: Path) -> None:
    with ExitStack() as stack:
        flags = ("--max-requests", "1", "--api-key", "k")
        picker = stack.enter_context(Picker(*flags, *backends(sim.urls)))
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, sim.urls))
        proxy = stack.enter_context(picker.client(authorization="Bearer k"))
        client = stack.enter_context(envoy.client(authorization="Bearer k"))

        def same(status: int, send: Callable[[httpx.Client], httpx.Response]) -> None:
            own, through = send(proxy), send(client)
            assert through.status_code == own.status_code == status, through.text
            assert through.json() == own.json()
            for name in ("content-type", "retry-after", "www-authenticate"):
                assert through.headers.get(name) == own.headers.get(name)

        same(404, lambda one: ask(one, model="gpt-4"))
        same(400, lambda one: one.post("/v1/completions", content=b"{"))
        same(400, lambda one: one.post("/v1/completions"))
        same(401, lambda one: one.post("/v1/completions", headers={"authorization": "Bearer x"}))
        anthropic = client.post("/v1/messages", content=b"[]").json()
        assert anthropic["error"]["type"] == "invalid_request_error"
        body = {**BODY, "max_tokens": 4000, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()  # the stream lasts as long as its iterator
            assert next(lines)
            same(429, ask)
        eventually(lambda: is_empty(picker), "the end of the request")
        assert ask(client).status_code == 200


def test_both_doors_log_with_the_same_fields(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": [{"name": "team", "key": "k1"}]}')
    flags = ("--access-log", "--log-format", "json", "--api-key-file", str(keys))
    with ExitStack() as stack:
        echo = stack.enter_context(Echo())
        picker = stack.enter_context(Picker(*flags, "--backend", echo.url))
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, [echo.url]))
        for door in (picker, envoy):
            with door.client(authorization="Bearer k1") as client:
                assert client.post("/v1/completions", content=b"{").status_code == 400
                assert client.post("/v1/completions", json={"model": "echo"}).status_code == 200

        def lines() -> list[Config] | None:
            found = [json.loads(line) for line in picker.log if line.startswith("{")]
            found = [line for line in found if "request_id" in line]
            # the proxy has a line of the access log for a refused request too
            return found if len(found) == 5 else None

        found = eventually(lines, "the lines of four requests")
    refused = [line for line in found if line["message"].startswith("refused ")]
    assert {line["level"] for line in refused} == {"info"}, "the client's mistake"
    proxied, carried = refused
    assert proxied.keys() == carried.keys()
    for name in ("method", "path", "status", "error"):
        assert proxied[name] == carried[name]
    assert carried["message"].startswith(f"refused {carried['request_id']}: POST /v1/completions")
    proxied, carried = [line for line in found if line.get("complete") and line["status"] == 200]
    assert proxied.keys() - carried.keys() == {"bytes"}
    assert (carried["client"], carried["key"]) == ("envoy", "team")
    place = echo.url.removeprefix("http://")
    assert proxied["replica"] == carried["replica"] == place
    assert carried["decision"].startswith(f"{place}: the only replica (")
    assert {line["source"] for line in found} == {"penstock.gateway"}
    assert 'envoy POST /v1/completions by "team" 200' in carried["message"]


def test_without_a_replica_there_is_503_and_the_health_service_says_so(tmp_path: Path) -> None:
    def change(parts: Parts) -> None:
        parts.picker["health_checks"] = [
            {
                "timeout": "60s",
                "interval": "0.1s",
                "no_traffic_interval": "0.1s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {},
            }
        ]

    with ExitStack() as stack:
        echo = stack.enter_context(Echo())
        picker = stack.enter_context(Picker("--backend", echo.url))
        watching = stack.enter_context(Envoy(tmp_path, picker.picker_url, [echo.url], change))

        def healthy() -> bool:
            statuses = watching.ask("/clusters?format=json").json()["cluster_statuses"]
            (hosts,) = [one["host_statuses"] for one in statuses if one["name"] == "picker"]
            return not hosts[0]["health_status"].get("failed_active_health_check", False)

        eventually(healthy, "a healthy picker")
        echo.is_healthy = False
        eventually(lambda: not healthy(), "an unhealthy picker")
        directory = tmp_path / "plain"
        directory.mkdir()
        envoy = stack.enter_context(Envoy(directory, picker.picker_url, [echo.url]))
        client = stack.enter_context(envoy.client())
        answer = client.post("/v1/completions", json={"model": "echo"})
        assert answer.status_code == 503
        assert "no replica is healthy" in answer.json()["error"]["message"]


def hints(parts: Parts) -> None:
    """Take the subset from a header of the request."""
    rule: Config = {
        "header": "x-subset",
        "on_header_present": {
            "metadata_namespace": "envoy.lb.subset_hint",
            "key": "x-gateway-destination-endpoint-subset",
            "type": "STRING",
        },
    }
    kind = "envoy.extensions.filters.http.header_to_metadata.v3.Config"
    config = {"@type": f"type.googleapis.com/{kind}", "request_rules": [rule]}
    name = "envoy.filters.http.header_to_metadata"
    parts.filters.insert(0, {"name": name, "typed_config": config})


def test_a_subset_is_kept(sim: Sim, picker: Picker, tmp_path: Path) -> None:
    with (
        Envoy(tmp_path, picker.picker_url, sim.urls, hints) as envoy,
        envoy.client() as client,
    ):
        for url in [*sim.urls, *sim.urls]:
            place = url.removeprefix("http://")
            answer = client.post("/v1/completions", json=BODY, headers={"x-subset": place})
            assert answer.headers["x-penstock-decision"].startswith(f"{place}: ")
        none = client.post("/v1/completions", json=BODY, headers={"x-subset": "10.9.9.9:1"})
        assert none.status_code == 503
        assert "subset" in none.json()["error"]["message"]


def test_keys_and_headers_change_on_the_way(tmp_path: Path) -> None:
    with ExitStack() as stack:
        echo = stack.enter_context(Echo())
        picker = stack.enter_context(
            Picker("--backend", echo.url, "--api-key", "k", "--backend-api-key", "own")
        )
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, [echo.url]))
        forged = {"x-gateway-destination-endpoint": "10.9.9.9:1", "x-api-key": "k"}
        client = stack.enter_context(envoy.client(**forged))
        assert client.post("/v1/completions", json={"model": "echo"}).status_code == 200
        headers = echo.seen[-1].headers
        assert headers["authorization"] == "Bearer own"
        assert headers["x-api-key"] is None
        place = echo.url.removeprefix("http://")
        assert headers.get_all("x-gateway-destination-endpoint") == [place]


def test_tls_between_envoy_and_the_picker(sim: Sim, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    certificate.write(1)

    def change(parts: Parts) -> None:
        kind = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
        trusted = {"trusted_ca": {"filename": str(certificate.chain)}}
        config = {
            "@type": f"type.googleapis.com/{kind}",
            "sni": "localhost",
            "common_tls_context": {"validation_context": trusted},
        }
        name = "envoy.transport_sockets.tls"
        parts.picker["transport_socket"] = {"name": name, "typed_config": config}

    files = ("--ssl-certfile", str(certificate.chain), "--ssl-keyfile", str(certificate.key))
    with (
        Picker(*files, *backends(sim.urls)) as picker,
        Envoy(tmp_path, picker.picker_url, sim.urls, change) as envoy,
        envoy.client() as client,
    ):
        assert picker.picker_url.startswith("https://")
        answer = ask(client)
        assert answer.status_code == 200, answer.text


RULES = """
access_log: true
pools:
  - name: old
    backends: [{old}]
  - name: new
    backends: [{new}]
models:
  - name: chat
    targets:
      - {{pool: old, model: v1, weight: 3}}
      - {{pool: new, model: version-2, weight: 1}}
"""


@pytest.mark.parametrize(("request_mode", "answer_mode"), MODES[:3])
def test_several_pools_and_renamed_models(
    tmp_path: Path, request_mode: str, answer_mode: str
) -> None:
    def change(parts: Parts) -> None:
        parts.modes.update(request_body_mode=request_mode, response_body_mode=answer_mode)

    with ExitStack() as stack:
        old, new = stack.enter_context(Echo(("v1",))), stack.enter_context(Echo(("version-2",)))
        file = tmp_path / "gateway.yaml"
        file.write_text(RULES.format(old=old.url, new=new.url))
        picker = stack.enter_context(Picker("--config", str(file)))
        urls = [old.url, new.url]
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, urls, change))
        client = stack.enter_context(envoy.client())
        for _ in range(8):
            answer = client.post("/v1/completions", json={"model": "chat", "prompt": "x"})
            assert answer.json()["model"] == "chat"
        assert [len(old.seen), len(new.seen)] == [6, 2]
        assert old.seen[0].body == b'{"model":"v1","prompt":"x"}'
        assert new.seen[0].body == b'{"model":"version-2","prompt":"x"}'
        assert client.post("/v1/completions", json={"model": "v1"}).status_code == 200
    assert picker.lines("envoy POST /v1/completions 200")


def test_a_picker_of_one_pool_knows_no_other(tmp_path: Path) -> None:
    with ExitStack() as stack:
        old, new = stack.enter_context(Echo(("v1",))), stack.enter_context(Echo(("version-2",)))
        file = tmp_path / "gateway.yaml"
        file.write_text(RULES.format(old=old.url, new=new.url))
        picker = stack.enter_context(Picker("--config", str(file), "--pool", "new"))
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, [old.url, new.url]))
        client = stack.enter_context(envoy.client())
        for _ in range(4):
            answer = client.post("/v1/completions", json={"model": "chat"})
            assert answer.status_code == 200
        assert [len(old.seen), len(new.seen)] == [0, 4]
        assert client.post("/v1/completions", json={"model": "v1"}).status_code == 404
    command = [sys.executable, "-m", "penstock", "gateway", "--config", str(file)]
    command += ["--ext-proc", "127.0.0.1:0", "--pool", "nope"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 2
    assert "there are new, old" in done.stderr


@pytest.mark.parametrize("profile", [["prefix", "running"], ["session", "queue"], ["cost"]])
def test_both_doors_decide_alike(tmp_path: Path, profile: list[str]) -> None:
    """The same requests, one after the other, through a proxy and through Envoy and a picker."""
    file = tmp_path / "profile.yaml"
    scorers = ", ".join(f"{{name: {name}, weight: 1}}" for name in profile)
    file.write_text(f"scorers: [{scorers}]")
    bodies = [
        {"model": "echo", "prompt": f"{number % 8}" * 3000 + f"{number}", "user": f"u{number % 5}"}
        for number in range(24)
    ]
    flags = ["--explain", "--profile", str(file)]
    with ExitStack() as stack:
        echoes = [stack.enter_context(Echo()) for _ in range(3)]
        urls = [echo.url for echo in echoes]
        proxy = stack.enter_context(Gateway(*flags, *backends(urls)))
        picker = stack.enter_context(Picker(*flags, *backends(urls)))
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, urls))

        def decisions(door: Gateway | Envoy, decides: Gateway) -> list[str]:
            client, found = stack.enter_context(door.client()), []
            for body in bodies:
                answer = client.post("/v1/completions", json=body)
                found.append(answer.headers["x-penstock-decision"])
                # The client may have the answer before the gateway knows that it is over.
                eventually(lambda: is_empty(decides), "the end of the request")
            return found

        through_proxy = decisions(proxy, proxy)
        through_envoy = decisions(envoy, picker)
        assert through_envoy == through_proxy
        assert len({decision.split()[0] for decision in through_proxy}) > 1
