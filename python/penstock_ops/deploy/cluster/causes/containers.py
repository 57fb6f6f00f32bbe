"""Containers that do not start, or that end: images, configuration, exit statuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from penstock_ops.deploy.cluster.causes.cause import Cause, Stage
from penstock_ops.deploy.cluster.snapshot import Object, Snapshot, event_time, statuses
from penstock_ops.deploy.objects import mapping, mappings

SHOWN = 8
"""Maximum number of log lines shown."""
IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "ImageInspectError",
)
IMAGE_FAULTS = (
    (
        r"(?i)unauthorized|denied|forbidden|insufficient_scope|authentication required",
        "may not be pulled: no permission",
        "make an imagePullSecret, or correct the one that is there",
    ),
    (
        r"(?i)not found|manifest unknown|name unknown|InvalidImageName|invalid reference format",
        "does not exist",
        "correct the name, the tag or the digest",
    ),
    (r"never|Never", "is not on the node, and must not be pulled", "load it there"),
    (r"x509|certificate", "cannot be pulled: the registry's certificate is not trusted", ""),
    (
        r"no such host|dial tcp|timeout|connection refused|i/o|EOF|unreachable",
        "cannot be pulled: the registry does not answer",
        "",
    ),
    (r"no space left", "does not fit on the node's disk", "free space on the node"),
)
CONFIG_REASONS = ("CreateContainerConfigError",)
START_REASONS = ("CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun")
SIGNALS = {1: "SIGHUP", 2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL",
           11: "SIGSEGV", 15: "SIGTERM"}  # fmt: skip
MISSING_KEY = re.compile(r"couldn't find key (\S+) in (Secret|ConfigMap) (\S+)")
MISSING_OBJECT = re.compile(r'(secret|configmap)s? "([^"]+)" not found')


def of_container(pod: Object, snapshot: Snapshot) -> Cause | None:
    """The problem of the first faulty container of a pod, in the order in which containers run."""
    for status in statuses(pod):
        waiting = mapping(status["state"].get("waiting"))
        reason, said = str(waiting.get("reason", "")), str(waiting.get("message", ""))
        if reason in IMAGE_REASONS:
            return image(pod, status, reason, _pull_error(pod, snapshot, said))
        if reason in CONFIG_REASONS:
            return configuration(pod, said)
        if reason in START_REASONS:
            return _not_started(pod, status, said)
        if found := ended(pod, status, snapshot):
            return found
    return None


def title(pod: Object) -> str:
    return f"pod {pod['metadata']['name']}"


def _pull_error(pod: Object, snapshot: Snapshot, said: str) -> str:
    """The error message of the last image pull. While the kubelet waits before it pulls again, the
    container's status does not have it, but an event does.
    """
    failures = [
        str(event.get("message", ""))
        for event in snapshot.about(pod, "Failed", "ErrImageNeverPull", "InspectFailed")
        if "mage" in str(event.get("message", ""))
    ]
    details = [text for text in failures if "Error: " not in text] or failures
    return details[-1] if details and "Back-off" in said else said or (details or [""])[-1]


def image(pod: Object, status: Object, reason: str, said: str) -> Cause:
    own = status.get("image") or _image(pod, str(status.get("name")))
    name = next((image for image in _image_volumes(pod) if f'"{image}"' in said), own)
    # Remove the image's name, which could itself contain one of the keywords.
    text = f"{reason} {said.replace(str(name), '')}"
    known = (rest for pattern, *rest in IMAGE_FAULTS if re.search(pattern, text))
    words, remedy = next(known, ("cannot be pulled", ""))
    return Cause(Stage.IMAGE, title(pod), f"image {name} {words}", (f"kubelet: {said}",), remedy)


def _image(pod: Object, container: str) -> str:
    spec = mapping(pod.get("spec"))
    every = mappings(spec.get("initContainers")) + mappings(spec.get("containers"))
    return next((str(one.get("image")) for one in every if one.get("name") == container), "?")


def _image_volumes(pod: Object) -> list[str]:
    """Images that the pod mounts as volumes. If the pull of such an image fails, the kubelet
    reports this for a container.
    """
    volumes = mappings(mapping(pod.get("spec")).get("volumes"))
    return [str(mapping(each["image"]).get("reference")) for each in volumes if "image" in each]


def configuration(pod: Object, said: str) -> Cause:
    """The cause if an environment variable refers to a secret or configuration map that does not
    exist or lacks the key.
    """
    details = (f"kubelet: {said}",)
    if found := MISSING_KEY.search(said):
        key, kind, name = found[1], _kind(found[2]), found[3].rpartition("/")[2]
        remedy = f"kubectl edit {kind.replace(' ', '')} {name}"
        return Cause(Stage.CONFIG, title(pod), f"the {kind} {name} has no key {key}", (), remedy)
    if found := MISSING_OBJECT.search(said):
        kind, name = _kind(found[1]), found[2]
        made = "secret generic" if kind == "secret" else "configmap"
        remedy = f"kubectl create {made} {name} --from-literal {_key(pod, name)}=..."
        return Cause(Stage.CONFIG, title(pod), f"the {kind} {name} is missing", (), remedy)
    if "runAsNonRoot" in said:
        words = "its image runs as root, which the pod forbids"
        return Cause(Stage.CONFIG, title(pod), words, details, "build the image with a USER")
    return Cause(Stage.CONFIG, title(pod), "its configuration is wrong", details)


def _kind(text: str) -> str:
    return "secret" if text.lower() == "secret" else "config map"


def _key(pod: Object, name: str) -> str:
    """The key that an environment variable of the pod reads from the secret or configuration map
    `name`; `KEY` if there is none.
    """
    spec = mapping(pod.get("spec"))
    for container in mappings(spec.get("initContainers")) + mappings(spec.get("containers")):
        for variable in mappings(container.get("env")):
            for source in mapping(variable.get("valueFrom")).values():
                if mapping(source).get("name") == name and "key" in source:
                    return str(source["key"])
    return "KEY"


def volume(pod: Object, snapshot: Snapshot) -> Cause | None:
    """A volume that cannot be mounted, so that no container has started."""
    if not _is_creating(pod):
        return None
    events = snapshot.about(pod, "FailedMount", "FailedAttachVolume", "FailedMapVolume")
    if not events:
        return None
    said = str(events[-1].get("message", ""))
    if MISSING_OBJECT.search(said) or "references non-existent" in said:
        found = configuration(pod, said)
        return Cause(Stage.VOLUME, found.subject, found.summary, found.details, found.remedy)
    details = (f"kubelet: {said}",)
    if "hostPath type check failed" in said:
        path = said.rpartition("hostPath type check failed: ")[2]
        node = mapping(pod.get("spec")).get("nodeName", "?")
        return Cause(Stage.VOLUME, title(pod), f"on node {node}, {path}", details)
    return Cause(Stage.VOLUME, title(pod), "a volume cannot be mounted", details, lasting=False)


def _is_creating(pod: Object) -> bool:
    waits = [mapping(one["state"].get("waiting")).get("reason") for one in statuses(pod)]
    return not waits or all(why in ("ContainerCreating", "PodInitializing") for why in waits)


def _not_started(pod: Object, status: Object, said: str) -> Cause:
    words = f"container {status.get('name')} cannot start"
    return Cause(Stage.CONFIG, title(pod), words, (f"runtime: {said}",))


def ended(pod: Object, status: Object, snapshot: Snapshot) -> Cause | None:
    """A container whose last run failed and that is not ready again. None if a probe ended this
    run, because `probe` reports that cause.
    """
    last = last_end(status)
    if last is None or status.get("ready"):
        return None
    if killed_by_probe(pod, last, snapshot):
        return None
    name, container = str(pod["metadata"]["name"]), str(status.get("name"))
    first = any(
        one.get("name") == container
        for one in mappings(mapping(pod.get("status")).get("initContainerStatuses"))
    )
    kind = "init container" if first else "container"
    restarts = status.get("restartCount", 0)
    often = f", {restarts} restarts" if restarts else ""
    words = f"{kind} {container} {_how(last, pod, container)}{often}"
    log = end_of(snapshot.logs.get((name, container), ()))
    stage = Stage.INIT if first else Stage.ENDED
    # A single failure may be an accident, but a container in a crash loop will fail again.
    back = mapping(status["state"].get("waiting")).get("reason") == "CrashLoopBackOff"
    return Cause(stage, title(pod), words, log, _remedy(last), lasting=back or "terminated" in
                 status["state"])  # fmt: skip


def last_end(status: Object) -> Object | None:
    """The `terminated` state of the last run of a container; None if no run has ended, or if the
    last one succeeded.
    """
    now = mapping(status["state"].get("terminated"))
    last = now or mapping(mapping(status.get("lastState")).get("terminated"))
    if not last or (now and now.get("exitCode") == 0):
        return None
    return last


def killed_by_probe(pod: Object, last: Object, snapshot: Snapshot) -> Object | None:
    """The event of a probe that killed this run of the container; None if none did. Kubernetes
    merges identical events into one with a first and a last time, so the run's time must overlap.
    """
    begun, end = str(last.get("startedAt") or ""), str(last.get("finishedAt") or "~")
    for event in reversed(snapshot.about(pod, "Killing")):
        first = str(event.get("firstTimestamp") or event_time(event))
        is_probe = "probe" in str(event.get("message", ""))
        if is_probe and first <= end and event_time(event) >= begun:
            return event
    return None


def _how(last: Object, pod: Object, container: str) -> str:
    code, reason = last.get("exitCode"), last.get("reason")
    if reason == "OOMKilled":
        limit = _limit(pod, container)
        return f"was killed for memory{f': its limit is {limit}' if limit else ''}"
    signal = last.get("signal") or (code - 128 if isinstance(code, int) and code > 128 else 0)
    if signal:
        return f"was ended by {SIGNALS.get(signal, f'signal {signal}')} (exit status {code})"
    return f"ended with exit status {code}"


def _limit(pod: Object, container: str) -> str:
    spec = mapping(pod.get("spec"))
    for one in mappings(spec.get("initContainers")) + mappings(spec.get("containers")):
        if one.get("name") == container:
            return str(mapping(mapping(one.get("resources")).get("limits")).get("memory", ""))
    return ""


def _remedy(last: Object) -> str:
    if last.get("reason") == "OOMKilled":
        return "plan with less KV or fewer sequences, or give the pod more memory"
    return ""


def end_of(lines: Sequence[str]) -> tuple[str, ...]:
    """The last SHOWN lines of a log, as evidence."""
    return tuple(f"log: {line}" for line in lines[-SHOWN:])


Rule = Callable[[Object, Snapshot], Cause | None]
