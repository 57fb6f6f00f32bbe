"""Helm, built from the Go module proxy where the machine has none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

VERSION = "v4.3.1"
CACHE = Path.home() / ".cache/penstock/helm"
BUILD_TIMEOUT = 1800


def helm() -> Path:
    """The program; the test is skipped, with the reason, where it cannot be built."""
    installed = shutil.which("helm")
    if installed:
        return Path(installed)
    built = CACHE / VERSION / "helm"
    if built.is_file():
        return built
    if shutil.which("go") is None:
        pytest.skip("no Helm to test with: Go is missing, which builds it")
    folder = CACHE / f"build-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        done = subprocess.run(
            [
                "go",
                "install",
                "-p",
                "2",
                "-ldflags",
                "-s -w",
                f"helm.sh/helm/v4/cmd/helm@{VERSION}",
            ],
            env={**os.environ, "CGO_ENABLED": "0", "GOBIN": str(folder)},
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
            pytest.skip(f"no Helm to test with: go install: {last[0]}")
        built.parent.mkdir(parents=True, exist_ok=True)
        (folder / "helm").rename(built)
    except subprocess.TimeoutExpired:
        pytest.skip(f"no Helm to test with: go install took over {BUILD_TIMEOUT} s")
    finally:
        shutil.rmtree(folder)
    return built
