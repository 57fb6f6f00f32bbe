"""GGUF files at addresses of any server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.config import HubSettings
from penstock.core import PenstockError
from penstock.hub import locate, pull
from penstock.hub.urls import of_url
from tests.fakes.hub import FakeHub, blob_sha1
from tests.hub.conftest import CONTENT, PIECE

GGUF = b"GGUF" + CONTENT


@pytest.fixture
def url(hub: FakeHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a file on a server that is no hub."""
    commit = hub.add("any/where", {"d/m-Q4_0.gguf": GGUF})
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("tests.fakes.hub.LFS", 1 << 40)
    return f"{hub.url}/any/where/resolve/{commit}/d/m-Q4_0.gguf?signature=secret"


def stored(url: str) -> list[str]:
    directory = of_url(url).directory
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def test_a_file_is_downloaded_once(hub: FakeHub, url: str, tmp_path: Path) -> None:
    found = locate(url)
    assert found.path.read_bytes() == GGUF
    assert found.path.is_relative_to(tmp_path / "penstock" / "urls")
    assert found.served_name == "m-Q4_0"
    hub.asked.clear()
    assert locate(url) == found
    assert pull(url) == f"{url.partition('?')[0]} is at {found.path}"
    assert not hub.asked
    assert stored(url) == [".lock", "m-Q4_0.gguf", "origin.json"]
    assert "secret" not in (found.path.parent / "origin.json").read_text()


def test_connections_that_break(hub: FakeHub, url: str) -> None:
    hub.fault("hub:", cut=5 * PIECE, times=4)
    hub.fault("hub:", status=503, times=2)
    assert locate(url).path.read_bytes() == GGUF
    ranges = [one.headers.get("Range") for one in hub.asked]
    assert ranges[0] is None
    assert ranges[1] == f"bytes={5 * PIECE}-"
    assert hub.asked[1].headers["If-Range"] == f'"{blob_sha1(GGUF)}"'


def test_a_connection_that_brings_nothing_ends(hub: FakeHub, url: str) -> None:
    hub.fault("hub:", cut=0, times=99)
    with pytest.raises(PenstockError, match=r"closed before the end \(5 attempts\)") as refused:
        locate(url)
    assert "secret" not in str(refused.value)
    assert "m-Q4_0.gguf" not in stored(url)


def test_a_server_without_ranges_begins_anew(hub: FakeHub, url: str) -> None:
    hub.fault("hub:", cut=5 * PIECE)
    hub.fault("hub:", ranges=False)
    assert locate(url).path.read_bytes() == GGUF


def test_what_is_no_gguf_file_is_not_kept(hub: FakeHub, url: str) -> None:
    hub.fault("hub:", status=200, body=b"<html>please log in</html>")
    with pytest.raises(PenstockError, match="not a GGUF file: it begins with `<html>please"):
        locate(url)
    assert "m-Q4_0.gguf" not in stored(url)


def test_refusals_are_named(hub: FakeHub, url: str) -> None:
    hub.fault("hub:", status=404)
    with pytest.raises(PenstockError, match=r"d/m-Q4_0\.gguf: not found \(404\): check the name"):
        locate(url)


def test_another_range_than_asked_for(hub: FakeHub, url: str) -> None:
    hub.fault("hub:", cut=5 * PIECE)
    hub.fault("hub:", status=206, headers={"Content-Range": "bytes 0-1/9"}, body=b"xx")
    with pytest.raises(PenstockError, match="another range than asked for"):
        locate(url)
    assert "m-Q4_0.gguf" not in stored(url)


def test_a_directory_that_cannot_be_written(url: str, tmp_path: Path) -> None:
    (tmp_path / "penstock").write_text("a file in the way")
    with pytest.raises(PenstockError, match="cannot be written"):
        locate(url)


def test_names_stay_in_their_directory() -> None:
    file = of_url("https://h/a/%2e%2e%2f%2e%2e%2fx.gguf")
    assert file.name == "x.gguf"
    assert os.path.normpath(file.path) == str(file.path)
