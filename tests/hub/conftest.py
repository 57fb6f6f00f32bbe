"""A hub on loopback, and an environment in which downloads go to a directory of the test."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config import HubSettings, hub_settings
from penstock.hub import http, transfer
from tests.fakes.hub import FakeHub, fake_hub

PIECE = 1 << 16
FOREIGN = (
    "HF_TOKEN",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "HUGGING_FACE_HUB_TOKEN",
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
)
CONTENT = random.Random(1).randbytes(20 * PIECE + 777)
"""A large file, of several pieces."""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as made:
        yield made


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "penstock"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces, and no pauses before further attempts."""
    monkeypatch.setattr(transfer, "PIECE", PIECE)
    monkeypatch.setattr(http, "PAUSE", 0.001)


@pytest.fixture
def settings(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> HubSettings:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    return hub_settings()
