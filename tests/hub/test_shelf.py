"""What is on this machine, and its removal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.config import HubSettings
from penstock.core import PenstockError
from penstock.hub import ALIASES, OnHub, Packaged, locate
from penstock.hub.cache import locked
from penstock.hub.names import HubName
from penstock.hub.shelf import Stored, remove, stored
from penstock.hub.urls import of_url
from tests.fakes.hub import FakeHub

Q4, Q8 = b"4" * 4000, b"8" * 8000
FILES = {
    "m-Q4_0.gguf": Q4,
    "m-Q8_0-00001-of-00002.gguf": Q8,
    "m-Q8_0-00002-of-00002.gguf": Q8 + b"2",
    "README.md": b"#",
}
CONFIG = {
    "config.json": b'{"torch_dtype": "bfloat16"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"w" * 5000,
}


@pytest.fixture
def shelf(hub: FakeHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two quantisations of one repository, and a directory of another."""
    hub.add("org/m-GGUF", FILES)
    hub.add("org/dir", CONFIG)
    for name in ("org/m-GGUF:Q4_0", "org/m-GGUF:Q8_0", "org/dir"):
        locate(name)
    return settings.cache


def row(name: str) -> Stored:
    (found,) = (one for one in stored() if one.name == name)
    return found


def test_an_empty_machine() -> None:
    assert stored() == []


def test_models_of_the_caches(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alias = OnHub(HubName("org/m-GGUF", "Q4_0"), 1, "MIT", "A model.")
    monkeypatch.setitem(ALIASES, "tiny-hub", alias)
    packaged = ALIASES["smollm2"]
    assert isinstance(packaged, Packaged)
    packaged.path.parent.mkdir(parents=True)
    packaged.path.write_bytes(b"x" * 10)
    url = of_url("https://h.example/x-Q5_K_M.gguf?secret=1")
    url.directory.mkdir(parents=True)
    url.part.write_bytes(b"GGUF")
    (url.directory / "origin.json").write_text('{"url": "https://h.example/x-Q5_K_M.gguf"}')
    found = {(one.name, one.quantisation, one.size, one.alias) for one in stored()}
    assert found == {
        ("org/m-GGUF:Q4_0", "Q4_0", 4000, "tiny-hub"),
        ("org/m-GGUF:Q8_0", "Q8_0", 16001, ""),
        ("org/dir", "bfloat16", 5029, ""),
        ("smollm2", "Q4_1", 10, "smollm2"),
        ("https://h.example/x-Q5_K_M.gguf", "Q5_K_M", 4, ""),
    }
    assert row("https://h.example/x-Q5_K_M.gguf").state.startswith("begun")
    assert row("org/dir").path == locate("org/dir").path


def test_what_is_begun_or_lacks_parts(shelf: Path) -> None:
    path = locate("org/m-GGUF:Q8_0").path
    path.with_name("m-Q8_0-00002-of-00002.gguf").unlink()
    (shelf / "models--org--dir" / "blobs" / "x.incomplete").write_bytes(b"12345")
    assert row("org/m-GGUF:Q8_0").state == "lacks 1 of 2 parts"
    assert [one.size for one in stored() if one.state.startswith("begun")] == [5]


def test_foreign_and_damaged_directories_are_passed_over(shelf: Path) -> None:
    (shelf / "datasets--a--b").mkdir()
    (shelf / "models--x").mkdir()
    (shelf / "models--a--b").write_text("no directory")
    (shelf / "models--c--d" / "snapshots" / "no-commit").mkdir(parents=True)
    (locate("org/dir").path / "config.json").resolve().write_bytes(b"[" * 10)
    assert len(stored()) == 3


def test_one_quantisation_is_removed(shelf: Path) -> None:
    freed, where = remove("org/m-GGUF:q8_0")
    assert freed == 16001
    assert where == shelf / "models--org--m-GGUF"
    assert [one.name for one in stored()] == ["org/dir", "org/m-GGUF:Q4_0"]
    assert len(list((where / "blobs").iterdir())) == 1
    freed, _ = remove("org/m-GGUF:m-Q4_0.gguf")
    assert freed == 4000
    assert not where.exists(), "nothing is left of it"
    assert not (shelf / ".locks" / "models--org--m-GGUF").exists()


def test_a_repository_is_removed(shelf: Path) -> None:
    assert remove("org/dir")[0] >= 5029
    assert not (shelf / "models--org--dir").exists()
    assert {one.name for one in stored()} == {"org/m-GGUF:Q4_0", "org/m-GGUF:Q8_0"}


def test_a_blob_that_another_revision_uses_stays(
    shelf: Path, hub: FakeHub, settings: HubSettings
) -> None:
    hub.add("org/m-GGUF", {"other-name.gguf": Q4, "m-Q4_0.gguf": b"new" * 999}, "dev")
    locate("org/m-GGUF:other-name.gguf", "dev")
    freed, _ = remove("org/m-GGUF:Q4_0")
    assert freed == 0
    assert locate("org/m-GGUF:other-name.gguf", "dev").path.read_bytes() == Q4
    assert any(one.state.startswith("revision ") for one in stored())


def test_the_store_of_shared_blobs_stays(shelf: Path, tmp_path: Path) -> None:
    """Newer tools of the hub keep blobs in a store, and link to them from several repositories."""
    blob = locate("org/m-GGUF:Q4_0").path.resolve()
    kept = tmp_path / "store"
    blob.rename(kept)
    blob.symlink_to(kept)
    assert row("org/m-GGUF:Q4_0").size == 4000
    freed, _ = remove("org/m-GGUF:Q4_0")
    assert freed == 0
    assert kept.read_bytes() == Q4
    assert not blob.is_symlink()


def test_links_that_lead_out_of_the_cache_are_removed_alone(shelf: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.gguf"
    own.write_bytes(b"GGUF")
    link = locate("org/m-GGUF:Q4_0").path
    link.unlink()
    link.symlink_to(own)
    remove("org/m-GGUF:Q4_0")
    assert own.exists()
    assert not link.is_symlink()
    (shelf / "models--a--b").symlink_to(tmp_path)
    with pytest.raises(PenstockError, match="is a link; remove what it links to yourself"):
        remove("a/b")
    assert own.exists()


def test_what_is_being_downloaded_is_not_removed(shelf: Path) -> None:
    blob = Path(os.readlink(locate("org/m-GGUF:Q4_0").path)).name
    lock = shelf / ".locks" / "models--org--m-GGUF" / f"{blob}.lock"
    with locked(lock, lambda: None, lambda: False):
        for name in ("org/m-GGUF", "org/m-GGUF:Q4_0"):
            with pytest.raises(PenstockError, match="a process downloads to"):
                remove(name)
    remove("org/m-GGUF:Q4_0")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/m-GGUF:Q5_0", "has no such file (see `penstock models`)"),
        ("org/m-GGUX", "is not in the caches (`penstock models` lists what is); did you mean"),
        ("smollm2", "smollm2 is not at "),
        ("../..", "expected a model of the caches; a path is removed by `rm`"),
        ("a\x1b[2J", "a\\x1b[2J is not in the caches"),
        ("https://h/x.gguf", "x.gguf is not at "),
        ("", "is not in the caches"),
    ],
)
def test_names_that_are_not_there(shelf: Path, name: str, said: str) -> None:
    with pytest.raises(PenstockError) as refused:
        remove(name)
    assert said in str(refused.value)
    assert len(stored()) == 3
