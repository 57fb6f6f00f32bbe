"""Writes a plan as a Docker Compose file with all its replicas on one host."""

from __future__ import annotations

import shlex

from penstock.core import InvalidValueError, PenstockError
from penstock_ops.deploy.emit import dump
from penstock_ops.deploy.engines import pods
from penstock_ops.deploy.quoting import compose as quoted
from penstock_ops.deploy.quoting import plain
from penstock_ops.deploy.resources import USER, memory, shared_memory_size
from penstock_ops.deploy.settings import METRICS_PORT, MODELS, PORT, SHUTDOWN, Settings

LAST_PORT = 65535
PATHS = {"http": "/health", "metrics": "/ready"}
"""Path that tells whether a server is ready, by the name of the port that Prometheus scrapes."""
PROBE = "import urllib.request as r; r.urlopen('http://127.0.0.1:{port}{path}', timeout=5)"


def compose(settings: Settings, first_port: int) -> str:
    """The Compose file: a service for each replica, on consecutive ports of the host from
    `first_port` on.
    """
    if settings.nodes > 1:
        raise PenstockError(
            f"a replica of this plan is on {settings.nodes} hosts: Compose has one; see "
            "`penstock deploy k8s` and `penstock deploy slurm`"
        )
    replicas = int(settings.choice["replicas"])
    _check_room(settings, replicas, first_port)
    services = {
        settings.name if replicas == 1 else f"{settings.name}-{i}": _service(
            settings, first_port + i, i
        )
        for i in range(replicas)
    }
    return _head(settings) + dump({"services": quoted(services)})


def _check_room(settings: Settings, replicas: int, first_port: int) -> None:
    """Raise PenstockError if one host has too few devices or ports."""
    needed, there = replicas * settings.on_pod, int(settings.plan["target"]["per_node"])
    if settings.has_devices and needed > there:
        raise PenstockError(
            f"the plan's {replicas} replicas need {needed} devices, and a host of it has {there}: "
            "see `penstock deploy k8s` and `penstock deploy slurm`"
        )
    if not 1 <= first_port <= LAST_PORT + 1 - replicas:
        raise InvalidValueError(
            "--port", first_port, f"1 to {LAST_PORT + 1 - replicas}, for {replicas} replicas"
        )


def _head(settings: Settings) -> str:
    """Comment for the top of the file, with a command to run first. Without it, Docker would create
    the disk tier's directory as root, not as Penstock's user.
    """
    if not settings.disk:
        return ""
    directory = shlex.quote(settings.disk)
    return f"# Before the first start: install -d -m 0700 -o {USER} -g {USER} {directory}\n"


def _weights(settings: Settings) -> dict[str, object]:
    """Mount of the weights, in Compose's long syntax. In the short syntax a colon in the path would
    end it.
    """
    source = settings.volume.host_path
    return {"type": "bind", "source": source, "target": MODELS, "read_only": True}


def _disk(settings: Settings) -> list[object]:
    """Mount of the directory of the disk tier, which all replicas share; empty without such
    a tier.
    """
    path = settings.disk
    return [{"type": "bind", "source": path, "target": path}] if path else []


def _service(settings: Settings, port: int, replica: int) -> dict[str, object]:
    engine = pods(settings)
    command = list(map(plain, engine.command(settings, True)))
    asked = METRICS_PORT if engine.metrics_port == "metrics" else PORT
    probe = PROBE.format(port=asked, path=PATHS[engine.metrics_port])
    found: dict[str, object] = {
        "image": settings.image,
        "entrypoint": command,
        "ports": [f"127.0.0.1:{port}:{PORT}"],
        "environment": _environment(settings),
        "volumes": [_weights(settings), *_disk(settings)],
        # Triton stores compiled kernels in /tmp and executes them there.
        "tmpfs": ["/tmp:exec" if settings.has_devices else "/tmp"],
        "shm_size": shared_memory_size(settings),
        "ulimits": {"memlock": -1, "nofile": 65536},
        "restart": "unless-stopped",
        "stop_grace_period": f"{SHUTDOWN + 10}s",
        "security_opt": ["no-new-privileges:true"],
        "cap_drop": ["ALL"],
        "healthcheck": {
            "test": ["CMD", "python3", "-c", probe],
            "interval": "10s",
            "timeout": "10s",
            "retries": 3,
            "start_period": f"{2 * settings.load_seconds}s",
        },
    }
    if not engine.root:
        found |= {"user": f"{USER}:{USER}", "read_only": True}
    return found | _devices(settings, replica)


def _environment(settings: Settings) -> list[str]:
    """Environment variables as NAME=VALUE. A secret is only a NAME, so that Compose takes its value
    from the environment in which it is started.
    """
    variables = pods(settings).environment(settings, True)
    return [
        f"{entry['name']}={entry['value']}" if "value" in entry else str(entry["name"])
        for entry in variables
    ]


def _devices(settings: Settings, replica: int) -> dict[str, object]:
    """The devices of a replica: consecutive numbers, starting after those of the replica before it.
    Without devices, the replica's memory limit.
    """
    if not settings.has_devices:
        return {"mem_limit": f"{memory(settings)}m"}
    if not str(settings.plan["target"]["resource"]).startswith("nvidia"):
        # Docker cannot select individual AMD devices, so each replica sees all of them. Users can
        # set ROCR_VISIBLE_DEVICES to restrict a replica.
        return {"devices": ["/dev/kfd", "/dev/dri"], "group_add": ["video"]}
    first = replica * settings.on_pod
    ids = [str(i) for i in range(first, first + settings.on_pod)]
    reserved = {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [reserved]}}}}
