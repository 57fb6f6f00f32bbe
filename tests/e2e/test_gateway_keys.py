"""A gateway before replicas that want a key: it asks them with it, and lists what they serve."""

from __future__ import annotations

import subprocess
import sys

import httpx

from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway
from tests.limits import HANG

SMALL = ("--served-model-name", "smollm2", "--max-model-len", "512")


def models(client: httpx.Client) -> list[str]:
    return [one["id"] for one in client.get("/v1/models").json()["data"]]


def test_replicas_of_one_command_are_listed_behind_its_key(serve: Serve) -> None:
    with serve("--replicas", "2", "--api-key", "ours", *SMALL) as server:
        with server.client(authorization="Bearer ours") as client:
            assert models(client) == ["smollm2"]
        with server.client() as client:
            assert client.get("/v1/models").status_code == 401
        asked = ("--url", server.url, "--api-key", "ours", "--max-tokens", "4")
        chat = subprocess.run(
            [sys.executable, "-m", "penstock", "chat", *asked],
            input="One word.\n",
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )
        assert chat.returncode == 0, chat.stderr
        assert len(server.lines(" 401 ")) == 1


def test_a_backend_key_opens_models_and_load(serve: Serve) -> None:
    with serve("--api-key", "theirs", *SMALL) as server:
        flags = ("--backend", f"{server.url}/v1", "--backend-api-key", "theirs")
        with Gateway(*flags, "--root-path", "/llm") as gateway, gateway.client() as client:
            assert models(client) == ["smollm2"]
            assert client.get("/llm/v1/models/smollm2").status_code == 200
            body = {"model": "smollm2", "prompt": "One", "max_tokens": 2}
            assert client.post("/llm/v1/completions", json=body).status_code == 200
        assert not [line for line in server.log if "refused" in line]
