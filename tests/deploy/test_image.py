"""The image: built without a network, run as a restricted pod runs it, asked by a client."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import openai
import pytest
from penstock.deploy.kinds.pull_job import DOWNLOAD

from tests.deploy.image import NAME, Container, Images, call
from tests.e2e.server import HANG

OWN = "opt/penstock"
"""What the image adds to its base."""


def test_the_containerfile_has_no_findings(repository: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: it has no package for this platform")
    call(hadolint, repository / "deploy/Containerfile")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_image_runs_as_nobody_and_adds_nothing_that_gives_rights(images: Images) -> None:
    config = images.config(NAME)
    assert config["User"] == "65532:65532"
    assert list(config["ExposedPorts"]) == ["8000/tcp"]
    root = images.root(NAME) / OWN
    files = [root, *root.rglob("*")]
    assert len(files) > 100
    for file in files:
        found = file.lstat()
        assert not found.st_mode & (stat.S_ISUID | stat.S_ISGID), f"{file} changes its user"
        assert found.st_uid == 0, f"{file} belongs to the user that runs"
        assert stat.S_ISLNK(found.st_mode) or not found.st_mode & stat.S_IWOTH, file


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_read_only_container_serves_and_drains(
    images: Images, model_file: Path, tmp_path: Path
) -> None:
    root, config = images.root(NAME), images.config(NAME)
    words = ("serve", "/models/model.gguf", "--port", "0", "--served-model-name", "tiny")
    limits = ("--kv-cache-memory-bytes", "67108864", "--max-model-len", "512")
    mounts = {model_file: "/models/model.gguf"}
    with Container(tmp_path / "serve", root, config, (*words, *limits), mounts) as container:
        line = container.said(", listening on http://")
        address = line.split(", listening on ", 1)[1].split()[0].rstrip(",")
        with openai.OpenAI(base_url=f"{address}/v1", api_key="-", timeout=HANG) as client:
            answer = client.completions.create(
                model="tiny", prompt="The capital of France is", max_tokens=4, temperature=0
            )
            assert answer.choices[0].text.strip(), "an empty answer"
        assert container.stop() == 0, container.log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_missing_model_is_named(images: Images, tmp_path: Path) -> None:
    root, config = images.root(NAME), images.config(NAME)
    with Container(tmp_path / "missing", root, config, ("serve", "/models/none"), {}) as container:
        assert container.wait() != 0
        assert "/models/none" in container.log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_image_has_what_a_pull_job_runs(images: Images, tmp_path: Path) -> None:
    """Without a network the download fails at the hub's address, not at an import."""
    root, config = images.root(NAME), images.config(NAME)
    config = {**config, "Entrypoint": ["python3", "-c", DOWNLOAD]}
    with Container(tmp_path / "pull", root, config, ("org/name", "model"), {}) as container:
        assert container.wait() != 0
        assert "ModuleNotFoundError" not in container.log
        assert "org/name" in container.log or "connect" in container.log.lower(), container.log
