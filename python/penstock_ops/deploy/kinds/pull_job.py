"""Job that downloads the model to its claim once. Only its pod has credentials for the
model hub.
"""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.kinds.weights import download, job_name
from penstock_ops.deploy.parts import optional
from penstock_ops.deploy.resources import restricted_pod


def pull_job(facts: Facts) -> dict[str, object]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job_name(facts), "labels": facts.labels("pull")},
        "spec": {
            "backoffLimit": 4,
            "template": {
                "metadata": {"labels": facts.labels("pull")},
                "spec": {
                    "restartPolicy": "OnFailure",
                    "enableServiceLinks": False,
                    "automountServiceAccountToken": False,
                    "imagePullSecrets": optional(facts.pull_secrets),
                    "securityContext": restricted_pod(),
                    "containers": [download(facts)],
                    "volumes": [
                        {"name": "model", "persistentVolumeClaim": {"claimName": facts.claim}},
                        {"name": "tmp", "emptyDir": {}},
                    ],
                },
            },
        },
    }
