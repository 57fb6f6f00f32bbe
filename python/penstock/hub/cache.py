"""The hub's cache on this machine, in the layout of the hub's own tools, which read and write it
too:

models--ORG--NAME/blobs/ETAG                 contents, by SHA-256 or git's SHA-1
                 /blobs/ETAG.incomplete      the beginning of one
                 /snapshots/COMMIT/FILE      relative links to blobs
                 /refs/BRANCH                commit of a branch or tag
                 /trees/COMMIT.json          names, sizes and hashes of all files of a commit
.locks/models--ORG--NAME/ETAG.lock           held while a blob is downloaded
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.core import PenstockError
from penstock.hub.errors import HubError
from penstock.hub.listing import (
    SHA1,
    Listing,
    RemoteFile,
    from_json,
    is_safe,
    to_json,
)

MAIN = "main"
REVISION = re.compile(r"[\w-][\w.+-]*(?:/[\w-][\w.+-]*)*")
PREFIX = "models--"
INCOMPLETE = ".incomplete"
LARGEST_TREE = 256 << 20
NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK}
"""Errors of file systems without locks."""
POLL = 0.2
"""Seconds between two attempts to get a lock that another process holds."""


class CachedRepository:
    """One repository, `org/name`, in the cache directory `root`."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        folder = PREFIX + name.replace("/", "--")
        self.folder = root / folder
        self.blobs = self.folder / "blobs"
        self.locks = root / ".locks" / folder

    def commit(self, revision: str | None) -> str | None:
        """The most recently downloaded commit of a branch or tag, or the commit with this hash;
        None if none was downloaded.
        """
        name = checked_revision(revision)
        if SHA1.fullmatch(name):
            return name
        try:
            commit = (self.folder / "refs" / name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return commit if SHA1.fullmatch(commit) else None

    def snapshot(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def blob(self, file: RemoteFile) -> Path:
        return self.blobs / file.etag

    def part(self, file: RemoteFile) -> Path:
        return self.blobs / f"{file.etag}{INCOMPLETE}"

    def has(self, commit: str, file: RemoteFile) -> bool:
        """Whether a file of this commit is in the cache and complete."""
        return is_whole(self.snapshot(commit) / file.name, file.size)

    def listing(self, commit: str) -> dict[str, RemoteFile] | None:
        """All files of a commit according to the hub's listing; None if the cache has no such
        listing.
        """
        path = self.folder / "trees" / f"{commit}.json"
        try:
            if path.stat().st_size > LARGEST_TREE:
                return None
            return from_json(self.name, json.loads(path.read_bytes()))
        except (OSError, ValueError, RecursionError):
            return None

    def present(self, commit: str) -> dict[str, RemoteFile]:
        """The files of a commit that are in the cache. Hashes are unknown for files that a tool has
        copied into the snapshot.
        """
        top, found = self.snapshot(commit), {}
        for directory, _, names in os.walk(top):
            for each in names:
                path = Path(directory) / each
                name = path.relative_to(top).as_posix()
                with contextlib.suppress(OSError):
                    size = path.stat().st_size
                    if is_safe(name):
                        found[name] = RemoteFile(name, size, _link_name(path))
        return found

    def add_listing(self, commit: str, listing: Listing) -> None:
        replace_text(self.folder / "trees" / f"{commit}.json", json.dumps(to_json(listing)))

    def link(self, commit: str, file: RemoteFile) -> None:
        """Link a cached blob into the snapshot as a file of this commit."""
        path = self.snapshot(commit) / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(self.blob(file), path.parent)
        if path.is_symlink() and os.readlink(path) == target:
            return
        made = path.with_name(f".{os.getpid()}-{time.monotonic_ns()}.link")
        made.symlink_to(target)
        made.replace(path)

    def refer(self, revision: str | None, commit: str) -> None:
        """Record that a branch or tag refers to this commit, whose snapshot is in the cache."""
        name = checked_revision(revision)
        if name == commit or self.commit(name) == commit:
            return
        self.snapshot(commit).mkdir(parents=True, exist_ok=True)
        replace_text(self.folder / "refs" / name, commit)

    def lock(self, file: RemoteFile) -> Path:
        return self.locks / f"{file.etag}.lock"


def checked_revision(revision: str | None) -> str:
    """The revision, by default the main branch. Raises HubError for text that cannot be a branch,
    tag or commit.
    """
    name = revision or MAIN
    if not REVISION.fullmatch(name) or ".." in name or len(name) > 255:
        raise HubError(f"--revision {name[:80]!r}: expected a branch, a tag or a commit")
    return name


def is_whole(path: Path, size: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size
    except OSError:
        return False


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically: readers see either the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name[:80]}.{os.getpid()}-{time.monotonic_ns()}")
    try:
        made.write_text(text, encoding="utf-8")
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], None], stopped: Callable[[], bool]) -> Iterator[None]:
    """Context manager: this process holds the lock, which the hub's tools respect. `on_wait` is
    called once if another process holds it. Raises HubError if `stopped` returns true while
    waiting.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    waited = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o664)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                # Without locks, the hash check detects that another process has written to the same
                # file.
                break
            os.close(handle)
            if not isinstance(error, BlockingIOError):
                raise
            if not waited:
                waited = True
                on_wait()
            if stopped():
                raise HubError("the download was stopped") from None
            time.sleep(POLL)
            continue
        # Another process may have removed the lock file and created a new one.
        if _is_at(handle, path):
            break
        os.close(handle)
    try:
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a process holds this lock now."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _is_at(handle: int, path: Path) -> bool:
    try:
        own, there = os.fstat(handle), path.stat()
    except FileNotFoundError:
        return False
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _link_name(path: Path) -> str:
    return Path(os.readlink(path)).name if path.is_symlink() else ""


def wrapped(repository: str, error: OSError) -> PenstockError:
    """Error for a cache that cannot be written."""
    where = f" {error.filename}" if error.filename else ""
    return HubError(
        f"{repository}: the cache cannot be written:{where}: {error.strerror or error}; set "
        "HF_HUB_CACHE to a directory that can"
    )
