"""A server as a service: TLS, a Unix socket, keys of a file, logs, a service manager."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from tests.e2e.conftest import Serve
from tests.e2e.server import Server, eventually
from tests.fakes.certificate import Certificate
from tests.limits import HANG

UNIT = Path(__file__).resolve().parents[2] / "deploy/penstock.service"


def served_serial(port: int) -> int:
    """Serial number of the certificate that the server shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=HANG) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        shown = wrapped.getpeercert(binary_form=True)
    assert shown
    return x509.load_der_x509_certificate(shown).serial_number


def ask(client: httpx.Client, url: str, **more: object) -> httpx.Response:
    body = {"model": "smollm2", "prompt": "one two", "max_tokens": 4, **more}
    return client.post(f"{url}/v1/completions", json=body)


def test_tls_with_a_certificate_that_is_renewed(serve: Serve, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    certificate.write(1)
    files = ("--ssl-certfile", str(certificate.chain), "--ssl-keyfile", str(certificate.key))
    with serve("--served-model-name", "smollm2", *files) as server:
        assert server.url.startswith("https://127.0.0.1:")
        port = int(server.url.rsplit(":", 1)[1])
        url = f"https://localhost:{port}"
        with httpx.Client(verify=certificate.client(), timeout=HANG) as client:
            assert ask(client, url).json()["usage"]["completion_tokens"] == 4
            with client.stream("GET", f"{url}/health") as answer:
                assert answer.status_code == 200
        # Plain HTTP on this port, and a client that says nothing, disturb no other connection.
        with socket.create_connection(("127.0.0.1", port), timeout=HANG) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP/1.1 200")
        with socket.create_connection(("127.0.0.1", port)):
            assert served_serial(port) == 1
        certificate.write(2)
        eventually(lambda: served_serial(port) == 2, "the renewed certificate")
        certificate.chain.write_text("no certificate")
        eventually(lambda: "stays in force" in server.text(), "a line in the log")
        assert served_serial(port) == 2


def test_wrong_tls_files_are_said_before_anything_is_loaded(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for flags, wanted in [
        (("--ssl-certfile", "x.pem"), "go together"),
        (("--ssl-certfile", "/no/x.pem", "--ssl-keyfile", "/no/y.pem"), "/no/x.pem"),
        (
            ("--ssl-certfile", f"{tmp_path}/empty.pem", "--ssl-keyfile", "/no/y.pem"),
            "no certificate in PEM",
        ),
        (("--api-key-file", "/no/keys.json"), "/no/keys.json"),
    ]:
        server = serve(*flags)
        assert server.wait() in (1, 2)
        assert wanted in server.text()
        assert "Traceback" not in server.text()


def test_a_unix_socket(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "door.sock"
    with serve("--served-model-name", "smollm2", "--uds", str(path)) as server:
        assert server.url == f"unix:{path}"
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, timeout=HANG) as client:
            assert ask(client, "http://penstock").status_code == 200
    assert not path.exists()


def test_logs_have_ids_and_reasons_and_no_prompts(serve: Serve, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": "team", "key": "k1"}]}))
    flags = ("--access-log", "--log-format", "json", "--api-key-file", str(keys))
    secret = "a very secret prompt"
    with serve("--served-model-name", "smollm2", *flags) as server:
        with server.client(authorization="Bearer k1") as client:
            done = ask(client, "", prompt=secret)
            refused = ask(client, "", prompt=secret, temperature=-1)
        with server.client() as client:
            unknown = ask(client, "", prompt=secret)
        statuses = [answer.status_code for answer in (done, refused, unknown)]
        assert statuses == [200, 400, 401]
        ids = [answer.headers["x-request-id"] for answer in (done, refused, unknown)]

        def lines() -> list[dict[str, Any]] | None:
            # The line that names the address is the only one that is not of the API server's log.
            found = [json.loads(line) for line in server.log if line.startswith("{")]
            ended = [line for line in found if " bytes, " in line["message"]]
            return found if len(ended) == 3 else None

        found = eventually(lines, "three lines of the access log")
    assert secret not in server.text()
    of = {request: [line for line in found if request in line["message"]] for request in ids}
    (access,) = of[ids[0]]
    assert access["level"] == "info"
    assert 'POST /v1/completions by "team" 200' in access["message"]
    assert f"{ids[0]}: 127.0.0.1:" in access["message"]
    # Each part of the line is a member, too.
    assert access["client"].startswith("127.0.0.1:")
    assert (access["request_id"], access["key"], access["status"]) == (ids[0], "team", 200)
    assert (access["method"], access["path"]) == ("POST", "/v1/completions")
    assert access["bytes"] > 0
    assert 0 < access["ttft_ms"] <= access["ms"]
    assert access["complete"] is True
    usage = done.json()["usage"]
    for name in ("prompt_tokens", "completion_tokens"):
        assert access[name] == usage[name] > 0
    assert access["cached_tokens"] == 0
    assert access["finish_reason"] == done.json()["choices"][0]["finish_reason"]
    assert {line["source"] for line in found} == {"penstock.server"}
    refusal, access = of[ids[1]]
    assert refusal["level"] == "info", "the client's mistake"
    assert "400 invalid_request_error (temperature): temperature" in refusal["message"]
    assert " 400, " in access["message"]
    assert (refusal["status"], access["status"]) == (400, 400)
    assert refusal["error"] == "invalid_request_error"
    assert not access.keys() & {"prompt_tokens", "ttft_ms", "replica", "finish_reason"}
    warning, _ = of[ids[2]]
    assert warning["level"] == "warning", "somebody tries keys"
    assert "401 invalid_api_key" in warning["message"]
    assert "'Bearer KEY'." in warning["message"], "not escaped as for a debugger"


def test_a_service_manager_is_notified(serve: Serve, tmp_path: Path) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = tmp_path / "notify"
    manager.bind(str(path))
    manager.settimeout(HANG)
    server: Server = serve(prefix=("env", f"NOTIFY_SOCKET={path}"))
    ready = manager.recv(1000).decode()
    server.wait_ready()
    assert ready == f"READY=1\nSTATUS=listening on {server.url}"
    server.signal(signal.SIGTERM)
    assert manager.recv(1000) == b"STOPPING=1"
    assert server.wait() == 0
    manager.close()


def test_the_unit_file_is_valid(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    unit = tmp_path / UNIT.name
    # The path of an installation, which systemd wants to find.
    penstock = Path(sys.executable).parent / "penstock"
    unit.write_text(UNIT.read_text().replace("/opt/penstock/bin/penstock", str(penstock)))
    done = subprocess.run(
        [verify, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
