"""Job: downloads the model into its claim, once. Credentials of the hub are in this pod only."""

from __future__ import annotations

from penstock.deploy.kinds.claim import claim_name
from penstock.deploy.kinds.pod import USER
from penstock.deploy.settings import MODELS, Settings

HUB_SECRET = "hub"
"""Secret with the key `token`, for models that need one; it may be missing."""

DOWNLOAD = (
    "import sys; from huggingface_hub import snapshot_download as get; "
    "get(sys.argv[1], local_dir=sys.argv[2])"
)


def pull_job(settings: Settings) -> dict[str, object]:
    token = {"secretKeyRef": {"name": HUB_SECRET, "key": "token", "optional": True}}
    words = [
        "python3",
        "-c",
        DOWNLOAD,
        settings.volume.pull,
        settings.model,
    ]
    container: dict[str, object] = {
        "name": "pull",
        "image": settings.image,
        "command": words,
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "HF_TOKEN", "valueFrom": token}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": "model", "mountPath": MODELS},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    claim = {"claimName": claim_name(settings)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{settings.name}-pull", "labels": settings.labels("pull")},
        "spec": {
            "backoffLimit": 4,
            "template": {
                "metadata": {"labels": settings.labels("pull")},
                "spec": {
                    "restartPolicy": "OnFailure",
                    "enableServiceLinks": False,
                    "automountServiceAccountToken": False,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": USER,
                        "runAsGroup": USER,
                        "fsGroup": USER,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [container],
                    "volumes": [
                        {"name": "model", "persistentVolumeClaim": claim},
                        {"name": "tmp", "emptyDir": {}},
                    ],
                },
            },
        },
    }
