"""Programs of other projects, built from the Go module proxy where the machine has none."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

CACHE = Path.home() / ".cache/penstock"
BUILD_TIMEOUT = 1800
STRIPPED = ("-p", "2", "-ldflags", "-s -w")


def program(package: str, version: str) -> Path:
    """The program that `package` makes, installed or from the cache; the test is skipped, with the
    reason, where it cannot be built.
    """
    name = package.rpartition("/")[2]
    if installed := shutil.which(name):
        return Path(installed)
    cache = CACHE / name
    built = cache / version / name
    if built.is_file():
        return built
    folder = cache / f"build-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        _go(name, folder, {"GOBIN": str(folder)}, "install", *STRIPPED, f"{package}@{version}")
        built.parent.mkdir(parents=True, exist_ok=True)
        (folder / name).rename(built)
    finally:
        shutil.rmtree(folder)
    return built


def tools(module: Path) -> Path:
    """The directory with the tools that a go.mod names, built or from the cache; the test is
    skipped, with the reason, where they cannot be built.
    """
    digest = hashlib.sha256((module / "go.mod").read_bytes()).hexdigest()[:12]
    cache = CACHE / module.name
    built = cache / digest
    if built.is_dir():
        return built
    work = cache / f"build-{os.getpid()}"
    shutil.copytree(module, work)
    try:
        _go(module.name, work, {}, "mod", "tidy")
        (work / "made").mkdir()
        _go(module.name, work, {}, "build", *STRIPPED, "-o", "made", "tool")
        (work / "made").rename(built)
    finally:
        shutil.rmtree(work)
    return built


def _go(name: str, folder: Path, env: Mapping[str, str], *words: str) -> None:
    if shutil.which("go") is None:
        pytest.skip(f"no {name} to test with: Go is missing, which builds it")
    try:
        done = subprocess.run(
            ["go", *words],
            cwd=folder,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", **env},
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"no {name} to test with: go {words[0]} took over {BUILD_TIMEOUT} s")
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        pytest.skip(f"no {name} to test with: go {words[0]}: {last[0]}")
