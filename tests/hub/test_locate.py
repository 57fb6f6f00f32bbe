"""Names become files: from aliases, paths, the hub, addresses; at first use and offline."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from penstock.config import HubSettings
from penstock.core import PenstockError
from penstock.hub import ALIASES, OnHub, is_here, locate, locate_tokenizer, pull
from penstock.hub.locate import cached_configuration, configuration
from penstock.hub.names import HubName, parse
from penstock.hub.shelf import remove
from tests.fakes.hub import FakeHub
from tests.hub.conftest import CONTENT

FILES = {"m-Q4_0.gguf": CONTENT, "m-Q8_0.gguf": b"8" * 3000, "mmproj-f16.gguf": b"p" * 3000}
CONFIG = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"w" * 5000}


def test_the_first_use_downloads_and_the_second_asks_nobody(
    hub: FakeHub, settings: HubSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add("org/m-GGUF", FILES)
    assert not is_here("org/m-GGUF:Q8_0")
    found = locate("org/m-GGUF:q8_0")
    assert found.path.read_bytes() == b"8" * 3000
    assert found.path.name == "m-Q8_0.gguf", "the name of a link, not of its blob"
    assert found.path.is_absolute()
    assert found.served_name == "org/m-GGUF:q8_0"
    said = capsys.readouterr().err
    assert f"org/m-GGUF:q8_0: downloading 0 MiB (1 file) to {settings.cache}" in said
    hub.asked.clear()
    assert locate("org/m-GGUF:q8_0") == found
    assert is_here("org/m-GGUF:Q8_0")
    assert not is_here("org/m-GGUF:Q4_0")
    assert not hub.asked
    assert capsys.readouterr().err == ""


def test_a_quantisation_that_came_later_is_found(hub: FakeHub, settings: HubSettings) -> None:
    hub.add("org/m-GGUF", {"m-Q8_0.gguf": FILES["m-Q8_0.gguf"]})
    locate("org/m-GGUF")
    hub.add("org/m-GGUF", FILES)
    assert locate("org/m-GGUF:Q4_0").path.read_bytes() == CONTENT


def test_pull_looks_for_what_has_changed(hub: FakeHub, settings: HubSettings) -> None:
    hub.add("org/m", CONFIG)
    old = locate("org/m").path
    hub.add("org/m", {**CONFIG, "config.json": b'{"a": 1}'})
    assert locate("org/m").path == old
    assert pull("org/m").startswith("org/m is at ")
    assert (locate("org/m").path / "config.json").read_bytes() == b'{"a": 1}'
    assert locate("org/m", old.name).path == old, "the old commit is still there"


def test_offline_what_is_here_is_used(
    hub: FakeHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/m-GGUF", FILES)
    found = locate("org/m-GGUF:Q4_0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.asked.clear()
    assert locate("org/m-GGUF:Q4_0") == found
    with pytest.raises(PenstockError) as refused:
        locate("org/m-GGUF:Q8_0")
    said = str(refused.value)
    assert f"org/m-GGUF:Q8_0: {settings.cache} lacks m-Q8_0.gguf (0 MiB)" in said
    assert "HF_HUB_OFFLINE forbids downloads: run `penstock pull org/m-GGUF:Q8_0` on a" in said
    with pytest.raises(PenstockError, match="unset it to pull"):
        pull("org/m-GGUF:Q8_0")
    with pytest.raises(PenstockError, match=r"is not at .*HF_HUB_OFFLINE forbids"):
        locate(f"{hub.url}/x/y/z/m.gguf")
    assert not hub.asked


@pytest.mark.parametrize("offline", [True, False])
def test_files_of_older_tools_are_used_where_no_hub_is(
    hub: FakeHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    """They keep no listings."""
    hub.add("org/m", {**CONFIG, "model.safetensors.index.json": b'{"weight_map": {"a": "b"}}'})
    path = locate("org/m").path
    shutil.rmtree(path.parents[1] / "trees")
    monkeypatch.setenv("HF_HUB_OFFLINE", str(int(offline)))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PenstockError, match=r"offline|OFFLINE|Connection refused"):
        locate("org/m")
    (path / "model.safetensors.index.json").unlink()
    assert locate("org/m").path == path


def test_an_alias_of_the_hub(
    hub: FakeHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    alias = OnHub(HubName("org/m-GGUF", "Q8_0"), 3000, "MIT", "A model.")
    monkeypatch.setitem(ALIASES, "tiny-hub", alias)
    hub.add("org/m-GGUF", FILES)
    assert pull("tiny-hub").startswith("tiny-hub is at ")
    assert locate("tiny-hub").served_name == "tiny-hub"
    assert locate("tiny-hub").path.name == "m-Q8_0.gguf"


def test_aliases_are_names_of_the_hub() -> None:
    assert len(ALIASES) >= 12
    for alias, known in ALIASES.items():
        assert alias == alias.lower()
        assert parse(alias) is None, "no alias hides a name"
        assert known.licence
        assert known.about.endswith(".")
        assert 10**7 < known.size < 2 * 10**10
        if isinstance(known, OnHub):
            assert parse(str(known.name)) == known.name


def test_paths_win_over_names_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "m").mkdir(parents=True)
    (tmp_path / "w-Q4_0.gguf").touch()
    assert locate("org/m").path == tmp_path / "org" / "m"
    assert locate("w-Q4_0.gguf").served_name == "w-Q4_0"
    assert locate(".").served_name == tmp_path.name
    assert locate(".").path == tmp_path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen3-4c", "no such file or directory, and no alias (`penstock models aliases`), org/"),
        ("QWEN3-4C", "; did you mean qwen3-4b?"),
        ("x" * 100_000, "no such file or directory"),
        ("a\x1b[2J", "a\\x1b[2J: no such"),
        ("", "the name of the model is empty"),
        ("http://h/x.bin", "http://h/x.bin: not the address of a GGUF file; a model is a *.gguf"),
        ("https:///x.gguf", "not the address of a GGUF file"),
        ("https://h:x/x.gguf", "not an address"),
        ("http://h/mmproj-x.gguf", "mmproj-x.gguf is not a model by its name (mmproj, imatrix)"),
        ("http://h/..%2fx.gguf%00.gguf", "not the address of a GGUF file"),
    ],
)
def test_names_that_are_none(name: str, said: str) -> None:
    for find in (locate, pull):
        with pytest.raises(PenstockError) as refused:
            find(name)
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 1000
        if find is locate:
            assert said in str(refused.value)


def test_a_tokenizer_comes_without_weights(hub: FakeHub, settings: HubSettings) -> None:
    hub.add("org/m", CONFIG)
    path = locate_tokenizer("org/m").path
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "tokenizer.json"]
    assert not is_here("org/m")
    assert (locate("org/m").path / "model.safetensors").is_file()


def test_a_configuration_comes_alone(
    hub: FakeHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/m", CONFIG)
    assert cached_configuration("org/m") is None
    path = configuration("org/m")
    assert path is not None
    assert [file.name for file in path.iterdir()] == ["config.json"]
    assert cached_configuration("org/m") == path
    shutil.rmtree(path.parents[1] / "trees")
    assert cached_configuration("org/m") == path, "as tools without listings leave it"
    assert configuration("smollm2") is None
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert configuration("org/other") is None


def test_aliases_are_found_in_any_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(alias == alias.lower() for alias in ALIASES)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    ALIASES["smollm2"].path.parent.mkdir()
    ALIASES["smollm2"].path.touch()
    monkeypatch.setattr(sys.modules["penstock.hub.locate"], "_fetch_packaged", lambda *_: False)
    for spelling in ("SmolLM2", "SMOLLM2", "smollm2"):
        found = locate(spelling)
        assert (found.path, found.served_name) == (ALIASES["smollm2"].path, "smollm2")
        assert pull(spelling).startswith("smollm2 is already at ")
    assert remove("SmolLM2")[1] == ALIASES["smollm2"].path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "SmolLM2").mkdir()
    assert locate("SmolLM2").path == tmp_path / "SmolLM2"
    with pytest.raises(PenstockError, match="did you mean smollm2"):
        locate("SmolLM")
