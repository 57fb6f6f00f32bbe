"""LeaderWorkerSet: the replicas, if each has several pods. The leader of a group is node 0, which
serves.
"""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.kinds.pod import template
from penstock_ops.deploy.parts import optional, when


def leader_worker_set(facts: Facts) -> dict[str, object]:
    """The LeaderWorkerSet. All pods of a group start at once, because the leader is ready only when
    the other pods are there.
    """
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": facts.name, "labels": facts.labels()},
        "spec": {
            "replicas": when(facts.fixed, facts.replicas),
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
            },
            "leaderWorkerTemplate": {
                "size": facts.nodes,
                "restartPolicy": facts.restart_policy,
                "leaderTemplate": template(facts, leader=True),
                "workerTemplate": template(facts, leader=False),
                # One list for leader and workers, since LeaderWorkerSet 0.8.
                "volumeClaimTemplates": optional(facts.volumes.templates),
                "persistentVolumeClaimRetentionPolicy": when(
                    facts.volumes.has_templates,
                    {"whenDeleted": "Retain", "whenScaled": "Retain"},
                ),
            },
        },
    }
