"""Tiers from a configuration file, and by the names of LMCache's environment, as servers start with
them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import test_kv_tiers as kv
from tests.e2e.conftest import Serve
from tests.e2e.server import eventually
from tests.e2e.test_kv_tiers import FAMILY, complete, hit_tokens, prompt

model = kv.model

WORDS = ["--block-size", "16", "--dtype", "float32", "--served-model-name", FAMILY]


@pytest.fixture
def lmcache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """LMCache's settings for RAM and a disk; the directory."""
    directory = tmp_path / "lmcache"
    settings = {
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.01",
        "LMCACHE_LOCAL_DISK": f"file://{directory}",
        "LMCACHE_MAX_LOCAL_DISK_SIZE": "0.25",
        "LMCACHE_CHUNK_SIZE": "32",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return directory


def test_a_file_says_it_all(serve: Serve, model: Path, tmp_path: Path) -> None:
    directory, file = tmp_path / "kv, of all", tmp_path / "penstock.yaml"
    file.write_text(
        f"""\
model: {model}
block-size: 16
dtype: float32
served-model-name: {FAMILY}
kv-chunk-tokens: 32
kv-tier:
  - ram: 1MiB
    quota: 0.5
  - disk: {directory}
    size: 64MiB
    quota: 0.5
"""
    )
    with serve(model=f"--config={file}") as server:
        complete(server.url, prompt(100))
        assert set(hit_tokens(complete(server.url, prompt(100)))) == {"pool", "ram", "disk"}
        eventually(lambda: any(directory.rglob("*.h*")), "chunks on disk")


def test_a_wrong_option_in_a_file_is_refused_at_its_line(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("kv-tier:\n  - disk: /var/kv\n    sise: 1GiB\n")
    server = serve("--config", str(file))
    assert server.wait() == 2
    assert f"{file}:3: kv-tier disk: unknown option 'sise'" in server.text()


def test_lmcaches_environment_is_understood_and_told(
    serve: Serve, model: Path, lmcache: Path
) -> None:
    with serve(*WORDS, model=model) as server:
        complete(server.url, prompt(100))
        said = hit_tokens(complete(server.url, prompt(100)))
        assert set(said) == {"pool", "ram", "disk"}
        eventually(lambda: any(lmcache.rglob("*.h*")), "chunks on disk")
        blocks = {path.name.split(".")[0].rsplit("-")[-1] for path in lmcache.rglob("*.h*")}
        notice = server.lines("LMCACHE_LOCAL_DISK")
        assert len(notice) == 1, server.text()
        assert f"--kv-tier ram:{int(0.01 * 2**30)}" in notice[0]
        assert f"--kv-tier disk:{lmcache},{2**28}" in notice[0]
        assert "LMCACHE_CHUNK_SIZE" in notice[0]
    assert blocks == {"2"}, "blocks of a chunk of 32 tokens"


def test_flags_come_before_lmcaches_environment(serve: Serve, model: Path, lmcache: Path) -> None:
    with serve(*WORDS, "--kv-tier", "ram:1MiB", model=model) as server:
        assert set(hit_tokens(complete(server.url, prompt(100)))) == {"pool", "ram"}
        assert "understood as" not in server.text()
    assert not lmcache.exists()


def test_what_lmcache_would_refuse_is_refused(
    serve: Serve, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "plenty")
    server = serve(*WORDS, model=model)
    assert server.wait() == 2
    assert "LMCACHE_MAX_LOCAL_CPU_SIZE is 'plenty'" in server.text()
