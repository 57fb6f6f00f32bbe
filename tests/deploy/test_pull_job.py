"""The Job that downloads a model: its own words, run here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.deploy.conftest import HERE, Written
from tests.fakes.hub import fake_hub


def job_words(written: Written, directory: Path) -> list[str]:
    """What the Job for org/name runs, after `python3`, with `directory` in place of /models."""
    objects = written(HERE, "--pull", "org/name").values()
    (job,) = [made for made in objects if made["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return [word.replace("/models", str(directory)) for word in container["command"][1:]]


def test_a_pull_in_an_image_of_another_engine(written: Written, tmp_path: Path) -> None:
    """The Job's own words, run by a Python without Penstock and with a stand-in for
    huggingface_hub.
    """
    (tmp_path / "huggingface_hub.py").write_text(
        "import json\n"
        "def snapshot_download(*words, **options):\n"
        "    print(json.dumps([words, options]))\n"
    )
    words = job_words(written, tmp_path)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-S", *words]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [
        ["org/name"],
        {"local_dir": words[-1], "ignore_patterns": ["original/*", "metal/*"]},
    ]


def test_a_pull_in_an_image_of_penstock(written: Written, tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"w" * 5000}
    words = job_words(written, tmp_path)
    with fake_hub() as hub:
        hub.add("org/name", {**files, "original/model.safetensors": b"copy" * 5000})
        environ = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        subprocess.run([sys.executable, *words], cwd=tmp_path, env=environ, check=True)
    found = {path.name: path.read_bytes() for path in Path(words[-1]).iterdir() if path.is_file()}
    assert found.pop(".pulled") == b"org/name"
    assert found == files
    assert (tmp_path / ".kernels").is_dir()
