"""Job that downloads the model to its claim once. Only its pod has credentials for the
model hub.
"""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.resources import restricted, restricted_pod
from penstock_ops.deploy.settings import KERNELS, MODELS

HUB_SECRET = "hub"
"""Name of an optional Secret, whose key `token` gives access to gated models on the hub."""

DOWNLOAD = f"""\
import os, sys, pathlib
os.makedirs('{MODELS}/{KERNELS}', exist_ok=True)
name, directory = sys.argv[1:]
try:
    from penstock.hub import pull
except ImportError:
    from huggingface_hub import snapshot_download
    snapshot_download(name, local_dir=directory, ignore_patterns=['original/*', 'metal/*'])
else:
    print(pull(name, None, pathlib.Path(directory)))
"""
"""Program of the Job. It uses Penstock's own client of the hub, or the hub's package in an image of
another engine. It skips copies of the weights that some repositories have for other programs,
because the claim has no room for them. It first creates the directory for compiled kernels, because
the kubelet would create it as root, and because servers applied together with the Job mount it
before the weights are there.
"""


def pull_job(facts: Facts) -> dict[str, object]:
    token = {"secretKeyRef": {"name": HUB_SECRET, "key": "token", "optional": True}}
    words = [
        "python3",
        "-c",
        DOWNLOAD,
        facts.pull,
        facts.model,
    ]
    container: dict[str, object] = {
        "name": "pull",
        "image": facts.image,
        "command": words,
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "HF_TOKEN", "valueFrom": token}],
        "securityContext": restricted(),
        "volumeMounts": [
            {"name": "model", "mountPath": MODELS},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    claim = {"claimName": facts.claim}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{facts.name}-pull", "labels": facts.labels("pull")},
        "spec": {
            "backoffLimit": 4,
            "template": {
                "metadata": {"labels": facts.labels("pull")},
                "spec": {
                    "restartPolicy": "OnFailure",
                    "enableServiceLinks": False,
                    "automountServiceAccountToken": False,
                    "securityContext": restricted_pod(),
                    "containers": [container],
                    "volumes": [
                        {"name": "model", "persistentVolumeClaim": claim},
                        {"name": "tmp", "emptyDir": {}},
                    ],
                },
            },
        },
    }
