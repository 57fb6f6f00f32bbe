"""Lint rules for pods. Each rule is one function that yields findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

from penstock.config.sections import TierConfig
from penstock.config.tiers import Tier
from penstock_ops.deploy.cluster.quantity import quantity, shown
from penstock_ops.deploy.names import REFERENCE_FORM, is_reference
from penstock_ops.deploy.objects import Pod, mapping, mappings

LONG_DELAY = 300
"""Seconds of initial delay above which a readiness or liveness probe notices too late."""
GPU = re.compile(r"^(nvidia|amd)\.com/gpu$")
RDMA = re.compile(r"^rdma/|mlnxnics$|/efa$")
SECRET = re.compile(r"(KEY|TOKEN|PASSWORD|SECRET)$")
GONE = {"NCCL_IB_CUDA_SUPPORT": "was removed in NCCL 2.4"}
DEFAULTS = {"NCCL_IB_DISABLE": "0", "NCCL_NVLS_ENABLE": "1"}
LEVELS = ("NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL")
DEBUGGING = ("NCCL_ALGO", "NCCL_MIN_CTAS", "NCCL_PROTO")
VLLM_IMAGE, VLLM_MODULE = "vllm-openai", "vllm.entrypoints.openai.api_server"
"""The image whose own command is vLLM's API server, and the server's module."""
RANKS = {
    "tp": ("--tp", "--tp-size", "--tensor-parallel-size", "-tp"),
    "pp": ("--pp", "--pp-size", "--pipeline-parallel-size", "-pp"),
}


Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a rule. An `error` means that pods do not serve, or not as intended; a `warning`,
    that something could be better.
    """

    rule: str
    severity: Severity
    text: str


Rule = Callable[[Pod], Iterator[Finding]]


def pod_rules() -> tuple[Rule, ...]:
    return (
        service_links,
        probes,
        asked_ports,
        endings,
        tokens,
        mounts,
        shared_memory,
        kv_tiers,
        devices,
        ranks,
        stages,
        environment,
        nccl,
        security,
        images,
    )


def service_links(pod: Pod) -> Iterator[Finding]:
    if pod.spec.get("enableServiceLinks") is not False:
        yield Finding(
            "service-links",
            "warning",
            "enableServiceLinks is not false: a Service named like the program sets variables "
            "that it reads (PENSTOCK_PORT, VLLM_PORT)",
        )


def probes(pod: Pod) -> Iterator[Finding]:
    for container in pod.containers:
        for kind in ("readinessProbe", "livenessProbe"):
            delay = mapping(container.get(kind)).get("initialDelaySeconds", 0)
            if isinstance(delay, int) and delay > LONG_DELAY:
                yield Finding(
                    "probe-delay",
                    "warning",
                    f"{kind} begins after {delay} s: a startupProbe sees a pod that is ready, or "
                    "has failed, before",
                )
        asked = mapping(container.get("livenessProbe"))
        if pod.role == "worker" and pod.size > 1 and "httpGet" in asked:
            yield Finding(
                "worker-probe",
                "error",
                "a worker's livenessProbe asks by HTTP, but only node 0 serves: it is killed",
            )


def asked_ports(pod: Pod) -> Iterator[Finding]:
    """Finds probes of a named port that the container does not have. Such a probe never
    succeeds.
    """
    for container in pod.containers:
        names = {port.get("name") for port in mappings(container.get("ports"))}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = mapping(container.get(kind))
            for way in ("httpGet", "tcpSocket"):
                port = mapping(probe.get(way)).get("port")
                if isinstance(port, str) and port not in names:
                    text = f"{kind} asks the port {port!r}, which the container does not have"
                    yield Finding("probe-port", "error", text)


def endings(pod: Pod) -> Iterator[Finding]:
    """Finds a termination grace period that is not longer than the preStop hook and the server's
    time to drain together, and servers that abort their open requests.
    """
    grace = pod.spec.get("terminationGracePeriodSeconds", 30)
    for container in pod.containers:
        words = words_of(container)
        drain, wait = _number(words, ("--shutdown-timeout",)), _pause(container)
        if drain and isinstance(grace, int) and grace <= wait + drain:
            yield Finding(
                "grace",
                "error",
                f"terminationGracePeriodSeconds {grace} is no more than preStop ({wait} s) and "
                f"--shutdown-timeout ({drain} s): the server is killed while it drains",
            )
        if not drain and _serves_vllm(container, words):
            yield Finding(
                "drain",
                "warning",
                "vLLM aborts its open requests at SIGTERM: give it --shutdown-timeout SECONDS",
            )


