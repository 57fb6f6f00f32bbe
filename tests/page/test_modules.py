"""The page's modules that need no browser, by `node --test`."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.limits import HANG

HERE = Path(__file__).parent
ASSETS = Path(__file__).parents[2] / "crates/server/page/assets"
PACKED = 100_000
"""Bytes that the whole page may have on its way to a browser that asks for gzip."""
OLDEST_NODE = 18


def test_modules() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("the page's modules are not tested: no node (apt-get install nodejs)")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    if int(version.stdout.strip().lstrip("v").split(".")[0]) < OLDEST_NODE:
        pytest.skip(f"the page's modules are not tested: node {OLDEST_NODE} or newer is needed")
    files = [str(file) for file in sorted(HERE.glob("*.test.mjs"))]
    done = subprocess.run(
        [node, "--test", *files], capture_output=True, text=True, check=False, timeout=HANG
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"^# pass (\d+)$", done.stdout, re.M) or re.search(
        r"^ℹ pass (\d+)$", done.stdout, re.M
    )
    assert passed is not None, done.stdout
    assert int(passed[1]) >= len(files), done.stdout


def test_the_page_is_small() -> None:
    packed = {file.name: len(gzip.compress(file.read_bytes())) for file in ASSETS.iterdir()}
    assert sum(packed.values()) < PACKED, packed
