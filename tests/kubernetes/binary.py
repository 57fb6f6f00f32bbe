"""The binary of the test bed: etcd and kube-apiserver, built from the Go module proxy."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "bed"
VERSION = "1.36.3"
"""The version of Kubernetes in `bed/go.mod`."""

CACHE = Path.home() / ".cache/penstock/kubernetes"
BUILD_TIMEOUT = 1800


def binary() -> Path:
    """The built binary, from the cache if it is there; the test is skipped, with the reason, where
    it cannot be built.
    """
    digest = hashlib.sha256()
    for file in sorted(SOURCE.iterdir()):
        digest.update(file.read_bytes())
    built = CACHE / f"bed-{VERSION}-{digest.hexdigest()[:12]}"
    if built.is_file():
        return built
    if shutil.which("go") is None:
        pytest.skip("no API server to test with: Go is missing, which builds it")
    work = CACHE / f"build-{os.getpid()}"
    shutil.copytree(SOURCE, work)
    try:
        _go(work, "mod", "tidy")
        version = f"-X k8s.io/component-base/version.gitVersion=v{VERSION}"
        _go(work, "build", "-p", "2", "-ldflags", f"-s -w {version}", "-o", "bed", ".")
        (work / "bed").rename(built)
    finally:
        shutil.rmtree(work)
    return built


def _go(work: Path, *words: str) -> None:
    try:
        done = subprocess.run(
            ["go", *words],
            cwd=work,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"},
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"no API server to test with: go {words[0]} took over {BUILD_TIMEOUT} s")
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        pytest.skip(f"no API server to test with: go {words[0]}: {last[0]}")
