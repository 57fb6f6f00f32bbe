"""Job: downloads the model into its claim, once. Credentials of the hub are in this pod only."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.resources import restricted, restricted_pod
from penstock_ops.deploy.settings import KERNELS, MODELS

HUB_SECRET = "hub"
"""Secret with the key `token`, for models that need one; it may be missing."""

DOWNLOAD = (
    f"import os, sys; os.makedirs('{MODELS}/{KERNELS}', exist_ok=True); "
    "from huggingface_hub import snapshot_download as get; "
    "get(sys.argv[1], local_dir=sys.argv[2], ignore_patterns=['original/*', 'metal/*'])"
)
"""Without the copies of the weights that some repositories keep for other programs: the claim has
no room for them. The directory of kernels is made here, as the kubelet's would be root's, and
first: servers that were applied with the Job mount it before there are weights."""


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
