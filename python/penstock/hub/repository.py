"""One repository of a hub: its commit, its files, and their download into the cache or into a
directory.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

from penstock.config import HubSettings
from penstock.core.progress import size as in_units
from penstock.hub.cache import CachedRepository, checked_revision, is_whole, replace_text, wrapped
from penstock.hub.errors import HubError, address, shown
from penstock.hub.here import Fetched, Select
from penstock.hub.http import ATTEMPTS, LOST, Session, cause, number
from penstock.hub.listing import SHA1, RemoteFile, of_answers
from penstock.hub.names import HubName, Selection
from penstock.hub.progress import Progress
from penstock.hub.transfer import Job, Transfer, refusal

NEXT = re.compile(r'<([^<>]*)>\s*;[^,]*\brel="?next"?')
MOST_PAGES = 2000
MOST_FILES = 500_000
LARGEST_PAGE = 32 << 20


def fetch(
    name: HubName,
    revision: str | None,
    settings: HubSettings,
    select: Select,
    progress: Progress,
    local: Path | None = None,
) -> Fetched:
    """Download a model's missing files at the branch, tag or commit `revision`, into the cache or
    into the directory `local`. Raises HubError. A file appears only when it is complete and
    verified.
    """
    wanted = checked_revision(name.revision or revision)
    session = Session(settings, progress.note)
    try:
        hub = _Hub(session, name.repository)
        commit = hub.commit(wanted)
        cached = CachedRepository(settings.cache, name.repository)
        known = cached.listing(commit)
        listing = hub.listing(commit) if known is None else known
        selection = select(listing, name)
        if local is not None:
            return _to_directory(hub, commit, selection, local, progress)
        if known is None:
            cached.add_listing(commit, listing)
        _to_cache(hub, cached, commit, selection, progress)
        cached.refer(wanted, commit)
        return Fetched(cached.snapshot(commit), selection)
    except OSError as error:
        raise wrapped(str(name), error) from error
    finally:
        session.close()


def _to_cache(
    hub: _Hub,
    cached: CachedRepository,
    commit: str,
    selection: Selection,
    progress: Progress,
) -> None:
    files = [file for file in selection.files if not cached.has(commit, file)]
    jobs = {
        file.etag: hub.job(commit, file, cached.blob(file), cached.part(file), cached.lock(file))
        for file in files
    }
    _announce(list(jobs.values()), cached.folder.parent, progress)
    Transfer(hub.session, progress).run(list(jobs.values()))
    for file in files:
        cached.link(commit, file)


def _to_directory(
    hub: _Hub, commit: str, selection: Selection, local: Path, progress: Progress
) -> Fetched:
    """Download into a directory, with the metadata files that the hub's tools keep there."""
    kept = local / ".cache" / "huggingface" / "download"
    files = [file for file in selection.files if not _is_recorded(kept, local, file)]
    jobs = []
    for file in files:
        target, part = local / file.name, kept / f"{file.name}.{file.etag}.incomplete"
        job = hub.job(commit, file, target, part, kept / f"{file.name}.lock")
        if is_whole(target, file.size) and not job.is_right(target):
            # The file belongs to another commit.
            target.unlink()
        jobs.append(job)
    _announce(jobs, local, progress)
    Transfer(hub.session, progress).run(jobs)
    for file in files:
        record = f"{commit}\n{file.etag}\n{time.time()}\n"
        replace_text(kept / f"{file.name}.metadata", record)
    return Fetched(local, selection)


def _announce(jobs: list[Job], where: Path, progress: Progress) -> None:
    missing = [job for job in jobs if not is_whole(job.target, job.size)]
    if missing:
        files = "1 file" if len(missing) == 1 else f"{len(missing)} files"
        total = in_units(sum(job.size for job in missing))
        progress.note(f"downloading {total} ({files}) to {where}")


def _is_recorded(kept: Path, local: Path, file: RemoteFile) -> bool:
    try:
        lines = (kept / f"{file.name}.metadata").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return len(lines) > 1 and lines[1] == file.etag and is_whole(local / file.name, file.size)


class _Hub:
    """HTTP requests about one repository."""

    def __init__(self, session: Session, repository: str) -> None:
        self.session = session
        self._repository = repository
        self._endpoint = session.settings.endpoint

    def commit(self, revision: str) -> str:
        """The current commit of a branch or tag."""
        if SHA1.fullmatch(revision):
            return revision
        where = f"/api/models/{self._repository}/revision/{quote(revision, safe='')}"
        answer, _ = self._json(self._endpoint + where)
        commit = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(commit, str) or not SHA1.fullmatch(commit):
            raise HubError(
                f"{self._repository}: {self._endpoint} gives the commit of {revision} as "
                f"{shown(commit, 80)!r}; is HF_ENDPOINT a hub?"
            )
        return commit

    def listing(self, commit: str) -> dict[str, RemoteFile]:
        """All files of a commit."""
        url = f"{self._endpoint}/api/models/{self._repository}/tree/{commit}?recursive=true"
        entries: list[object] = []
        for _ in range(MOST_PAGES):
            page, link = self._json(url)
            if not isinstance(page, list):
                raise HubError(f"{self._repository}: the hub's listing is not one of files")
            entries += page
            if len(entries) > MOST_FILES:
                break
            found = NEXT.search(link)
            if found is None:
                return of_answers(self._repository, entries)
            url = self._next(url, found[1])
        raise HubError(
            f"{self._repository}: the hub lists more than {MOST_FILES} files, or more than "
            f"{MOST_PAGES} pages; such a repository is not downloaded"
        )

    def _next(self, url: str, link: str) -> str:
        joined = urljoin(url, link)
        if urlsplit(joined)[:2] != urlsplit(url)[:2] or joined == url:
            raise HubError(
                f"{self._repository}: the hub's listing goes on at {address(joined)}, which is "
                "another host or the same page"
            )
        return joined

    def job(self, commit: str, file: RemoteFile, target: Path, part: Path, lock: Path) -> Job:
        where = f"{self._repository}/resolve/{commit}/{quote(file.name, safe='/')}"
        return Job(
            label=f"{self._repository}: {file.name}",
            url=f"{self._endpoint}/{where}",
            size=file.size,
            sha256=file.sha256,
            blob=file.blob,
            target=target,
            part=part,
            lock=lock,
        )

    def _json(self, url: str) -> tuple[object, str]:
        """The JSON document at a URL, and the response's Link header."""
        for attempt in range(ATTEMPTS):
            with self.session.retried(self._repository, url) as answer:
                if answer.status != 200:
                    has_token = bool(self.session.settings.token)
                    raise refusal(self._repository, answer, has_token=has_token)
                failure = "the connection was closed before the end"
                try:
                    data = answer.body.read(LARGEST_PAGE + 1)
                    length = number(answer.headers.get("content-length")) or 0
                    if len(data) >= min(length, LARGEST_PAGE + 1):
                        return self._parsed(url, data), answer.headers.get("link", "")
                except LOST as error:
                    failure = cause(error)
            self.session.wait(attempt, None, f"{self._repository}: {failure}")
        raise AssertionError("wait ends the last attempt")

    def _parsed(self, url: str, data: bytes) -> object:
        try:
            if len(data) > LARGEST_PAGE:
                raise ValueError(f"more than {LARGEST_PAGE} bytes")
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise HubError(
                f"{self._repository}: {address(url)} answers with no JSON ({shown(error, 100)}); "
                "is HF_ENDPOINT a hub, and is a login page of a network in between?"
            ) from error
