"""The cache between processes, and between this program and the hub's own package."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import threading
import venv
from pathlib import Path

import pytest

from penstock.config import HubSettings
from penstock.hub import here, names, repository
from penstock.hub.cache import CachedRepository, is_locked, locked, replace_text
from penstock.hub.errors import HubError
from penstock.hub.listing import RemoteFile
from penstock.hub.names import HubName
from penstock.hub.progress import Progress
from penstock.hub.repository import Fetched
from tests.e2e.server import eventually
from tests.fakes.hub import FakeHub
from tests.hub.conftest import CONTENT
from tests.limits import HANG

NAME = HubName("org/m-GGUF")
FILES = {"m-Q4_0.gguf": CONTENT, "config.json": b"{}", "README.md": b"#", "empty.json": b""}


def pull(settings: HubSettings, name: HubName = NAME) -> Fetched:
    return repository.fetch(name, None, settings, names.select, Progress("m", io.StringIO()))


def present(settings: HubSettings, name: HubName = NAME) -> Fetched | None:
    return here.cached(name, None, settings, names.select)


PULL = "import sys; from penstock.hub import pull; print(pull(sys.argv[1]))"


def test_two_processes_pull_one_model(hub: FakeHub, settings: HubSettings, tmp_path: Path) -> None:
    hub.add(NAME.repository, FILES)
    hub.gate = threading.Event()
    command = [sys.executable, "-c", PULL, "org/m-GGUF:Q4_0"]
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    with logs[0].open("w") as one, logs[1].open("w") as other:
        both = [subprocess.Popen(command, stderr=log) for log in (one, other)]

    def waiting() -> int:
        return sum("another process downloads" in log.read_text() for log in logs)

    eventually(waiting, "one that waits")
    hub.gate.set()
    assert [process.wait(HANG) for process in both] == [0, 0]
    assert waiting() == 1
    found = present(settings)
    assert found is not None
    assert found.path.read_bytes() == CONTENT
    assert sum("/resolve/" in path for path in hub.files_asked()) == 1


def test_a_killed_process_leaves_a_part_that_another_continues(
    hub: FakeHub, settings: HubSettings
) -> None:
    hub.add(NAME.repository, FILES)
    hub.gate = threading.Event()
    command = [sys.executable, "-c", PULL, "org/m-GGUF:Q4_0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    eventually(lambda: any(one.server == "cdn" for one in hub.asked), "a download")
    process.kill()
    process.communicate(timeout=HANG)
    hub.gate.set()
    assert present(settings) is None
    assert pull(settings).path.read_bytes() == CONTENT


def test_a_lock_that_is_held_is_waited_for(tmp_path: Path) -> None:
    path, told = tmp_path / "x" / "a.lock", []
    with locked(path, lambda: told.append("a"), lambda: False):
        assert is_locked(path)
        with (
            pytest.raises(HubError, match="stopped"),
            locked(path, lambda: told.append("b"), lambda: True),
        ):
            pass
    assert told == ["b"]
    assert not is_locked(path)


def test_a_lock_whose_file_is_removed_is_taken_again(tmp_path: Path) -> None:
    """Newer versions of filelock remove the file."""
    path = tmp_path / "a.lock"
    own = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(own, fcntl.LOCK_EX)
    waits = threading.Event()

    def wait() -> None:
        with locked(path, waits.set, lambda: False):
            assert path.exists()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert waits.wait(HANG)
    path.unlink()
    os.close(own)
    waiting.join(HANG)
    assert not waiting.is_alive()
    assert not is_locked(path)


def test_readers_see_the_old_or_the_new_text(tmp_path: Path) -> None:
    path = tmp_path / "refs" / "main"
    replace_text(path, "old")
    replace_text(path, "new")
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"format_version": 2}', b"[" * 9999])
def test_a_damaged_listing_is_none(settings: HubSettings, content: bytes) -> None:
    cached = CachedRepository(settings.cache, "org/m")
    (cached.folder / "trees").mkdir(parents=True)
    (cached.folder / "trees" / f"{'a' * 40}.json").write_bytes(content)
    assert cached.listing("a" * 40) is None


@pytest.mark.parametrize("text", ["", "main", "../../x", "a" * 39, "A" * 40, "\x00"])
def test_a_damaged_reference_is_none(settings: HubSettings, text: str) -> None:
    cached = CachedRepository(settings.cache, "org/m")
    replace_text(cached.folder / "refs" / "main", text)
    assert cached.commit(None) is None


def test_a_file_that_a_tool_has_copied_counts(settings: HubSettings) -> None:
    """Without symbolic links the hub's tools put files into snapshots."""
    cached = CachedRepository(settings.cache, "org/m")
    commit, file = "a" * 40, RemoteFile("d/config.json", 2, "b" * 40)
    (cached.snapshot(commit) / "d").mkdir(parents=True)
    (cached.snapshot(commit) / "d" / "config.json").write_text("{}")
    assert cached.has(commit, file)
    assert not cached.has(commit, RemoteFile("d/config.json", 3, "b" * 40))
    assert cached.present(commit) == {"d/config.json": RemoteFile("d/config.json", 2, "")}


