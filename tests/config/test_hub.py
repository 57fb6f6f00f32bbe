"""Settings of the hub, from the variables of its own tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import hub_cache, hub_settings
from penstock.core import InvalidValueError


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({}, Path.home() / ".cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/c"}, Path("/c/huggingface/hub")),
        ({"XDG_CACHE_HOME": "/c", "HF_HOME": "/h"}, Path("/h/hub")),
        ({"HF_HOME": "/h", "HUGGINGFACE_HUB_CACHE": "/old"}, Path("/old")),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "~/x"}, Path.home() / "x"),
    ],
)
def test_the_cache(environ: dict[str, str], cache: Path) -> None:
    assert hub_cache(environ) == cache
    assert hub_settings({"HF_HOME": "/none", **environ}).cache == hub_cache(
        {"HF_HOME": "/none", **environ}
    )


def test_defaults(tmp_path: Path) -> None:
    made = hub_settings({"HF_HOME": str(tmp_path)})
    assert made.endpoint == "https://huggingface.co"
    assert (made.token, made.offline, made.timeout) == (None, False, 10.0)
    assert (dict(made.proxies), made.no_proxy, made.certificates) == ({}, (), None)


def test_the_token_of_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path)}
    (tmp_path / "token").write_text("from-file\n")
    assert hub_settings(environ).token == "from-file"
    assert hub_settings({**environ, "HF_TOKEN": " own "}).token == "own"
    assert hub_settings({**environ, "HUGGING_FACE_HUB_TOKEN": "old"}).token == "old"
    assert hub_settings({**environ, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}).token is None
    (tmp_path / "other").write_text("other")
    assert hub_settings({**environ, "HF_TOKEN_PATH": str(tmp_path / "other")}).token == "other"
    (tmp_path / "token").write_bytes(b"\xff")
    assert hub_settings(environ).token is None


@pytest.mark.parametrize("token", ["a\r\nX-Evil: 1", "tökén", "a\x00"])
def test_a_token_that_is_none_is_not_shown(token: str) -> None:
    with pytest.raises(InvalidValueError, match="HF_TOKEN") as refused:
        hub_settings({"HF_TOKEN": token})
    assert token not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_ENDPOINT", "mirror.example"),
        ("HF_ENDPOINT", "file:///x"),
        ("HF_ENDPOINT", "https://"),
        ("HF_ENDPOINT", "https://host:port"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "0"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "soon"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "-1"),
    ],
)
def test_values_that_are_none(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=name):
        hub_settings({"HF_HOME": str(tmp_path), name: value})


def test_mirrors_proxies_and_certificates(tmp_path: Path) -> None:
    made = hub_settings(
        {
            "HF_HOME": str(tmp_path),
            "HF_ENDPOINT": "https://mirror.example/hub/",
            "TRANSFORMERS_OFFLINE": "yes",
            "HF_HUB_DOWNLOAD_TIMEOUT": "30",
            "ALL_PROXY": "http://all:1",
            "https_proxy": "http://low:2",
            "HTTPS_PROXY": "http://high:3",
            "NO_PROXY": "A.example, .b.example,,",
            "REQUESTS_CA_BUNDLE": "/ca.pem",
        }
    )
    assert made.endpoint == "https://mirror.example/hub"
    assert made.offline
    assert made.timeout == 30.0
    assert dict(made.proxies) == {"http": "http://all:1", "https": "http://low:2"}
    assert made.no_proxy == ("a.example", ".b.example")
    assert made.certificates == "/ca.pem"
