"""Downloads from a hub that breaks, lies and ends early."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import resource
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from penstock.config import HubSettings
from penstock.hub import here, http, names, repository, transfer
from penstock.hub.errors import HubError, UnreachableError
from penstock.hub.names import HubName
from penstock.hub.progress import Progress
from penstock.hub.repository import Fetched
from tests.e2e.server import eventually
from tests.fakes.hub import FakeHub
from tests.hub.conftest import CONTENT, PIECE

NAME = HubName("org/m-GGUF", "Q4_0")
FILE = "m-Q4_0.gguf"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def published(hub: FakeHub) -> None:
    hub.add(NAME.repository, {FILE: CONTENT, "README.md": b"#"})


def pull(settings: HubSettings, name: HubName = NAME) -> Fetched:
    return repository.fetch(name, None, settings, names.select, Progress("m", io.StringIO()))


def blobs(settings: HubSettings) -> list[str]:
    """Names of what is in blobs; empty before anything is."""
    folder = settings.cache / "models--org--m-GGUF" / "blobs"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def nothing_to_load(settings: HubSettings) -> bool:
    return here.cached(NAME, None, settings, names.select) is None


def test_a_large_file_comes_in_ranges_and_is_linked(hub: FakeHub, settings: HubSettings) -> None:
    found = pull(settings)
    assert found.path.read_bytes() == CONTENT
    assert os.readlink(found.path) == f"../../blobs/{SHA256}"
    assert blobs(settings) == [SHA256]
    ranges = [one.headers["Range"] for one in hub.asked if one.server == "cdn"]
    assert len(ranges) == 21
    assert f"bytes={PIECE}-{2 * PIECE - 1}" in ranges
    resolved = [one for one in hub.asked if "/resolve/" in one.path]
    assert len(resolved) == 1, "the redirect is remembered"


def test_a_second_pull_downloads_nothing(hub: FakeHub, settings: HubSettings) -> None:
    pull(settings)
    hub.asked.clear()
    pull(settings)
    assert [one.path for one in hub.asked] == ["/api/models/org/m-GGUF/revision/main"]


def test_connections_that_break_again_and_again(hub: FakeHub, settings: HubSettings) -> None:
    hub.fault("cdn:", cut=PIECE - 1, times=15)
    hub.fault("cdn:", cut=1, times=3)
    assert pull(settings).path.read_bytes() == CONTENT
    assert len(hub.files_asked()) > 1 + 21 + 3, "broken responses are continued, not repeated"


def test_a_connection_that_brings_nothing_ends(hub: FakeHub, settings: HubSettings) -> None:
    hub.fault("cdn:", cut=0, times=1000)
    with pytest.raises(UnreachableError) as refused:
        pull(settings)
    said = str(refused.value)
    assert said.startswith(f"org/m-GGUF: {FILE}: the connection was closed before the end")
    assert "(5 attempts); check the network" in said
    assert nothing_to_load(settings)


def test_what_has_arrived_is_continued(hub: FakeHub, settings: HubSettings) -> None:
    hub.fault("cdn:", times=3)
    hub.fault("cdn:", cut=0, times=1000)
    with pytest.raises(UnreachableError):
        pull(settings)
    assert blobs(settings) == [f"{SHA256}.incomplete"]
    part = settings.cache / "models--org--m-GGUF" / "blobs" / f"{SHA256}.incomplete"
    arrived = part.read_bytes()
    assert len(arrived) >= PIECE
    assert CONTENT.startswith(arrived), "the part is a prefix, as other tools expect"
    hub.faults.clear()
    hub.asked.clear()
    assert pull(settings).path.read_bytes() == CONTENT
    starts = [
        int(one.headers["Range"][6:].split("-")[0]) for one in hub.asked if "Range" in one.headers
    ]
    assert min(starts) == len(arrived)
    assert blobs(settings) == [SHA256]


@pytest.mark.parametrize("begun", [0, 5, 3 * PIECE + 1])
def test_a_server_without_ranges(hub: FakeHub, settings: HubSettings, begun: int) -> None:
    part = settings.cache / "models--org--m-GGUF" / "blobs" / f"{SHA256}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:begun])
    hub.fault("cdn:", ranges=False, cut=7 * PIECE, times=2)
    hub.fault("cdn:", ranges=False, times=1000)
    assert pull(settings).path.read_bytes() == CONTENT


def test_a_begun_file_of_other_content_is_replaced(hub: FakeHub, settings: HubSettings) -> None:
    part = settings.cache / "models--org--m-GGUF" / "blobs" / f"{SHA256}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"?" * 5 * PIECE)
    assert pull(settings).path.read_bytes() == CONTENT


@pytest.mark.parametrize("extra", [0, 1])
def test_a_begun_file_that_is_whole_or_too_long(
    hub: FakeHub, settings: HubSettings, extra: int
) -> None:
    part = settings.cache / "models--org--m-GGUF" / "blobs" / f"{SHA256}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT + b"x" * extra)
    assert pull(settings).path.read_bytes() == CONTENT
    assert bool(hub.files_asked()) == bool(extra)


def test_a_blob_of_the_wrong_size_is_replaced(hub: FakeHub, settings: HubSettings) -> None:
    path = pull(settings).path
    path.resolve().write_bytes(CONTENT[:-1])
    assert nothing_to_load(settings)
    assert pull(settings).path.read_bytes() == CONTENT


def test_a_wrong_hash_is_an_error_and_leaves_nothing(hub: FakeHub, settings: HubSettings) -> None:
    hub.fault("cdn:", change=lambda content: content[:-1] + b"?", times=1000)
    with pytest.raises(HubError) as refused:
        pull(settings)
    said = str(refused.value)
    assert said.startswith(f"org/m-GGUF: {FILE}: what arrived has another hash than the hub gives")
    assert SHA256 in said
    assert "it is removed. Try again" in said
    assert blobs(settings) == []
    assert nothing_to_load(settings)


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("length", [len(CONTENT) - 5, len(CONTENT) + 5, 0])
def test_a_wrong_size_is_an_error(
    hub: FakeHub, settings: HubSettings, length: int, ranges: bool
) -> None:
    hub.linked = False
    hub.fault("cdn:", length=length, ranges=ranges, times=1000)
    with pytest.raises(HubError) as refused:
        pull(settings)
    said = f"org/m-GGUF: {FILE}: the server has {length} bytes, the hub lists {len(CONTENT)}"
    assert said in str(refused.value)
    assert nothing_to_load(settings)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"X-Linked-Etag": f'"{"0" * 64}"'}, f"has the file {'0' * 64}, the hub lists {SHA256}"),
        ({"X-Linked-Size": "17"}, f"has 17 bytes, the hub lists {len(CONTENT)}"),
    ],
)
def test_a_file_that_has_changed_meanwhile(
    hub: FakeHub, settings: HubSettings, headers: dict[str, str], said: str
) -> None:
    hub.fault("hub:.*/resolve/", headers=headers)
    with pytest.raises(HubError) as refused:
        pull(settings)
    assert said in str(refused.value)
    assert "try again" in str(refused.value)


def test_an_end_before_the_listed_size(hub: FakeHub, settings: HubSettings) -> None:
    part = settings.cache / "models--org--m-GGUF" / "blobs" / f"{SHA256}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[: 4 * PIECE])
    hub.fault("cdn:", change=lambda content: content[:PIECE], times=1000)
    with pytest.raises(HubError, match=f"ends before byte {4 * PIECE}, the hub lists"):
        pull(settings)


def test_another_range_than_asked_for(hub: FakeHub, settings: HubSettings) -> None:
    wrong = {"Content-Range": f"bytes 7-8/{len(CONTENT)}"}
    hub.fault("cdn:", status=206, headers=wrong, body=b"xx", times=1000)
    with pytest.raises(HubError, match=r"sends another range than it was asked for \(bytes 7-8/"):
        pull(settings)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(hub: FakeHub, settings: HubSettings, status: int) -> None:
    for where in ("hub:/api/.*/revision", "hub:/api/.*/tree", "hub:.*/resolve/", "cdn:"):
        hub.fault(where, status=status, times=2)
    assert pull(settings).path.read_bytes() == CONTENT


def test_a_retry_after_is_kept(
    hub: FakeHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    told: list[str] = []

    class Waiting(http.Session):
        def __init__(self, own: HubSettings, _: object) -> None:
            super().__init__(own, told.append, lambda seconds: bool(paused.append(seconds)))

    monkeypatch.setattr(repository, "Session", Waiting)
    hub.fault("hub:/api/", status=429, headers={"Retry-After": "7"})
    hub.fault("cdn:", status=429, headers={"Retry-After": "9"})
    pull(settings)
    assert paused[:2] == [7.0, 9.0]
    assert told[0].endswith("too many requests (429); the next attempt is in 7 s")


def test_a_retry_after_of_hours_is_an_error(hub: FakeHub, settings: HubSettings) -> None:
    hub.fault("hub:/api/", status=429, headers={"Retry-After": "3600"}, times=9)
    with pytest.raises(UnreachableError) as refused:
        pull(settings)
    said = str(refused.value)
    assert "org/m-GGUF: http://127.0.0.1:" in said
    assert "too many requests (429): the server takes requests again in 3600 s" in said
    assert "set HF_TOKEN, which raises the limit" in said


def test_a_signed_address_that_has_expired_is_renewed(hub: FakeHub, settings: HubSettings) -> None:
    hub.fault("cdn:", times=4)
    hub.fault("cdn:", status=403)
    assert pull(settings).path.read_bytes() == CONTENT
    # Connections that hold requests meanwhile may each ask for the new address.
    assert 2 <= sum("/resolve/" in path for path in hub.files_asked()) <= 1 + transfer.CONNECTIONS


def test_a_full_disk_is_named_and_the_part_kept(
    hub: FakeHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a limit of file sizes, which fails as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6 * PIECE + 100, hard))
    try:
        with pytest.raises(HubError) as refused:
            pull(settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    said = str(refused.value)
    assert f"org/m-GGUF: {FILE}: {os.strerror(errno.EFBIG)} in {settings.cache}" in said
    assert "make room (`penstock models`) or set HF_HUB_CACHE" in said
    assert nothing_to_load(settings)
    assert pull(settings).path.read_bytes() == CONTENT


def test_too_little_room_is_noticed_before(
    hub: FakeHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "SPARE", 1 << 10)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(HubError, match=r"1 MiB are to come to .*, which has 1 MiB free: remove"):
        pull(settings)
    assert not hub.files_asked()


def test_a_cache_that_cannot_be_written(hub: FakeHub, settings: HubSettings) -> None:
    settings.cache.mkdir(parents=True)
    (settings.cache / "models--org--m-GGUF").write_text("a file in the way")
    with pytest.raises(HubError, match=r"the cache cannot be written: .*set HF_HUB_CACHE"):
        pull(settings)


def test_an_interruption_stops_all_requests(hub: FakeHub, settings: HubSettings) -> None:
    """Ctrl-C while every connection waits for bytes."""
    hub.gate = threading.Event()

    def interrupt() -> None:
        eventually(hub.files_asked, "a request for a file")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        pull(settings)
    assert not [one for one in threading.enumerate() if one.name.startswith("hub_")], before
    hub.gate.set()
    assert blobs(settings) in ([], [f"{SHA256}.incomplete"])
    assert pull(settings).path.read_bytes() == CONTENT


def test_small_files_come_beside_each_other(hub: FakeHub, settings: HubSettings) -> None:
    files = {f"f{i}.json": b"{}" + b" " * i for i in range(30)}
    files |= {"config.json": b"{}", "model.safetensors": b"w" * 5000, "empty.json": b""}
    hub.add("org/small", files)
    found = pull(settings, HubName("org/small"))
    assert {path.name: path.read_bytes() for path in found.directory.iterdir()} == files
    assert found.path == found.directory


def test_progress_has_rate_and_time_left(hub: FakeHub, settings: HubSettings) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    progress = Progress("a\x1b[2J", shown)
    progress.begin(10 << 20)
    progress.add(1 << 20)
    time.sleep(1.1)
    progress.add(1 << 20)
    progress.note("again")
    progress.end()
    text = shown.getvalue()
    assert "a\\x1b[2J: 2 of 10 MiB (20%), " in text
    assert "/s, " in text
    assert " left\r\x1b[Ka\\x1b[2J: again\n" in text


def test_progress_off_a_terminal_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    progress = Progress("m", shown)
    progress.begin(10 << 20)
    time.sleep(1.1)
    progress.add(1 << 20)
    assert shown.getvalue() == ""
    monkeypatch.setattr("penstock.hub.progress.INTERVAL", 0.0)
    time.sleep(1.1)
    progress.add(1 << 20)
    assert shown.getvalue().startswith("m: 2 of 10 MiB (20%), ")
    assert shown.getvalue().endswith(" left\n")


def test_the_cache_can_be_reached_through_a_link(
    hub: FakeHub, settings: HubSettings, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    settings.cache.symlink_to(tmp_path / "elsewhere")
    assert pull(settings).path.read_bytes() == CONTENT