def _pause(container: Mapping[str, Any]) -> int:
    """Seconds that the preStop hook sleeps."""
    hook = mapping(mapping(container.get("lifecycle")).get("preStop"))
    seconds = mapping(hook.get("sleep")).get("seconds")
    if isinstance(seconds, int):
        return seconds
    words = pairwise(words_of(mapping(hook.get("exec"))))
    sleeps = (time for name, time in words if _program(name) == "sleep" and time.isdecimal())
    return int(next(sleeps, 0))


def _serves_vllm(container: Mapping[str, Any], words: Sequence[str]) -> bool:
    """Whether a container runs vLLM's API server, by its command or by the image's own."""
    image = _program(str(container.get("image") or "")).partition("@")[0].partition(":")[0]
    serves = any(_program(name) == "vllm" and verb == "serve" for name, verb in pairwise(words))
    own = image == VLLM_IMAGE and not container.get("command")
    return (serves or own or VLLM_MODULE in words) and "--headless" not in words


def _program(path: str) -> str:
    return path.rpartition("/")[2]


def tokens(pod: Pod) -> Iterator[Finding]:
    """Finds a gateway that watches pods but has no token for the API server."""
    for container in pod.containers:
        watches = any(word.startswith("--inference-pool") for word in words_of(container))
        if watches and pod.spec.get("automountServiceAccountToken") is False:
            yield Finding(
                "token", "error", "--inference-pool without the token of a service account"
            )


def mounts(pod: Pod) -> Iterator[Finding]:
    listed = {each.get("name") for each in mappings(pod.spec.get("volumes"))}
    volumes = listed | pod.claims
    for container in pod.containers:
        for mount in mappings(container.get("volumeMounts")):
            if mount.get("name") not in volumes:
                yield Finding(
                    "volume",
                    "error",
                    f"volumeMounts names {mount.get('name')!r}, the volumes are "
                    f"{', '.join(sorted(map(str, volumes))) or 'none'}",
                )


def shared_memory(pod: Pod) -> Iterator[Finding]:
    memory = {
        each.get("name")
        for each in mappings(pod.spec.get("volumes"))
        if mapping(each.get("emptyDir")).get("medium") == "Memory"
    }
    for container in pod.containers:
        own = {m.get("name") for m in _mounts(container) if m.get("mountPath") == "/dev/shm"}
        if _devices(container) > 1 and not own & memory:
            yield Finding(
                "shared-memory",
                "error",
                "several devices and no emptyDir of medium Memory at /dev/shm: 64 MiB are too "
                "little for the ranks of a pod",
            )


def kv_tiers(pod: Pod) -> Iterator[Finding]:
    """Finds KV tiers that exceed their memory or volume, or whose directory the pod cannot
    write.
    """
    volumes = {each.get("name"): each for each in mappings(pod.spec.get("volumes"))}
    for container in pod.containers:
        limits = mapping(mapping(container.get("resources")).get("limits"))
        for tier in tiers_in(words_of(container)):
            size = (tier.size_bytes or 0) // pod.size
            if tier.kind == "ram" and "memory" in limits and size >= quantity(limits["memory"]):
                text = f"a RAM tier of {shown('memory', Fraction(size))} in {limits['memory']}"
                yield Finding("kv-tier", "error", f"{text} of memory: the pod is killed")
            if tier.kind == "disk":
                mount = _mount_of(container, tier.path or "")
                volume = mapping(volumes.get(mount.get("name")))
                yield from _disk(container, tier.path or "", size, mount, volume)


