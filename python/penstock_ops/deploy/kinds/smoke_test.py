"""Pod of `helm test`: checks that the Service answers."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.resources import restricted, restricted_pod
from penstock_ops.deploy.settings import PORT

ASK = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=30).status)"


def smoke_test(facts: Facts) -> dict[str, object]:
    """The pod. It uses the engine's image, because the nodes already have it. /health needs no API
    key.
    """
    url = f"http://{facts.name}:{PORT}/health"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{facts.name}-test",
            "labels": facts.labels("test"),
            "annotations": {
                "helm.sh/hook": "test",
                "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "securityContext": restricted_pod(),
            "containers": [
                {
                    "name": "ask",
                    "image": facts.image,
                    "command": ["python3", "-c", ASK, url],
                    "securityContext": restricted(),
                }
            ],
        },
    }
