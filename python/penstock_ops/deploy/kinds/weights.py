"""How the weights get into a claim, and how pods notice that they are complete."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.resources import restricted
from penstock_ops.deploy.settings import KERNELS, MODELS

HUB_SECRET = "hub"
"""Name of an optional Secret, whose key `token` gives access to gated models on the hub."""
MARKER = ".pulled"
"""File in the model's directory with the name of the model, written when the download is
complete.
"""
TMP = {"name": "tmp", "mountPath": "/tmp"}

DOWNLOAD = f"""\
import os, sys, pathlib
os.makedirs('{MODELS}/{KERNELS}', exist_ok=True)
name, directory = sys.argv[1:]
marker = pathlib.Path(directory, '{MARKER}')
if marker.exists() and marker.read_text() == name:
    sys.exit()
marker.unlink(missing_ok=True)
try:
    from penstock.hub import pull
except ImportError:
    from huggingface_hub import snapshot_download
    snapshot_download(name, local_dir=directory, ignore_patterns=['original/*', 'metal/*'])
else:
    print(pull(name, None, pathlib.Path(directory)))
part = marker.with_name('{MARKER}.part')
part.write_text(name)
part.rename(marker)
"""
"""Program that downloads the weights, by Penstock's own client of the hub, or by the hub's package
in an image of another engine. It skips copies of the weights that some repositories have for other
programs, because the claim has no room for them. It first creates the directory for compiled
kernels, because the kubelet would create it as root. Its last step is the marker, by rename: a
container that ends at any time before leaves no marker, and one that starts afterwards has nothing
to do, even if the hub is away.
"""

WAIT = f"""\
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
name, directory, limit, job = sys.argv[1:]
marker, end = pathlib.Path(directory, '{MARKER}'), time.monotonic() + int(limit)
while not (marker.exists() and marker.read_text() == name):
    left = end - time.monotonic()
    if left <= 0:
        sys.exit(f'{{marker}} does not name {{name}} after {{limit}} s: kubectl logs job/{{job}}')
    print(f'waiting for Job {{job}}: no complete copy of {{name}} yet', flush=True)
    time.sleep(min(left, 10))
"""
"""Program that ends when the Job has written the marker, or fails after a limit. The first process
of a container ignores SIGTERM unless it handles it.
"""


def download(facts: Facts) -> dict[str, object]:
    """Container that downloads the weights to the volume `model`. It alone has credentials for the
    hub.
    """
    token = {"secretKeyRef": {"name": HUB_SECRET, "key": "token", "optional": True}}
    return {
        "name": "pull",
        "image": facts.image,
        "command": ["python3", "-c", DOWNLOAD, facts.pull, facts.model],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "HF_TOKEN", "valueFrom": token}],
        "securityContext": restricted(),
        "volumeMounts": [{"name": "model", "mountPath": MODELS}, TMP],
    }


def wait(facts: Facts) -> dict[str, object]:
    """Init container that waits for the Job, because a server that starts earlier would read a part
    of the weights.
    """
    words = [facts.pull, facts.model, facts.volumes.download_limit, job_name(facts)]
    return {
        "name": "weights",
        "image": facts.image,
        "command": ["python3", "-c", WAIT, *words],
        "securityContext": restricted(),
        "volumeMounts": [{"name": "model", "mountPath": MODELS, "readOnly": True}],
    }


def job_name(facts: Facts) -> str:
    return f"{facts.name}-pull"