@pytest.fixture(scope="session")
def hub_package(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A Python that has huggingface_hub, in an environment of its own."""
    environment = tmp_path_factory.mktemp("hub") / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    pins = str(repository / "constraints.txt")
    words = ["-m", "pip", "--disable-pip-version-check", "-q", "install", "-c", pins]
    done = subprocess.run(
        [python, *words, "huggingface_hub"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"huggingface_hub cannot be installed: {done.stderr.strip()[-200:]}")
    return python


def run(python: Path, hub: FakeHub, program: str) -> str:
    environ = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, env=environ, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_the_hub_s_package_reads_what_is_pulled(
    hub: FakeHub, settings: HubSettings, hub_package: Path
) -> None:
    commit = hub.add("org/m", {**FILES, "model.safetensors": b"w" * 5000, "x/y.json": b"[]"})
    found = pull(settings, HubName("org/m"))
    hub.asked.clear()
    program = (
        "from huggingface_hub import snapshot_download, scan_cache_dir, hf_hub_download\n"
        "print(snapshot_download('org/m', allow_patterns=['*.json', '*.safetensors']))\n"
        "print(hf_hub_download('org/m', 'x/y.json', local_files_only=True))\n"
        "cache = scan_cache_dir()\n"
        "print(cache.warnings, [repo.repo_id for repo in cache.repos])\n"
    )
    lines = run(hub_package, hub, program).splitlines()
    assert lines[0] == str(found.directory)
    assert lines[1] == str(found.directory / "x/y.json")
    assert lines[2] == "[] ['org/m']"
    assert not hub.files_asked(), "nothing is downloaded again"
    assert found.directory.name == commit


@pytest.mark.slow
def test_what_the_hub_s_package_downloads_is_read(
    hub: FakeHub, settings: HubSettings, hub_package: Path
) -> None:
    hub.add("org/m", {**FILES, "model.safetensors": b"w" * 5000, "x/y.json": b"[]"})
    hub.add(NAME.repository, FILES)
    program = (
        "from huggingface_hub import snapshot_download, hf_hub_download\n"
        "print(snapshot_download('org/m', allow_patterns=['*.json', '*.safetensors']))\n"
        "print(hf_hub_download('org/m-GGUF', 'm-Q4_0.gguf'))\n"
    )
    directory, file = run(hub_package, hub, program).splitlines()
    hub.asked.clear()
    found = present(settings, HubName("org/m"))
    assert found is not None
    assert str(found.path) == directory
    assert present(settings) is None, "no listing came with one file"
    guessed = here.guessed(NAME, None, settings, names.select)
    assert guessed is not None
    assert str(guessed.path) == file
    assert not hub.asked
    assert str(pull(settings).path) == file
    assert not hub.files_asked()
    assert present(settings) is not None


@pytest.mark.slow
def test_the_hub_s_package_waits_for_the_lock(
    hub: FakeHub, settings: HubSettings, hub_package: Path
) -> None:
    commit = hub.add(NAME.repository, FILES)
    cached = CachedRepository(settings.cache, NAME.repository)
    large = pull_listing(hub, settings, commit)
    program = (
        "from huggingface_hub import hf_hub_download; hf_hub_download('org/m-GGUF', 'm-Q4_0.gguf')"
    )
    environ = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
    with locked(cached.lock(large), lambda: None, lambda: False):
        process = subprocess.Popen([hub_package, "-c", program], env=environ)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(8)
        assert not any(one.server == "cdn" for one in hub.asked)
    assert process.wait(HANG) == 0


def pull_listing(hub: FakeHub, settings: HubSettings, commit: str) -> RemoteFile:
    """The large file, as the hub lists it, without a download of it."""
    found = repository.fetch(
        NAME, None, settings, names.select_config, Progress("m", io.StringIO())
    )
    assert found.directory.name == commit
    listing = CachedRepository(settings.cache, NAME.repository).listing(commit)
    assert listing is not None
    return listing["m-Q4_0.gguf"]
