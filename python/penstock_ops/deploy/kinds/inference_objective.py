"""InferenceObjective: a named priority, which a request selects with the header
`x-gateway-inference-objective`.
"""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.kinds.inference_pool import GROUP
from penstock_ops.deploy.parts import Data


def inference_objective(facts: Facts, name: str, priority: Data) -> dict[str, object]:
    """The objective. Requests with a negative priority are the first to be rejected under load."""
    return {
        "apiVersion": "llm-d.ai/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": name, "labels": facts.labels("gateway")},
        "spec": {"priority": priority, "poolRef": {"group": GROUP, "name": facts.name}},
    }
