"""Penstock's image built by buildah over a Debian of its own, and containers of it run by runc."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pytest

from tests.e2e.server import eventually
from tests.limits import HANG

BASE = "docker.io/library/python:3.11-slim-bookworm"
"""What the Containerfile names; here a Debian with Python, because no registry can be reached."""
NAME = "penstock"
"""Name of our image."""
CACHE = Path.home() / ".cache/penstock/images"
TOOLS = ("buildah", "runc", "mmdebstrap")


def needs_tools() -> None:
    """Skip, with the reason, where images cannot be built or run."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no image to test: {', '.join(missing)} missing (apt-get install)")
    if os.geteuid() != 0:
        pytest.skip("no image to test: runc and chroot need root here")


def call(*words: str | Path, **options: Any) -> str:
    """Standard output of a command; an AssertionError with its error output."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{words[0]} {words[1]}: {done.stderr.strip()[-2000:]}"
    return str(done.stdout).strip()


def debian(*more: str) -> Path:
    """A root file system of Debian with Python, pip and more packages, from the cache if it is
    there.
    """
    archive = CACHE / f"{'-'.join(('bookworm-python', *more))}.tar"
    if not archive.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = archive.with_suffix(f".{os.getpid()}.tar")
        packages = f"--include={','.join(('python3', 'python3-pip', *more))}"
        words = ["mmdebstrap", "--variant=minbase", packages, "bookworm", str(made)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            made.unlink(missing_ok=True)
            last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
            pytest.skip(f"no image to test: mmdebstrap: {last[0]}")
        made.rename(archive)
    return archive


class Images:
    """A store of images in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self._options = ("--root", str(folder / "store"), "--runroot", str(folder / "run"))
        self._env = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
        self._working: list[str] = []

    def base(self, archive: Path) -> None:
        """Names the base image."""
        name = self.buildah("from", "scratch")
        self.buildah("add", "-q", name, archive, "/")
        self.buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", name)
        self.buildah("commit", "-q", name, BASE)
        self.buildah("rm", name)

    def build(self, containerfile: Path, context: Path, name: str) -> None:
        """Builds an image without a network."""
        rules = ("--pull-never", "--network", "none")
        self.buildah("build", *rules, "-f", containerfile, "-t", name, context)

    def config(self, name: str) -> dict[str, Any]:
        """The image's configuration, as the Open Container Initiative defines it."""
        found: dict[str, Any] = json.loads(self.buildah("inspect", "--type", "image", name))
        return dict(found["OCIv1"]["config"])

    def root(self, name: str) -> Path:
        """The image's files, mounted until the store is closed."""
        self._working.append(self.buildah("from", "--pull-never", name))
        return Path(self.buildah("mount", self._working[-1]))

    def buildah(self, *words: str | Path) -> str:
        return call("buildah", *self._options, *words, env=self._env, timeout=10 * HANG)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._working:
            self.buildah("umount", name)
            self.buildah("rm", name)


class Container:
    """A process of an image as a restricted pod runs it: no capabilities, read-only root, and the
    host's network. Leaving the block stops it with SIGTERM.
    """

    def __init__(
        self,
        folder: Path,
        root: Path,
        image: Mapping[str, Any],
        words: Sequence[str],
        mounts: Mapping[Path, str],
    ) -> None:
        self._folder, self._name = folder, f"penstock-test-{os.getpid()}-{folder.name}"
        folder.mkdir()
        call("runc", "spec", cwd=folder)
        file = folder / "config.json"
        spec = json.loads(file.read_text())
        user, group = (int(part) for part in image["User"].split(":"))
        spec["root"] = {"path": str(root), "readonly": True}
        spec["process"] |= {
            "terminal": False,
            "user": {"uid": user, "gid": group},
            "args": [*image["Entrypoint"], *words],
            "env": image["Env"],
            "capabilities": {},
            "noNewPrivileges": True,
        }
        spec["mounts"] += [
            {
                "destination": "/tmp",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "nodev", "mode=1777", "size=256m"],
            },
            *(
                {
                    "destination": inside,
                    "type": "bind",
                    "source": str(outside),
                    "options": ["rbind", "ro"],
                }
                for outside, inside in mounts.items()
            ),
        ]
        kinds = spec["linux"]["namespaces"]
        spec["linux"]["namespaces"] = [kind for kind in kinds if kind["type"] != "network"]
        file.write_text(json.dumps(spec))
        self._log: IO[bytes] = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            ["runc", "--root", str(folder / "state"), "run", self._name],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def wait(self) -> int:
        """The exit status."""
        return self._process.wait(HANG)

    def said(self, part: str) -> str:
        """The first line with `part`, when there is one."""

        def found() -> str | None:
            assert self._process.poll() is None, f"ended early:\n{self.log}"
            return next((line for line in self.log.splitlines() if part in line), None)

        return eventually(found, f"a line with {part!r}")

    def stop(self) -> int:
        """Sends SIGTERM, as a kubelet does; the exit status."""
        call("runc", "--root", self._folder / "state", "kill", self._name, "TERM")
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM if kind is None else signal.SIGKILL)
            state = self._folder / "state"
            subprocess.run(
                ["runc", "--root", str(state), "delete", "--force", self._name], check=False
            )
            self._process.wait(HANG)
        self._log.close()
