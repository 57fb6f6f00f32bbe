"""Servers with the default model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from tests.e2e.server import Server

Serve = Callable[..., Server]


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")


@pytest.fixture(scope="module")
def serve(model_file: Path) -> Iterator[Serve]:
    """`with serve(*flags, model=...)`: a server with the default model unless `model` names
    another.
    """
    servers: list[Server] = []

    def made(
        *flags: str,
        model: Path | str = model_file,
        prefix: Sequence[str] = (),
        module: str = "penstock",
    ) -> Server:
        # Short: the path of a socket has at most 107 bytes.
        runtime = Path(tempfile.mkdtemp(prefix="e2e-"))
        servers.append(Server(model, runtime, *flags, prefix=prefix, module=module))
        return servers[-1]

    yield made
    for server in servers:
        if server.process.poll() is None:
            server.destroy()
        shutil.rmtree(server.runtime)


@pytest.fixture(scope="module")
def server(serve: Serve) -> Iterator[Server]:
    """A server with no flags that the tests of a file share."""
    with serve("--served-model-name", "smollm2", "--served-model-name", "alias") as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made
