"""Downloads files: by byte ranges on several connections at once. A broken download is resumed. A
file gets its name only after verification.

A file with the suffix `.incomplete` is always a prefix of the whole file, written in order.
Therefore this program or a tool of the hub can resume an interrupted download. Pieces that arrive
early wait in memory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.core import PenstockError
from penstock.core.progress import size as in_units
from penstock.hub.cache import is_whole, locked, wrapped
from penstock.hub.errors import HubError, address, shown
from penstock.hub.http import ATTEMPTS, BUSY, LOST, Answer, Session, busy, cause, number
from penstock.hub.listing import SHA256
from penstock.hub.progress import Progress

PIECE = 8 << 20
"""Bytes of one range."""
CONNECTIONS = 4
AHEAD = 2 * CONNECTIONS
"""Pieces of one file that may be requested ahead of the write position: at most 64 MiB of
memory.
"""
CHUNK = 1 << 18
GAIN = 1 << 16
"""Minimum new bytes for an attempt to count as progress."""
SPARE = 64 << 20
"""Disk space in bytes that a download leaves free."""
CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")
STOPPED = "stopped; the same command continues the download"
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A file to download."""

    label: str
    """Repository and name, for messages."""
    url: str
    size: int
    """Size in bytes."""
    sha256: str | None
    """SHA-256 of the content; None for a small file, whose git blob hash is `blob`."""
    blob: str
    target: Path
    part: Path
    """File for the bytes that have arrived, in the same file system as `target`."""
    lock: Path

    def hasher(self) -> Hash:
        if self.sha256 is not None:
            return hashlib.sha256()
        made = hashlib.sha1(usedforsecurity=False)
        made.update(b"blob %d\0" % self.size)
        return made

    @property
    def digest(self) -> str:
        return self.sha256 or self.blob

    def is_right(self, path: Path) -> bool:
        """Whether a file has the expected content."""
        digest = self.hasher()
        hash_file(path, digest)
        return digest.hexdigest() == self.digest


