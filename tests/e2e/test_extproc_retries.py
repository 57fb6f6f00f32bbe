"""What a picker's Envoy does by itself: retries along the ranking, and mirrors."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.echo import Echo
from tests.e2e.envoy import Envoy, Parts, endpoint
from tests.e2e.gateway import Gateway, Picker
from tests.e2e.server import eventually
from tests.e2e.test_extproc import backends, endings, is_empty


@pytest.fixture
def in_turn(tmp_path: Path) -> list[str]:
    profile = tmp_path / "profile.yaml"
    profile.write_text("{scorers: [{name: running}], picker: round-robin}")
    return ["--profile", str(profile)]


@pytest.mark.parametrize("status", [503, 0], ids=["refuses", "dies"])
def test_a_first_endpoint_that_fails_is_followed_by_the_next(
    tmp_path: Path, in_turn: list[str], status: int
) -> None:
    with ExitStack() as stack:
        full, free = stack.enter_context(Echo(status=status)), stack.enter_context(Echo())
        urls = [full.url, free.url]
        picker = stack.enter_context(Picker("--explain", *in_turn, *backends(urls)))
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, urls))
        client = stack.enter_context(envoy.client())
        for _ in range(4):
            answer = client.post("/v1/completions", json={"model": "echo"})
            assert answer.status_code == 200
            place = free.url.removeprefix("http://")
            assert answer.headers["x-penstock-decision"].startswith(f"{place}: ")
            assert answer.headers["x-penstock-replica"] == place
        assert full.seen
        assert len(free.seen) == 4
        assert endings(picker) == {"served": 4}
        eventually(lambda: is_empty(picker), "the end of all requests")


def test_a_mirror_of_envoy_goes_through_a_gateway_of_its_own(tmp_path: Path) -> None:
    with ExitStack() as stack:
        main, canary = stack.enter_context(Echo()), stack.enter_context(Echo(("next",)))
        file = tmp_path / "gateway.yaml"
        file.write_text(
            f"pools: [{{name: canary, backends: [{canary.url}]}}]\n"
            "models: [{name: echo, targets: [{pool: canary, model: next}]}]"
        )
        gateway = stack.enter_context(Gateway("--config", str(file)))
        picker = stack.enter_context(Picker("--backend", main.url))

        def change(parts: Parts) -> None:
            parts.route["request_mirror_policies"] = [{"cluster": "mirror"}]
            place = {"endpoints": [{"lb_endpoints": [endpoint(gateway.url)]}]}
            assignment = {"cluster_name": "mirror", **place}
            parts.clusters.append(
                {"name": "mirror", "type": "STATIC", "load_assignment": assignment}
            )

        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, [main.url], change))
        client = stack.enter_context(envoy.client())
        for number in range(4):
            body = {"model": "echo", "prompt": f"x{number}"}
            assert client.post("/v1/completions", json=body).json()["model"] == "echo"
        eventually(lambda: len(canary.seen) == 4, "the mirrored requests")
        bodies = sorted(seen.body for seen in canary.seen)
        assert bodies == [b'{"model":"next","prompt":"x%d"}' % number for number in range(4)]
        assert len(main.seen) == 4
