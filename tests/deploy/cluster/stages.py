"""What kwok does in place of kubelets: stages of nodes and pods, as its configuration has them.

Nothing runs in these pods. What becomes of one is chosen by the name of its image: `missing` and
`private` cannot be pulled, `crashing` ends after a second, others become ready. Reasons and
messages are a kubelet's (1.36.3 with containerd): tests/fixtures/kubernetes/causes has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

MISSING, PRIVATE, CRASHING = "missing", "private", "crashing"
API = "kwok.x-k8s.io/v1alpha1"

FIRST = ".status.containerStatuses[0]"
WAITING, RUNNING = f"{FIRST}.state.waiting.reason", f"{FIRST}.state.running.startedAt"
STARTED = f"{FIRST}.started"
IMAGE = '.spec.containers[0].image | split("@")[0] | split(":")[0] | split("/")[-1]'
DELETED = ".metadata.deletionTimestamp"

# Of Go's templates: text in quotes, and between << and >> what stands for a value that is no text.
NOW, BEGUN = "{{ Now }}", '{{ dig "state" "running" "startedAt" "" $was }}'
VARIABLES = """
{{ $container := index .spec.containers 0 }}
{{ $image := $container.image }}
{{ $was := dict }}
{{ with .status.containerStatuses }}{{ $was = index . 0 }}{{ end }}
{{ $address := .status.podIP }}
{{ if not $address }}
{{ $address = PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace }}
{{ end }}
{{ $error := printf "failed to pull and unpack image %q: failed to resolve reference %q"
   $image $image }}
