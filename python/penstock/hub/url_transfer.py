"""Downloads a GGUF file from a URL of any server."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from penstock.config import HubSettings
from penstock.core.progress import size as in_units
from penstock.hub.cache import locked, replace_text
from penstock.hub.errors import HubError, shown
from penstock.hub.http import BUSY, LOST, Answer, Session, busy, cause, number
from penstock.hub.progress import Progress
from penstock.hub.transfer import CHUNK, GAIN, STOPPED, disk_error, refusal
from penstock.hub.urls import ORIGIN, FromUrl, address_of

MAGIC = b"GGUF"
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(?:\d{1,18}|\*)")


def fetch_url(file: FromUrl, settings: HubSettings, progress: Progress) -> Path:
    """Download the file at a URL; returns its path. No hash is available, so the size and the first
    bytes are checked. Raises HubError.
    """
    session = Session(settings, progress.note)

    def tell() -> None:
        progress.note("another process downloads it; waiting for it")

    try:
        with locked(file.directory / ".lock", tell, lambda: False):
            if not file.path.is_file():
                _download(file, session, progress)
            return file.path
    except KeyboardInterrupt:
        progress.note(STOPPED)
        raise
    except OSError as error:
        raise disk_error(address_of(file.url), file.part, 0, error) from error
    finally:
        session.close()
        progress.end()


def _download(file: FromUrl, session: Session, progress: Progress) -> None:
    label, attempt = address_of(file.url), 0
    while True:
        begun, after = _begun(file), None
        try:
            done, gained = _attempt(file, session, progress, begun)
            if done:
                return
            failure = "the connection was closed before the end"
            attempt = 0 if gained >= GAIN else attempt
        except _BusyError as error:
            failure, after = str(error), error.after
        except LOST as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise
            failure = cause(error)
            attempt = 0 if _size(file.part) - begun >= GAIN else attempt
        session.wait(attempt, after, f"{label}: {failure}")
        attempt += 1


class _BusyError(Exception):
    def __init__(self, status: int, after: str | None) -> None:
        super().__init__(busy(status))
        self.after = after


def _attempt(file: FromUrl, session: Session, progress: Progress, begun: int) -> tuple[bool, int]:
    """Download the bytes that arrive in one response. Returns whether the file is complete under
    its final name, and the number of new bytes.
    """
    headers = {"Range": f"bytes={begun}-", "If-Range": _origin(file)} if begun else {}
    with session.get(file.url, headers) as answer:
        if answer.status in BUSY:
            raise _BusyError(answer.status, answer.headers.get("retry-after"))
        at, total = _start(file, answer, begun)
        progress.begin(total - at if total is not None else 0)
        data = answer.body.read(CHUNK)
        if at == 0 and data and not data.startswith(MAGIC):
            raise HubError(
                f"{address_of(file.url)}: not a GGUF file: it begins with "
                f"`{shown(data[:16].decode('latin-1'))}`; is this the address of the file itself?"
            )
        with file.part.open("ab") as out:
            out.truncate(at)
            _remember(file, answer)
            while data:
                out.write(data)
                at += len(data)
                progress.add(len(data))
                data = answer.body.read(CHUNK)
            out.flush()
            os.fsync(out.fileno())
    if total is not None and at < total:
        return False, at - begun
    if total is not None and at > total:
        file.part.unlink()
        raise HubError(
            f"{address_of(file.url)}: {in_units(at)} arrived of {in_units(total)}: it is removed"
        )
    file.part.replace(file.path)
    return True, at - begun


def _start(file: FromUrl, answer: Answer, begun: int) -> tuple[int, int | None]:
    """Start offset of a response's bytes, and the file's size (None if the server does not report
    it).
    """
    if answer.status not in (200, 206):
        raise refusal(address_of(file.url), answer, has_token=False)
    rest = number(answer.headers.get("content-length"))
    if rest is None and answer.headers.get("transfer-encoding", "").lower() != "chunked":
        raise HubError(
            f"{address_of(file.url)}: the server does not tell the file's size, so an end could be "
            "a cut; download it by other means, and name the path"
        )
    if answer.status == 200:
        return 0, rest
    found = _RANGE.fullmatch(answer.headers.get("content-range", "").strip())
    if found is None or int(found[1]) != begun:
        raise HubError(f"{address_of(file.url)}: the server sends another range than asked for")
    return begun, None if rest is None else begun + rest


def _begun(file: FromUrl) -> int:
    """Size of a partial file that can be resumed, that is, whose version is known."""
    return _size(file.part) if _origin(file) else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _remember(file: FromUrl, answer: Answer) -> None:
    """Store the file's URL and version: a strong ETag, or the time of its last modification."""
    etag = answer.headers.get("etag", "")
    version = etag if etag.startswith('"') else answer.headers.get("last-modified", "")
    replace_text(
        file.directory / ORIGIN, json.dumps({"url": address_of(file.url), "version": version})
    )


def _origin(file: FromUrl) -> str:
    try:
        version = json.loads((file.directory / ORIGIN).read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return version if isinstance(version, str) and version.isprintable() else ""
