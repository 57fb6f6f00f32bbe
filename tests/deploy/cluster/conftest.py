"""A pretended API server, and manifests to apply."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cli.main import main
from tests.deploy.cluster.confined import needs_privileges
from tests.deploy.cluster.fake import FakeServer
from tests.deploy.cluster.gpus import OnGpus
from tests.deploy.cluster.groups import StandIn
from tests.deploy.cluster.node import Node, pause
from tests.deploy.cluster.pods import Deployed
from tests.deploy.cluster.pretended import Pretended
from tests.deploy.conftest import HERE, Written
from tests.deploy.image import Images


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """The cluster of KUBECONFIG; kubectl is not there."""
    with FakeServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
        yield server


@pytest.fixture
def manifests(written: Written, tmp_path: Path) -> Path:
    """A Deployment of two replicas, with a claim that a Job fills."""
    written(HERE, "--pull", "org/name", "--name", "tiny")
    return tmp_path / "manifests"


def deploy(*words: object) -> int:
    """The status of `penstock deploy`."""
    return main(["deploy", *map(str, words)])


@pytest.fixture(scope="session")
def node(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A real node with our image."""
    needs_privileges()
    pause(tmp_path_factory.mktemp("pause") / "context", images)
    with Node() as made:
        made.load(images, "pause", "penstock")
        yield made


@pytest.fixture
def deployed(
    node: Node, tmp_path: Path, model_file: Path, request: pytest.FixtureRequest
) -> Iterator[Deployed]:
    """Manifests in a namespace that goes with the test."""
    space = namespace(request)
    made = Deployed(node, tmp_path, model_file, space)
    yield made
    # Pods end at once: what they would drain is of no interest any more.
    for pod in node.pods(space):
        node.delete_pod(space, pod["metadata"]["name"])
    node.call("DELETE", f"/api/v1/namespaces/{space}")


@pytest.fixture(scope="session")
def pretended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pretended]:
    """A cluster with pretended nodes, and LeaderWorkerSets."""
    with Pretended(tmp_path_factory.mktemp("pretended")) as made, StandIn(made):
        yield made


@pytest.fixture
def on_gpus(
    pretended: Pretended,
    tmp_path: Path,
    plan: Callable[[str], Path],
    request: pytest.FixtureRequest,
) -> Iterator[OnGpus]:
    """Manifests in a namespace, and nodes, that go with the test."""
    made = OnGpus(pretended, tmp_path, namespace(request), plan)
    yield made
    pretended.clear(made.namespace)


def namespace(request: pytest.FixtureRequest) -> str:
    return "t" + hashlib.blake2b(request.node.name.encode(), digest_size=4).hexdigest()
