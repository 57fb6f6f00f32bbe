"""Files that are not in the page cache."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def forget_pages(directory: Path) -> None:
    """Write a directory's files to disk and drop them from the page cache."""
    os.sync()
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