class Transfer:
    """Downloads with one session."""

    def __init__(self, session: Session, progress: Progress) -> None:
        self._session = session
        self._progress = progress
        self._locations: dict[str, str] = {}
        """Redirect target of each job's URL."""

    def run(self, jobs: Sequence[Job]) -> None:
        """Download the missing files: small files concurrently, large ones one after another, in
        pieces. Raises HubError; partly downloaded files are kept.
        """
        self._progress.begin(sum(job.size - _begun(job) for job in jobs if not _is_here(job)))
        self._check_room(jobs)
        pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="hub")
        try:
            small = [pool.submit(self._file, job, None) for job in jobs if job.size <= PIECE]
            for done in small:
                done.result()
            for job in jobs:
                if job.size > PIECE:
                    self._file(job, pool)
        except BaseException as error:
            self._session.abort()
            if isinstance(error, KeyboardInterrupt):
                self._progress.note(STOPPED)
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self._progress.end()

    def _check_room(self, jobs: Sequence[Job]) -> None:
        missing = [job for job in jobs if not _is_here(job)]
        if not missing:
            return
        where = missing[0].part.parent
        try:
            where.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(where).free
        except OSError as error:
            raise wrapped(missing[0].label, error) from error
        needed = sum(job.size - _begun(job) for job in missing)
        # Small files are tried anyway, because a file system may report its free space incorrectly.
        if needed > SPARE and needed + SPARE > free:
            raise HubError(
                f"{missing[0].label}: {in_units(needed)} are to come to {where}, which has "
                f"{in_units(free)} free: remove models (`penstock models`), or set HF_HUB_CACHE"
            )

    def _file(self, job: Job, pool: ThreadPoolExecutor | None) -> None:
        if _is_here(job):
            return

        def tell() -> None:
            self._progress.note(f"another process downloads {job.label}; waiting for it")

        try:
            with locked(job.lock, tell, lambda: self._session.aborted):
                if _is_here(job):
                    # Another process has downloaded the file.
                    self._progress.add(job.size)
                    return
                begun = _begun(job) > 0
                if self._attempt(job, pool):
                    return
                # The partial file, perhaps written by another program, belongs to another file.
                if not (begun and self._attempt(job, pool)):
                    raise HubError(
                        f"{job.label}: what arrived has another hash than the hub gives "
                        f"({job.digest}); it is removed. Try again; if it happens again, a proxy "
                        "or mirror changes the file"
                    )
        except OSError as error:
            raise disk_error(job.label, job.part, job.size - _begun(job), error) from error

    def _attempt(self, job: Job, pool: ThreadPoolExecutor | None) -> bool:
        """Download the rest of a file. Returns whether its hash is correct; removes the file if
        not.
        """
        job.part.parent.mkdir(parents=True, exist_ok=True)
        digest = job.hasher()
        with job.part.open("ab") as out:
            if out.tell() > job.size:
                out.truncate(0)
            start = hash_file(job.part, digest)
            out.seek(0, os.SEEK_END)
            for data in self._pieces(job, start, pool):
                out.write(data)
                digest.update(data)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != job.digest:
            job.part.unlink()
            return False
        job.target.parent.mkdir(parents=True, exist_ok=True)
        job.part.replace(job.target)
        return True

    def _pieces(self, job: Job, start: int, pool: ThreadPoolExecutor | None) -> Iterator[bytes]:
        """The file's bytes from `start`, in order."""
        if start >= job.size:
            return
        first = min(start + PIECE, job.size)
        opened = self._opened(job, start, first)
        if pool is None or opened.status != 206:
            yield from self._bytes(job, start, job.size, opened)
            return
        yield from self._bytes(job, start, first, opened)
        ranges = iter(range(first, job.size, PIECE))
        ahead: deque[Future[bytes]] = deque()
        try:
            while True:
                while len(ahead) < AHEAD and (at := next(ranges, None)) is not None:
                    ahead.append(pool.submit(self._piece, job, at))
                if not ahead:
                    return
                yield ahead.popleft().result()
        finally:
            for waiting in ahead:
                waiting.cancel()

    def _piece(self, job: Job, start: int) -> bytes:
        return b"".join(self._bytes(job, start, min(start + PIECE, job.size), None))

    def _bytes(self, job: Job, start: int, stop: int, opened: Answer | None) -> Iterator[bytes]:
        """The bytes from `start` to `stop`, in chunks, with as many requests as needed."""
        at, attempt = start, 0
        while at < stop:
            before, failure = at, "the connection was closed before the end"
            with opened or self._opened(job, at, stop) as answer:
                opened = None
                try:
                    for data in _read(answer, at, stop):
                        at += len(data)
                        self._progress.add(len(data))
                        yield data
                except LOST as error:
                    failure = cause(error)
            if at >= stop:
                return
            attempt = 0 if at - before >= GAIN else attempt
            self._session.wait(attempt, None, f"{job.label}: {failure}")
            attempt += 1

    def _opened(self, job: Job, start: int, stop: int) -> Answer:
        """A response with the bytes from `start`, with the session's retries."""
        for attempt in range(ATTEMPTS):
            after = None
            try:
                answer = self._open(job, start, stop)
            except LOST as error:
                failure = cause(error)
            else:
                if answer.status not in BUSY:
                    return answer
                answer.close()
                failure, after = busy(answer.status), answer.headers.get("retry-after")
            self._session.wait(attempt, after, f"{job.label}: {failure}")
        raise AssertionError("wait ends the last attempt")

    def _open(self, job: Job, start: int, stop: int) -> Answer:
        """A response with the bytes from `start`, or with a status in BUSY."""
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        known = self._locations.get(job.url)
        if known is not None:
            answer = self._session.get(known, headers)
            if answer.status in (200, 206, *BUSY):
                return self._checked(job, start, answer)
            # Such URLs expire.
            answer.close()
            self._locations.pop(job.url, None)
        answer = self._session.get(job.url, headers)
        if answer.url != job.url and answer.status in (200, 206):
            self._locations[job.url] = answer.url
        return self._checked(job, start, answer)

    def _checked(self, job: Job, start: int, answer: Answer) -> Answer:
        try:
            _check(job, start, answer, has_token=bool(self._session.settings.token))
        except HubError:
            answer.close()
            raise
        return answer


def _read(answer: Answer, at: int, stop: int) -> Iterator[bytes]:
    """Read the bytes from `at` to `stop`. A server that ignores range requests also sends the
    preceding bytes.
    """
    skipped = 0 if answer.status == 206 else at
    while skipped > 0:
        data = answer.body.read(min(CHUNK, skipped))
        if not data:
            return
        skipped -= len(data)
    while at < stop and (data := answer.body.read(min(CHUNK, stop - at))):
        at += len(data)
        yield data


