"""Files of a repository at one commit: names, sizes and hashes. They come from a hub's responses,
which are untrusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.hub.errors import HubError, shown

SHA1 = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
LARGEST = 1 << 50
LONGEST_NAME = 1024
LONGEST_PART = 255
FORMAT = 1
"""Version of the listing format that the hub's tools store in `trees`."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    name: str
    """Path inside the repository, with slashes."""
    size: int
    """Size in bytes."""
    blob: str
    """Git blob hash (SHA-1) of the file or, for a large file, of its LFS pointer."""
    sha256: str | None = None
    """SHA-256 of the content, for large files (LFS)."""
    xet: str | None = None
    """Hash of the file in the hub's newer storage (Xet). Stored for the hub's tools."""

    @property
    def etag(self) -> str:
        """Name of the content in a cache."""
        return self.sha256 or self.blob


Listing = Mapping[str, RemoteFile]
"""Files by name."""


def is_safe(name: object) -> bool:
    """Whether a name is a relative path inside a directory that is safe to display and to
    create.
    """
    return (
        isinstance(name, str)
        and 0 < len(name) <= LONGEST_NAME
        and name.isprintable()
        and "\\" not in name
        and all(
            part not in ("", ".", "..") and len(part.encode()) <= LONGEST_PART
            for part in name.split("/")
        )
    )


def of_answers(repository: str, entries: Iterable[object]) -> dict[str, RemoteFile]:
    """The listing from the entries of `/api/models/ORG/NAME/tree/COMMIT`. Raises HubError for an
    invalid entry: a hub that sends one is not trusted with the other entries either.
    """
    found: dict[str, RemoteFile] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise HubError(f"{repository}: the hub's listing is not one of files")
        if entry.get("type") != "file":
            continue
        name, lfs = entry.get("path"), entry.get("lfs")
        if not isinstance(name, str) or not is_safe(name):
            raise HubError(
                f"{repository}: the hub lists a file named {shown(name)!r}, which is no path "
                "inside a repository; nothing of it is downloaded"
            )
        large = lfs if isinstance(lfs, dict) else {}
        found[name] = _checked(
            repository,
            name,
            large.get("size", entry.get("size")),
            entry.get("oid"),
            large.get("oid"),
            entry.get("xetHash"),
        )
    return found


def to_json(listing: Listing) -> dict[str, object]:
    """The listing in the format of the hub's tools."""
    files = {}
    for name in sorted(listing):
        file = listing[name]
        entry: dict[str, object] = {"size": file.size, "blob_id": file.blob}
        if file.sha256 is not None:
            entry |= {"lfs_sha256": file.sha256, "lfs_size": file.size}
        if file.xet is not None:
            entry["xet_hash"] = file.xet
        files[name] = entry
    return {"format_version": FORMAT, "files": files}


def from_json(repository: str, data: object) -> dict[str, RemoteFile] | None:
    """Parse a listing that `to_json` or a tool of the hub has written; None for another format."""
    if not isinstance(data, dict) or data.get("format_version") != FORMAT:
        return None
    files = data.get("files")
    if not isinstance(files, dict):
        return None
    found = {}
    try:
        for name, entry in files.items():
            if not isinstance(entry, dict) or not is_safe(name):
                return None
            size = entry.get("lfs_size") or entry.get("size")
            hashes = (entry.get(key) for key in ("blob_id", "lfs_sha256", "xet_hash"))
            found[name] = _checked(repository, name, size, *hashes)
    except HubError:
        return None
    return found


def _checked(
    repository: str, name: str, size: object, blob: object, sha256: object, xet: object
) -> RemoteFile:
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= LARGEST:
        raise HubError(f"{repository}: {name}: the hub gives its size as {shown(size, 40)}")
    if not isinstance(blob, str) or not SHA1.fullmatch(blob):
        raise HubError(f"{repository}: {name}: the hub gives its hash as {shown(blob, 80)}")
    if sha256 is not None and not (isinstance(sha256, str) and SHA256.fullmatch(sha256)):
        raise HubError(f"{repository}: {name}: the hub gives its SHA-256 as {shown(sha256, 80)}")
    kept = xet if isinstance(xet, str) and SHA256.fullmatch(xet) else None
    return RemoteFile(name, size, blob, sha256, kept)
