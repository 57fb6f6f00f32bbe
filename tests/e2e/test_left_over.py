"""What processes that were killed leave behind goes with the next start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import Serve
from tests.e2e.server import Server, eventually
from tests.e2e.test_tiny import write_tokenizer
from tests.processes import is_alive

FLAGS = ("--kv-cache-memory-bytes", "16MiB")


@pytest.fixture
def checkpoint(repository: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "llama"
    shutil.copytree(repository / "tests/fixtures/tiny/llama", directory)
    write_tokenizer(directory)
    return directory


@pytest.mark.parametrize("killed", [("--replicas", "2"), ("--no-engine-process",), ()], ids="".join)
@pytest.mark.parametrize("after", [("--replicas", "2"), ()], ids="".join)
def test_directories_of_a_killed_server_are_removed(
    serve: Serve, checkpoint: Path, killed: tuple[str, ...], after: tuple[str, ...]
) -> None:
    server = serve(*FLAGS, *killed, model=checkpoint)
    server.wait_ready()
    children = server.children()
    server.destroy()
    eventually(lambda: not any(map(is_alive, children)), "the end of its children")
    (left,) = server.runtime.iterdir()
    assert left.name.startswith(f"penstock-{server.pid}-")
    with Server(checkpoint, server.runtime, *FLAGS, *after):
        assert left not in list(server.runtime.iterdir())
    assert not list(server.runtime.iterdir())
