"""Programs of other projects, built from the Go module proxy where the machine has none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path.home() / ".cache/penstock"
BUILD_TIMEOUT = 1800


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
    if shutil.which("go") is None:
        pytest.skip(f"no {name} to test with: Go is missing, which builds it")
    folder = cache / f"build-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        _install(f"{package}@{version}", folder)
        built.parent.mkdir(parents=True, exist_ok=True)
        (folder / name).rename(built)
    finally:
        shutil.rmtree(folder)
    return built


def _install(module: str, folder: Path) -> None:
    command = ["go", "install", "-p", "2", "-ldflags", "-s -w", module]
    name = module.rpartition("/")[2]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "CGO_ENABLED": "0", "GOBIN": str(folder)},
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"no {name} to test with: go install took over {BUILD_TIMEOUT} s")
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        pytest.skip(f"no {name} to test with: go install: {last[0]}")