"""
NOT_FOUND = '<<printf "rpc error: code = NotFound desc = %s: %s: not found" $error $image | Quote>>'
DENIED = (
    '<<printf "%s: pulling from host %s failed with status code [manifests 1]: 403 Forbidden" '
    '$error (splitList "/" $image | first) | Quote>>'
)
BACK_OFF = (
    '<<printf "back-off 10s restarting failed container=%s pod=%s_%s(%s)" '
    "$container.name .metadata.name .metadata.namespace .metadata.uid | Quote>>"
)

Test = bool | Sequence[str]
"""Whether a field is there, or the values that it may have."""


class Not(list[str]):
    """Values that a field may not have."""


def stages() -> list[dict[str, Any]]:
    """Each is the only one that fits a node, or a pod, in its state."""
    creating = {WAITING: ["ContainerCreating"]}
    loading = {RUNNING: True, STARTED: ["false"]}
    runs = {"running": {"startedAt": NOW}}
    last = {"exitCode": 1, "reason": "Error", "startedAt": BEGUN, "finishedAt": NOW}
    count, kept = "<<$was.restartCount>>", "<<toJson $was.lastState>>"
    return [
        stage("Node", "reports", {_condition("Ready"): Not(["True"])}, _node()),
        pod("created", {WAITING: False, RUNNING: False}, 0, _waits("ContainerCreating", "")),
        pod("missing", creating | {IMAGE: [MISSING]}, 300, _waits("ErrImagePull", NOT_FOUND)),
        pod("private", creating | {IMAGE: [PRIVATE]}, 300, _waits("ErrImagePull", DENIED)),
        pod("started", creating | {IMAGE: Not([MISSING, PRIVATE])}, 300, _container(state=runs)),
        pod(
            "ready",
            loading | {IMAGE: Not([CRASHING])},
            1000,
            _container(ready=True, state={"running": {"startedAt": BEGUN}}),
        ),
        pod(
            "crashed",
            loading | {IMAGE: [CRASHING]},
            1000,
            _waits("CrashLoopBackOff", BACK_OFF)
            | {"lastState": {"terminated": last}, "restartCount": "<<add1 $was.restartCount>>"},
        ),
        pod(
            "restarted",
            {WAITING: ["CrashLoopBackOff"]},
            3000,
            _container(state=runs) | {"lastState": kept, "restartCount": count},
        ),
        stage("Pod", "deleted", {DELETED: True}, None),
    ]


def pod(
    name: str, when: Mapping[str, Test], after: int, container: Mapping[str, Any]
) -> dict[str, Any]:
    """A stage of pods that are not ending, after milliseconds; `container` is the status of the
    only one.
    """
    ready = bool(container["ready"])
    begun = "waiting" not in container["state"] or "lastState" in container
    kinds = {"PodReadyToStartContainers": True, "Initialized": True}
    kinds |= {"Ready": ready, "ContainersReady": ready}
    status = {
        "phase": "Running" if begun else "Pending",
        "startTime": "{{ .status.startTime | default Now }}",
        "hostIP": "{{ NodeIPWith .spec.nodeName }}",
        "podIP": "{{ $address }}",
        "podIPs": [{"ip": "{{ $address }}"}],
        "conditions": [_true(kind) if holds else _unready(kind) for kind, holds in kinds.items()],
        "containerStatuses": [{"restartCount": 0, "lastState": {}, **container}],
    }
    return stage("Pod", name, {DELETED: False, **when}, status, after)


def stage(
    kind: str,
    name: str,
    when: Mapping[str, Test],
    status: Mapping[str, Any] | None,
    after: int = 0,
) -> dict[str, Any]:
    """A stage that gives a status, or without one deletes."""
    action: dict[str, Any] = {"delete": True}
    if status is not None:
        text = re.sub(r'"<<(.*?)>>"', _value, json.dumps(status))
        variables = VARIABLES if kind == "Pod" else ""
        action = {"statusTemplate": variables + _unescaped(text)}
    return {
        "apiVersion": API,
        "kind": "Stage",
        "metadata": {"name": f"{kind.lower()}-{name}"},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": [_expression(*each) for each in when.items()]},
            "delay": {"durationMilliseconds": after},
            "next": action,
        },
    }


def _expression(key: str, test: Test) -> dict[str, Any]:
    if isinstance(test, bool):
        return {"key": key, "operator": "Exists" if test else "DoesNotExist"}
    return {"key": key, "operator": "NotIn" if isinstance(test, Not) else "In", "values": [*test]}


def _value(found: re.Match[str]) -> str:
    return f"{{{{ {found[1]} }}}}"


def _unescaped(text: str) -> str:
    """Quotes within actions of a template as the template has them."""
    return re.sub(r"{{.*?}}", lambda found: str(json.loads(f'"{found[0]}"')), text)


def _condition(kind: str) -> str:
    return f'.status.conditions[] | select(.type == "{kind}") | .status'


def _true(kind: str) -> dict[str, Any]:
    gone = {"reason": None, "message": None}
    return {"type": kind, "status": "True", "lastTransitionTime": NOW, **gone}


def _unready(kind: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": "False",
        "lastTransitionTime": NOW,
        "reason": "ContainersNotReady",
        "message": "containers with unready status: [{{ $container.name }}]",
    }


def _container(*, ready: bool = False, **more: Any) -> dict[str, Any]:
    named = {"name": "{{ $container.name }}", "image": "{{ $image }}", "imageID": ""}
    return {**named, "ready": ready, "started": ready, **more}


def _waits(reason: str, message: str) -> dict[str, Any]:
    return _container(state={"waiting": {"reason": reason, "message": message}})


def _node() -> dict[str, Any]:
    """A node that begins to report; what it has was said when it was made."""
    addresses = {"InternalIP": "{{ NodeIP }}", "Hostname": "{{ NodeName }}"}
    conditions = {"Ready": ("True", "KubeletReady", "kubelet is posting ready status")}
    for kind in ("Memory", "Disk", "PID"):
        conditions[f"{kind}Pressure"] = ("False", f"KubeletHasNo{kind}Pressure", "no pressure")
    return {
        "addresses": [{"type": kind, "address": one} for kind, one in addresses.items()],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": "<<NodePort>>"}},
        "conditions": [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": NOW,
                "lastTransitionTime": NOW,
            }
            for kind, (status, reason, message) in conditions.items()
        ],
    }