def _check(job: Job, start: int, answer: Answer, *, has_token: bool) -> None:
    """Raise HubError for a response that cannot contain the file's bytes."""
    if answer.status in BUSY:
        return
    if answer.status == 416:
        raise HubError(
            f"{job.label}: the server's file ends before byte {start}, the hub lists {job.size}; "
            "try again: the file may just have changed"
        )
    if answer.status not in (200, 206):
        raise refusal(job.label, answer, has_token=has_token)
    etag = answer.linked.get("x-linked-etag", "").removeprefix("W/").strip('"')
    if SHA256.fullmatch(etag) and etag != (job.sha256 or etag):
        raise HubError(
            f"{job.label}: the server has the file {etag}, the hub lists {job.sha256}; try again: "
            "the file may just have changed"
        )
    size = number(answer.linked.get("x-linked-size"))
    if answer.status == 206:
        found = CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "").strip())
        if found is None or int(found[1]) != start:
            raise HubError(
                f"{job.label}: the server sends another range than it was asked for "
                f"({shown(answer.headers.get('content-range'), 80)}); try again without a proxy"
            )
        size = number(found[2]) if size in (None, job.size) else size
    elif size is None and "content-encoding" not in answer.headers:
        size = number(answer.headers.get("content-length"))
    if size not in (None, job.size):
        raise HubError(
            f"{job.label}: the server has {size} bytes, the hub lists {job.size}; try again: the "
            "file may just have changed"
        )


def refusal(label: str, answer: Answer, *, has_token: bool) -> HubError:
    """Error for a response that lacks the requested content."""
    code = answer.headers.get("x-error-code", "")
    message = answer.headers.get("x-error-message", "")
    told = f" ({shown(message, 200)})" if message else ""
    if code == "GatedRepo" or (answer.status == 403 and "gated" in message.lower()):
        return HubError(
            f"{label}: access is gated ({answer.status}): accept the conditions on the model's "
            f"page, then {'use a token of that account' if has_token else 'set HF_TOKEN'}"
        )
    if code == "RevisionNotFound":
        return HubError(f"{label}: no such branch, tag or commit; check --revision")
    if code == "EntryNotFound":
        return HubError(f"{label}: the repository has no such file")
    if answer.status in (401, 403, 404) and (code == "RepoNotFound" or answer.status == 401):
        token = "the token in HF_TOKEN may not read it" if has_token else "set HF_TOKEN"
        return HubError(
            f"{label}: no such repository, or a private one ({answer.status}){told}: check the "
            f"name; if it is private, {token}"
        )
    if answer.status == 403:
        return HubError(f"{label}: refused (403){told}: HF_TOKEN must be one that may read it")
    where = "" if label.startswith("http") else f" at {address(answer.url)}"
    if answer.status == 404:
        return HubError(f"{label}: not found{where} (404){told}: check the name")
    return HubError(f"{label}: the server answered {answer.status}{where}{told}")


def _is_here(job: Job) -> bool:
    return is_whole(job.target, job.size)


def _begun(job: Job) -> int:
    """Size of the partial file that an earlier download has left."""
    try:
        size = job.part.stat().st_size
    except OSError:
        return 0
    return size if size <= job.size else 0


def hash_file(path: Path, digest: Hash) -> int:
    """Hash a file's content; returns its size."""
    size = 0
    with path.open("rb") as file:
        while data := file.read(PIECE):
            digest.update(data)
            size += len(data)
    return size


def disk_error(label: str, part: Path, rest: int, error: OSError) -> PenstockError:
    """Error for a full or failing disk; `rest` is the number of bytes that remain to be written."""
    if error.errno not in FULL:
        return wrapped(label, error)
    free = "?"
    with contextlib.suppress(OSError):
        free = in_units(shutil.disk_usage(part.parent).free)
    still = f", {in_units(rest)} to come" if rest else ""
    return HubError(
        f"{label}: {error.strerror} in {part.parent} ({free} free{still}): make room "
        "(`penstock models`) or set HF_HUB_CACHE, then try again: what has arrived is kept"
    )
