"""Starts on a real node: from a model in an image, within the time that the plan has for them."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.cluster.node import Node
from tests.deploy.cluster.pods import Deployed
from tests.deploy.cluster.registry import Registry
from tests.deploy.conftest import of_a_start
from tests.deploy.image import Images

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

FOLDER = "smol"
"""The model's directory in its image."""
SILENT = ["python3", "-c", "import time; time.sleep(3600)"]
"""A server that never answers."""


@pytest.fixture(scope="module")
def weights(
    node: Node, images: Images, model_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """An image on the node that has the model and nothing else."""
    folder = tmp_path_factory.mktemp("weights") / "context"
    folder.mkdir()
    # The pod's user is another than the one who owns it.
    shutil.copy(model_file, folder / model_file.name)
    (folder / model_file.name).chmod(0o444)
    made = folder / "Containerfile"
    made.write_text(f"FROM scratch\nCOPY {model_file.name} /{FOLDER}/\n")
    images.build(made, folder, "weights")
    node.load(images, "weights")
    return "localhost/weights:1"


def times(**seconds: int) -> dict[str, Any]:
    """Planned times of a start, by the kind of volume."""
    start = of_a_start(600)
    for kind, planned in seconds.items():
        start["weights"][kind]["seconds"] = planned
    return start


def window(pod: dict[str, Any]) -> int:
    """Seconds for which the kubelet waits for the first answer."""
    probe = pod["spec"]["containers"][0]["startupProbe"]
    return int(probe["failureThreshold"] * probe["periodSeconds"])


def test_a_model_in_an_image_is_served(
    deployed: Deployed, weights: str, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{FOLDER}/{model_file.name}"
    words = ("--image-volume", weights, "--model-path", path)
    deployed.write(*words, start=times(host_path=50, image=70))
    assert deployed.run("apply") == 0, capsys.readouterr()
    assert deployed.complete(deployed.url()).startswith(" Paris")
    (pod,) = deployed.pods()
    assert window(pod) == 140
    kinds = {kind for volume in pod["spec"]["volumes"] for kind in volume if kind != "name"}
    assert kinds == {"image", "emptyDir"}
    # What the process sees, and what it may do there.
    process = Path(f"/proc/{deployed.node.processes(pod)[0]}")
    mounts = (process / "mounts").read_text().splitlines()
    (mount,) = (line.split() for line in mounts if " /models " in line)
    assert "ro" in mount[3].split(",")
    inside = process / "root/models" / path
    assert inside.stat().st_size == model_file.stat().st_size


def test_an_image_of_weights_that_does_not_exist(deployed: Deployed) -> None:
    with Registry(deployed.node.place.host) as registry:
        deployed.node.trust(registry.name)
        image = f"{registry.name}/weights:1"
        deployed.write("--image-volume", image)
        deployed.run("apply", "--no-wait")
        deployed.cause(f"image {image} does not exist")


def test_a_server_that_never_answers_has_twice_the_planned_time(deployed: Deployed) -> None:
    deployed.write(start=times(host_path=10))
    file = deployed.folder / "deployment.yaml"
    manifest = yaml.safe_load(file.read_text())
    spec = manifest["spec"]["template"]["spec"]
    spec["containers"][0]["command"] = SILENT
    # What ignores SIGTERM is killed when this time is over.
    spec["terminationGracePeriodSeconds"] = 6
    file.write_text(yaml.safe_dump(manifest))
    deployed.run("apply", "--no-wait")
    deployed.cause("container engine was ended by its startup probe", "(planned: 10 s)")
    (pod,) = deployed.pods()
    assert window(pod) == 20
    last = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
    begun, ended = (datetime.fromisoformat(last[key]) for key in ("startedAt", "finishedAt"))
    # The first question comes within a period, the others one period apart.
    assert (ended - begun).total_seconds() >= 10