def _disk(
    container: Mapping[str, Any],
    path: str,
    size: int,
    mount: Mapping[str, Any],
    volume: Mapping[str, Any],
) -> Iterator[Finding]:
    read_only = mapping(container.get("securityContext")).get("readOnlyRootFilesystem") is True
    if mount.get("readOnly") is True or (read_only and not mount):
        yield Finding("kv-tier", "error", f"the disk tier at {path} cannot be written there")
    limit = mapping(volume.get("emptyDir")).get("sizeLimit")
    if limit is not None and quantity(limit) < size:
        text = f"a disk tier of {shown('memory', Fraction(size))} in a volume of {limit}"
        yield Finding("kv-tier", "error", f"{text}: the pod is evicted when it is full")


def _mount_of(container: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The volume mount that contains the path, the innermost if there are several; empty if there
    is none.
    """
    own = [m for m in _mounts(container) if f"{path}/".startswith(f"{m.get('mountPath')}/")]
    return max(own, key=lambda mount: len(str(mount.get("mountPath"))), default={})


def tiers_in(words: Sequence[str]) -> list[TierConfig]:
    """The tiers in the `--kv-tier` flags of a command, without values that a server would
    reject.
    """
    found = []
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        value = value if equals else words[at + 1] if at + 1 < len(words) else ""
        if flag == "--kv-tier":
            with suppress(ValueError):
                found.append(Tier().parse(value))
    return found


def devices(pod: Pod) -> Iterator[Finding]:
    for container in pod.containers:
        resources = mapping(container.get("resources"))
        limits, requests = (mapping(resources.get(kind)) for kind in ("limits", "requests"))
        for name, count in {**limits, **requests}.items():
            special = GPU.search(name) or RDMA.search(name)
            if special and str(limits.get(name)) != str(requests.get(name, limits.get(name))):
                text = f"{name}: limit {limits.get(name)}, request {requests.get(name)} differ"
                yield Finding("devices", "error", text)
            elif GPU.search(name) and not str(count).isdecimal():
                yield Finding("devices", "error", f"{name}: {count!r} is no count")
        added = mapping(mapping(container.get("securityContext")).get("capabilities")).get("add")
        locks = "IPC_LOCK" in (added if isinstance(added, list) else [])
        if any(RDMA.search(name) for name in limits) and not locks:
            yield Finding("rdma", "error", "RDMA without the capability IPC_LOCK cannot pin memory")


def ranks(pod: Pod) -> Iterator[Finding]:
    """Finds a group whose number of pods or devices does not match the ranks in its command."""
    for container in pod.containers:
        words = words_of(container)
        nodes = _number(words, ("--nnodes",))
        if nodes is not None and nodes != pod.size:
            yield Finding(
                "group",
                "error",
                f"--nnodes {nodes} in a group of {pod.size}: the others never come",
            )
        sizes = {axis: _number(words, flags) for axis, flags in RANKS.items()}
        asked, given = (sizes["tp"] or 1) * (sizes["pp"] or 1), _devices(container) * pod.size
        if sizes["tp"] and given and asked != given:
            yield Finding(
                "ranks", "error", f"{asked} ranks are asked for, {given} devices are given"
            )


def stages(pod: Pod) -> Iterator[Finding]:
    """Finds pipeline stages that do not fit a group: each stage needs one pod, or several whole
    pods connected by RDMA.
    """
    for container in pod.containers:
        words = words_of(container)
        tp, pp = (_number(words, RANKS[axis]) or 1 for axis in ("tp", "pp"))
        if pod.size < 2 or tp * pp < pod.size:
            continue
        divides = pp % pod.size == 0 or (pod.size % pp == 0 and tp % (pod.size // pp) == 0)
        if "sglang.launch_server" in words and not divides:
            text = f"{pp} stages of {tp} ranks do not divide over {pod.size} pods"
            yield Finding("stages", "error", f"{text}: SGLang starts only some of them")
        limits = mapping(mapping(container.get("resources")).get("limits"))
        given = _devices(container)
        if 0 < given < tp and not any(RDMA.search(name) for name in limits):
            yield Finding(
                "fabric",
                "warning",
                f"a stage of {tp} ranks on pods of {given} devices without RDMA: each layer waits "
                "twice for the network of the pods",
            )


def environment(pod: Pod) -> Iterator[Finding]:
    for container in pod.containers:
        seen = set()
        for entry in mappings(container.get("env")):
            name, value = str(entry.get("name")), entry.get("value")
            if name in seen:
                yield Finding("env", "warning", f"{name} is set twice: the last one counts")
            seen.add(name)
            if value is not None and not isinstance(value, str):
                yield Finding("env", "error", f"{name}: {value!r} is not a text: quote it")
            if isinstance(value, str) and value and SECRET.search(name):
                yield Finding("secret", "error", f"{name} is in the manifest: use a secretKeyRef")


def nccl(pod: Pod) -> Iterator[Finding]:
    for container in pod.containers:
        for entry in mappings(container.get("env")):
            name, value = str(entry.get("name")), str(entry.get("value"))
            text = _nccl(name, value) or _topology(name, value, container)
            if text:
                yield Finding("nccl", "warning", f"{name}={value}: {text}")


def _nccl(name: str, value: str) -> str:
    if name in GONE:
        return f"{GONE[name]}: remove it"
    if DEFAULTS.get(name) == value:
        return "the default: remove it"
    if name in LEVELS and value.isdecimal():
        return "numbers are legacy: LOC, NVL, PIX, PXB, PHB or SYS"
    if name in DEBUGGING or (name == "NCCL_DEBUG" and value in ("INFO", "TRACE")):
        return "for measurements: do not keep it"
    if name == "NCCL_IB_GID_INDEX" and value != "-1":
        return "NCCL finds the index; a fixed one is from before 2.21"
    if name in ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA") and value[:1] not in "=^" and value:
        return f"a prefix, which others match too: ={value.replace(' ', '')}"
    return ""


def _topology(name: str, value: str, container: Mapping[str, Any]) -> str:
    """What is wrong with a topology file's place. NCCL prints one INFO line without the file, and
    goes on.
    """
    places = [str(mount.get("mountPath") or "?").rstrip("/") for mount in _mounts(container)]
    if name != "NCCL_TOPO_FILE" or not value:
        return ""
    if any(value == place or value.startswith(f"{place}/") for place in places):
        return ""
    return "no volume is mounted there: NCCL goes on without a file that the image lacks"


def security(pod: Pod) -> Iterator[Finding]:
    for container in pod.containers:
        context = mapping(container.get("securityContext"))
        if context.get("privileged") is True:
            yield Finding(
                "privileged", "warning", "privileged: RDMA needs the capability IPC_LOCK alone"
            )


def images(pod: Pod) -> Iterator[Finding]:
    for container in pod.containers:
        image = str(container.get("image") or "")
        if not image:
            yield Finding("image", "error", f"container {container.get('name')} has no image")
        elif not is_reference(image):
            yield Finding("image", "error", f"{image} is not {REFERENCE_FORM}")
        elif _changes(image):
            yield Finding("image", "warning", f"{image}: changes without a sign; name its digest")
    yield from _image_volumes(pod)


def _image_volumes(pod: Pod) -> Iterator[Finding]:
    """Finds faults in image volumes."""
    for volume in mappings(pod.spec.get("volumes")):
        if "image" not in volume:
            continue
        image = str(mapping(volume["image"]).get("reference") or "")
        if not image:
            text = f"volume {volume.get('name')}: an image without a reference"
            yield Finding("image-volume", "error", text)
        elif not is_reference(image):
            yield Finding("image-volume", "error", f"{image} is not {REFERENCE_FORM}")
        elif _changes(image):
            text = f"{image}: pods may have different weights; name its digest"
            yield Finding("image-volume", "warning", text)


def _changes(image: str) -> bool:
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    return "@" not in image and tag in ("", "latest")


def _devices(container: Mapping[str, Any]) -> int:
    limits = mapping(mapping(container.get("resources")).get("limits"))
    counts = [str(count) for name, count in limits.items() if GPU.search(name)]
    return sum(int(count) for count in counts if count.isdecimal())


def words_of(container: Mapping[str, Any]) -> list[str]:
    """The words of a container's command and arguments, including those inside a shell script."""
    parts = [*(container.get("command") or []), *(container.get("args") or [])]
    return [word for part in parts for word in str(part).replace(";", " ").split()]


def _number(words: Sequence[str], flags: Sequence[str]) -> int | None:
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        value = value if equals else words[at + 1] if at + 1 < len(words) else ""
        if flag in flags and value.isdecimal():
            return int(value)
    return None


def _mounts(container: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return mappings(container.get("volumeMounts"))
