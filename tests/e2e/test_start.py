"""Starts that cannot succeed: what is wrong is said in a line, and nothing is left behind."""

from __future__ import annotations

import json
import shutil
import signal
import struct
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Serve
from tests.e2e.server import Server, eventually

MIB = 1 << 20


def refused(server: Server) -> str:
    """The complaint of a server that does not start."""
    status = server.wait()
    assert status in (1, 2), server.text()
    assert "Traceback" not in server.text()
    assert not list(server.runtime.iterdir())
    complaints = [line for line in server.log if "error: " in line]
    assert complaints, server.text()
    return complaints[-1]


def test_a_model_that_is_not_there(serve: Serve, tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    assert str(missing) in refused(serve(model=missing))


def test_a_directory_without_a_model(serve: Serve, tmp_path: Path) -> None:
    assert "config.json" in refused(serve(model=tmp_path))


def test_a_template_that_prints_no_message_of_a_user(serve: Serve, tmp_path: Path) -> None:
    template = tmp_path / "broken.jinja"
    template.write_text("{{ messages[0].nothing.more }}")
    complaint = refused(serve("--chat-template", str(template)))
    assert "message of a user" in complaint
    assert "--chat-template" in complaint
    assert "'nothing'" in complaint


@pytest.mark.parametrize(
    "flags", [[], ["--no-engine-process"]], ids=["two processes", "one process"]
)
def test_a_truncated_file_names_the_tensor(
    serve: Serve, model_file: Path, tmp_path: Path, flags: list[str]
) -> None:
    cut = tmp_path / "cut.gguf"
    with model_file.open("rb") as whole:
        cut.write_bytes(whole.read(40 * MIB))
    complaint = refused(serve(*flags, model=cut))
    assert "cut.gguf" in complaint
    assert "blk." in complaint or "output" in complaint


def test_a_file_cut_in_its_header_names_the_offset(
    serve: Serve, model_file: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    with model_file.open("rb") as whole:
        cut.write_bytes(whole.read(MIB // 2))
    complaint = refused(serve(model=cut))
    assert "cut.gguf" in complaint
    assert any(character.isdigit() for character in complaint.split("cut.gguf", 1)[1])


@pytest.mark.parametrize(
    "content",
    [b"", b"GGUF", b"not a model at all" * 1000, b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60)],
    ids=["empty", "magic only", "text", "absurd counts"],
)
def test_a_file_that_is_no_model(serve: Serve, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "strange.gguf"
    file.write_bytes(content)
    assert "strange.gguf" in refused(serve(model=file))


@pytest.mark.parametrize("index", [False, True], ids=["one file", "a shard"])
def test_weights_that_are_a_cycle_of_links(
    serve: Serve, repository: Path, tmp_path: Path, index: bool
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(repository / "tests/fixtures/tiny/llama", directory)
    weights = directory / "model.safetensors"
    weights.unlink()
    if index:
        shard = "model-00001-of-00001.safetensors"
        listed = json.dumps({"weight_map": {"model.embed_tokens.weight": shard}})
        (directory / "model.safetensors.index.json").write_text(listed)
        weights = directory / shard
    weights.symlink_to(weights.name)
    assert "safetensors" in refused(serve(model=directory))


def test_a_port_that_is_taken(serve: Serve, server: Server) -> None:
    port = server.url.rsplit(":", 1)[1]
    complaint = refused(serve("--port", port))
    assert f"127.0.0.1:{port}" in complaint
    assert "--port" in complaint


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--block-size", "7"], ["--block-size", "7"]),
        (["--max-model-len", "100000"], ["--max-model-len", "8192"]),
        (
            ["--kv-cache-memory-bytes", "1MiB", "--max-model-len", "640"],
            ["--kv-cache-memory-bytes", "640"],
        ),
        (
            ["--max-num-batched-tokens", "8", "--max-num-seqs", "16"],
            ["--max-num-batched-tokens", "16"],
        ),
        (["--chat-template", "nowhere.jinja"], ["--chat-template", "nowhere.jinja"]),
    ],
)
def test_a_flag_that_does_not_fit_is_named(
    serve: Serve, flags: list[str], words: list[str]
) -> None:
    complaint = refused(serve(*flags))
    assert not [word for word in words if word not in complaint]


@pytest.mark.parametrize(
    "flags", [[], ["--no-engine-process"]], ids=["two processes", "one process"]
)
def test_a_stop_while_starting_is_a_clean_end(serve: Serve, flags: list[str]) -> None:
    """SIGTERM 0 to 200 ms after the first line: while weights are read, packed and warmed up."""
    for delay in (0.0, 0.05, 0.2):
        server = serve(*flags)
        eventually(lambda server=server: server.log, "the first line of the log")
        time.sleep(delay)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.text()
        assert not list(server.runtime.iterdir())
        assert "Traceback" not in server.text()
