"""The image: built without a network, run as a restricted pod runs it, asked by a client."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import openai
import pytest

from penstock_ops.deploy.engines.penstock import PROGRAM
from penstock_ops.deploy.kinds.weights import DOWNLOAD
from tests.deploy.image import BASE, NAME, Container, Images, call
from tests.limits import HANG

OWN = "opt/penstock"
"""What the image adds to its base."""


def test_the_containerfile_has_no_findings(repository: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: it has no package for this platform")
    call(hadolint, repository / "deploy/Containerfile")


def test_both_variants_run_as_nobody_with_nothing_but_the_wheels(repository: Path) -> None:
    found = instructions(repository / "deploy/Containerfile")
    assert found[0] == ("ARG", f"BASE={BASE}")
    stages = [words for name, words in found if name == "FROM"]
    assert stages == ["${BASE} AS install", "${BASE}"]
    last = found[found.index(("FROM", "${BASE}")) :]
    assert ("COPY", "--from=install /opt/penstock /opt/penstock") in last
    assert not [words for name, words in last if name in {"RUN", "ADD", "VOLUME"}]
    assert [words for name, words in last if name == "USER"] == ["65532:65532"]
    (entry,) = (json.loads(words) for name, words in last if name == "ENTRYPOINT")
    assert entry == list(PROGRAM)
    installs = [words for name, words in found if name == "RUN"]
    assert len(installs) == 1, installs
    assert "--no-index --no-deps" in installs[0]


def test_variants_differ_in_wheels_and_base(repository: Path) -> None:
    cpu, cuda = (gathered(repository, f"VARIANT={name}") for name in ("cpu", "cuda"))
    assert cpu[0].endswith('.whl)"')
    assert cuda[0].endswith('.whl)[cuda]"')
    for download, _ in (cpu, cuda):
        assert "download -c constraints.txt --only-binary :all:" in download
    assert "--build-arg" not in cpu[1]
    assert cpu[1].split()[-3:] == ["-t", "penstock", "build/image"]
    assert cuda[1].split()[-3:] == ["-t", "penstock-cuda", "build/image"]
    # The compiler that Triton calls is in the base without "slim", of the same Python.
    assert f"--build-arg BASE={BASE.replace('-slim', '')} " in cuda[1]
    pins = (repository / "constraints.txt").read_text().splitlines()
    for package in ("torch", "triton", "PyYAML"):
        assert any(pin.startswith(f"{package}==") for pin in pins), package


def instructions(containerfile: Path) -> list[tuple[str, str]]:
    """Instructions and their words, without comments; no line of ours is continued."""
    lines = containerfile.read_text().splitlines()
    split = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return [(name, words) for name, _, words in split]


def gathered(repository: Path, *words: str) -> tuple[str, str]:
    """What `make image` would run: pip's command and the builder's."""
    said = call("make", "--dry-run", "image", "BUILDER=podman", *words, cwd=repository)
    (download,) = (line for line in said.splitlines() if " download " in line)
    (build,) = (line for line in said.splitlines() if line.startswith("podman build "))
    return download, build


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


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_variant_for_gpus_is_built_and_names_the_driver_that_is_missing(
    cuda_images: Images, model_file: Path, tmp_path: Path
) -> None:
    """No GPU is needed to see that torch with CUDA's libraries is imported, that Triton finds its
    compiler, and what a user reads on a node without a driver.
    """
    root, config = cuda_images.root(NAME), cuda_images.config(NAME)
    assert (root / "usr/bin/cc").exists(), "Triton calls a C compiler"
    told = "import torch, triton; print('CUDA', torch.version.cuda)"
    with Container(
        tmp_path / "import", root, {**config, "Entrypoint": ["python3", "-c"]}, (told,), {}
    ) as container:
        assert container.wait() == 0, container.log
        assert "CUDA 1" in container.log, "the wheel of torch is one without CUDA"
    words = ("serve", "/models/model.gguf", "--device", "cuda")
    mounts = {model_file: "/models/model.gguf"}
    with Container(tmp_path / "serve", root, config, words, mounts) as container:
        assert container.wait() != 0
        assert "driver" in container.log, container.log
