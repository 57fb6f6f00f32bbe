"""InferencePool: the serving pods, and the endpoint picker that chooses a pod for each request."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts, FrontFacts
from penstock_ops.deploy.settings import PICKER_PORT, PORT

GROUP = "inference.networking.k8s.io"


def inference_pool(facts: Facts, front: FrontFacts) -> dict[str, object]:
    """The pool. By default its failure mode is closed: if the picker does not answer, the request
    fails, because an arbitrary pod may be the wrong one.
    """
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "InferencePool",
        "metadata": {"name": facts.name, "labels": facts.labels("gateway")},
        "spec": {
            "selector": {"matchLabels": facts.selector()},
            "targetPorts": [{"number": PORT}],
            "endpointPickerRef": {
                "name": facts.gateway,
                "port": {"number": PICKER_PORT},
                "failureMode": front.failure_mode,
            },
        },
    }
