"""Environment that Ray reads on import."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import Raw, prepare_ray_environment, ray_actor_environment, resolve
from penstock.core import InvalidValueError, PenstockError


def test_a_cluster_of_our_own_has_a_token_and_reports_nothing(tmp_path: Path) -> None:
    environ = {"RAY_AUTH_MODE": "disabled"}
    assert prepare_ray_environment(None, environ, tmp_path) == "local"
    token = environ.pop("RAY_AUTH_TOKEN")
    assert len(bytes.fromhex(token)) == 32
    assert environ == {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    assert not list(tmp_path.iterdir())


def test_a_second_cluster_in_a_process_has_the_token_of_the_first(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    prepare_ray_environment("local", environ, tmp_path)
    first = dict(environ)
    prepare_ray_environment("local", environ, tmp_path)
    assert environ == first


@pytest.mark.parametrize(
    ("given", "file", "mode"),
    [
        ({}, False, "disabled"),
        ({}, True, "token"),
        ({"RAY_AUTH_TOKEN": "x"}, False, "token"),
        ({"RAY_AUTH_TOKEN_PATH": "/x"}, False, "token"),
        ({"RAY_AUTH_MODE": "disabled"}, True, "disabled"),
        ({"RAY_AUTH_MODE": "token"}, False, "token"),
    ],
)
def test_the_token_of_a_cluster_that_is_joined_is_used(
    tmp_path: Path, given: dict[str, str], file: bool, mode: str
) -> None:
    if file:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("x")
    environ = {**given, "RAY_ADDRESS": "10.0.0.1:6379"}
    assert prepare_ray_environment(None, environ, tmp_path) == "10.0.0.1:6379"
    assert prepare_ray_environment("auto", environ, tmp_path) == "auto"
    assert environ["RAY_AUTH_MODE"] == mode
    assert environ.get("RAY_AUTH_TOKEN") == given.get("RAY_AUTH_TOKEN")


def test_ranks_get_no_key() -> None:
    environ = {"RUST_BACKTRACE": "1", "PENSTOCK_API_KEY": "secret", "HOME": "/home"}
    assert ray_actor_environment(environ) == {"RUST_BACKTRACE": "1"}


def flags(**texts: str) -> dict[str, Raw]:
    return {key: Raw("--" + key.replace("_", "-"), (text,)) for key, text in texts.items()}


def test_flags_of_ray_reach_the_engine() -> None:
    given = flags(
        distributed_executor_backend="ray",
        ray_address="auto",
        ray_channel="compiled-graph-tensors",
        ray_overlap_comm="true",
        placement="strict-spread",
    )
    parallel = resolve(given, "m", "m").engine.parallel
    assert (parallel.backend, parallel.ray_address, parallel.ray_channel) == (
        "ray",
        "auto",
        "compiled-graph-tensors",
    )
    assert (parallel.ray_overlap_comm, parallel.placement) == (True, "strict-spread")


@pytest.mark.parametrize(
    ("backend", "channel"),
    [("mp", "compiled-graph-tensors"), ("ray", "ring"), ("ray", "compiled-graph")],
)
def test_overlap_without_tensors_is_refused(backend: str, channel: str) -> None:
    given = flags(
        distributed_executor_backend=backend, ray_channel=channel, ray_overlap_comm="true"
    )
    with pytest.raises(PenstockError, match=r"--ray-overlap-comm needs .*compiled-graph-tensors"):
        resolve(given, "m", "m")


def test_unknown_placements_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="strict-pack"):
        resolve(flags(placement="scatter"), "m", "m")
