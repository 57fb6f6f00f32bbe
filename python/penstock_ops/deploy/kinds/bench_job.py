"""Job that runs `penstock bench` in the cluster, and the ConfigMap with its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from penstock_ops.deploy.engines.penstock import PROGRAM
from penstock_ops.deploy.facts import INSTANCE
from penstock_ops.deploy.probes import secret
from penstock_ops.deploy.quoting import kubernetes
from penstock_ops.deploy.resources import restricted, restricted_pod
from penstock_ops.deploy.settings import MODELS
from penstock_ops.deploy.volumes import claim_source

PLAN = PurePosixPath("/etc/penstock/plan.yaml")


@dataclass(frozen=True, slots=True)
class Bench:
    """A load, and the deployment that it is for."""

    name: str
    image: str
    plan: str
    """Content of plan.yaml."""
    words: Sequence[str]
    """Words behind `penstock bench`."""
    claim: str = ""
    """Claim with the model, mounted at MODELS, for its tokenizer; empty without one."""
    api_key_secret: str = ""
    pull_secrets: Sequence[str] = ()

    @property
    def job(self) -> str:
        return f"{self.name}-bench"

    @property
    def metadata(self) -> dict[str, object]:
        return {"name": self.job, "labels": self.labels}

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the deployment: its network policy lets these pods in."""
        return {
            "app.kubernetes.io/name": "penstock",
            INSTANCE: self.name,
            "app.kubernetes.io/component": "bench",
            "app.kubernetes.io/managed-by": "penstock-deploy",
        }


def bench_plan(bench: Bench) -> dict[str, object]:
    """The ConfigMap with the plan, whose load is run and whose predictions are compared."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": bench.metadata,
        "data": {PLAN.name: bench.plan},
    }


def bench_job(bench: Bench) -> dict[str, object]:
    """The Job. It runs once, also if it fails: a second load would be measured with other caches,
    and a failure is a result, for example a bound of the plan that does not hold.
    """
    volumes: dict[str, tuple[Mapping[str, object], dict[str, object]]] = {
        "plan": ({"configMap": {"name": bench.job}}, {"mountPath": str(PLAN.parent)}),
        "tmp": ({"emptyDir": {}}, {"mountPath": "/tmp"}),
    }
    if bench.claim:
        source = claim_source(bench.claim, read_only=True)
        volumes["model"] = (source, {"mountPath": MODELS, "readOnly": True})
    env: list[dict[str, object]] = [{"name": "HOME", "value": "/tmp"}]
    if bench.api_key_secret:
        env.append(secret("OPENAI_API_KEY", bench.api_key_secret, "api-key"))
    container = {
        "name": "bench",
        "image": bench.image,
        "command": [*PROGRAM, "bench", *map(kubernetes, bench.words)],
        "workingDir": "/tmp",
        "env": env,
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
        "securityContext": restricted(),
        "volumeMounts": [{"name": name, **mount} for name, (_, mount) in volumes.items()],
    }
    spec: dict[str, object] = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": restricted_pod(),
        "containers": [container],
        "volumes": [{"name": name, **source} for name, (source, _) in volumes.items()],
    }
    if bench.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in bench.pull_secrets]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": bench.metadata,
        "spec": {
            "backoffLimit": 0,
            "template": {"metadata": {"labels": bench.labels}, "spec": spec},
        },
    }
