"""Writes a plan for hosts without Kubernetes: as a systemd unit or a Slurm batch script."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from penstock.core import PenstockError
from penstock_ops.deploy.engines import pods
from penstock_ops.deploy.engines.penstock import PROGRAM
from penstock_ops.deploy.quoting import plain, shell, unit, unit_program, unit_value
from penstock_ops.deploy.settings import SHUTDOWN, Settings

HERE = "127.0.0.1"
NODE_FLAGS = ("--nnodes", "--node-rank", "--master-addr", "--distributed-timeout-seconds")
UNIT = """\
# {title}, made by `penstock deploy systemd`. Install it as /etc/systemd/system/{name}.service.
[Unit]
Description={title}
After=network-online.target
Wants=network-online.target

[Service]
{start}
ExecStart={command}
{variables}# Keys and other settings that must not be read by every user.
EnvironmentFile=-/etc/{name}/environment
Restart=on-failure
RestartSec=2
TimeoutStopSec={stop}
LimitNOFILE=65536
LimitMEMLOCK=infinity

DynamicUser=yes
StateDirectory={name}
CacheDirectory={name}
Environment=HOME=/var/lib/{name} XDG_CACHE_HOME=/var/cache/{name}
RuntimeDirectory={name}
Environment=XDG_RUNTIME_DIR=/run/{name}
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictSUIDSGID=yes
LockPersonality=yes

[Install]
WantedBy=multi-user.target
"""

NOTIFIED = """\
Type=notify
# Twice the planned time of loading.
TimeoutStartSec={seconds}"""
"""How Penstock starts: it tells systemd when it serves. Without that, a time limit of the start has
no effect.
"""

PROGRAMS = {
    "penstock": "/opt/penstock/bin/penstock",
    "vllm": "/opt/vllm/bin/vllm",
    "sglang": "/opt/sglang/bin/python3",
}
"""Default program of each engine. systemd looks up other than absolute paths in its own list of
directories, where no virtual environment is.
"""

BATCH = """\
#!/usr/bin/env bash
# {title}, made by `penstock deploy slurm`: one replica. Submit it {replicas} times for the plan's.
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
# All memory of each node, however much of it a processor has by default.
#SBATCH --mem=0
{devices}#SBATCH --signal=TERM@{stop}
set -euo pipefail

# Node 0 is the first of the job; it serves at port 8000.
MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER
{token}{variables}# A variable for each node is known in its task alone.
srun --kill-on-bad-exit=1 bash -c {command}
"""

TOKEN = """\
# The secret that all nodes share, readable by its owner alone.
: "${PENSTOCK_CLUSTER_TOKEN:?set it to a secret, such as $(openssl rand -hex 32)}"
export PENSTOCK_CLUSTER_TOKEN
"""


def systemd(settings: Settings, program: str | None) -> str:
    """The systemd unit of one replica; without a `program` it starts the engine's of PROGRAMS.
    PenstockError if the replica needs several hosts, or if its disk tier is outside the directory
    that the unit may write to.
    """
    if settings.nodes > 1:
        raise PenstockError(
            f"a replica of this plan is on {settings.nodes} hosts: a unit starts one; see "
            "`penstock deploy slurm`"
        )
    cache = f"/var/cache/{settings.name}"
    if settings.disk and not settings.disk.startswith(f"{cache}/"):
        raise PenstockError(
            f"--kv-tier disk:{settings.disk}: the unit has no login, and writes to {cache} alone: "
            f"give a directory of it, {cache}/kv, on a disk that is mounted at "
            f"/var/cache/private/{settings.name}"
        )
    own, engine = settings.engine == "penstock", pods(settings)
    words = engine.command(settings, True)[len(PROGRAM) if own else 1 :]
    program = PROGRAMS[settings.engine] if program is None else program
    notified = NOTIFIED.format(seconds=2 * settings.load_seconds)
    return UNIT.format(
        title=unit_value(_title(settings)),
        name=settings.name,
        start=notified if own else "Type=exec",
        command=" ".join((unit_program(program), *map(unit, words))),
        variables="".join(f"Environment={each}\n" for each in _variables(settings)),
        stop=SHUTDOWN + 10,
    )


def slurm(settings: Settings) -> str:
    """The Slurm batch script of one replica."""
    leader, other = (
        " ".join(map(shell, pods(settings).command(settings, leader))) for leader in (True, False)
    )
    script = f"exec {leader}"
    if other != leader:
        script = f'if [ "$SLURM_NODEID" = 0 ]; then exec {leader}; else exec {other}; fi'
    if settings.disk:
        script = f"mkdir -p -m 0700 {shlex.quote(settings.disk)} && {script}"
    wanted = f"#SBATCH --gpus-per-node={settings.on_pod}\n" if settings.has_devices else ""
    secret = settings.engine == "penstock" and settings.nodes > 1
    return BATCH.format(
        title=_title(settings),
        name=settings.name,
        replicas=settings.choice["replicas"],
        nodes=settings.nodes,
        devices=wanted,
        stop=SHUTDOWN,
        token=TOKEN if secret else "",
        variables="".join(f"export {each}\n" for each in _variables(settings)),
        command=shlex.quote(script),
    )


def local_command(settings: Settings, port: int, metrics_port: int) -> list[str]:
    """The command of the plan's only replica on this machine, listening on loopback. PenstockError
    if the plan has several replicas, or one on several hosts.
    """
    if settings.nodes > 1 or settings.choice["replicas"] > 1:
        raise PenstockError(
            f"the plan has {settings.choice['replicas']} replicas on {settings.nodes} hosts each: "
            "one on one host is started here; name its hosts to `penstock up`, or see `penstock "
            "deploy k8s` and `penstock deploy slurm`"
        )
    words = list(map(plain, pods(settings).command(settings, True)))
    if settings.engine == "penstock":
        # -P: a directory named penstock in the working directory must not shadow the package.
        words[: len(PROGRAM)] = [sys.executable, "-P", *PROGRAM[1:]]
    return _listening(words, HERE, port, metrics_port)


def node_flags(settings: Settings, host: str, port: int, metrics_port: int) -> list[str]:
    """The flags of `penstock serve` that all nodes of the plan's only replica share, without the
    model, whose path is a node's own, and without NODE_FLAGS. The server listens at the address
    `host`.
    """
    words = map(plain, pods(settings).command(settings, True)[len(PROGRAM) + 2 :])
    kept = [word for word in words if word.partition("=")[0] not in NODE_FLAGS]
    return _listening(kept, host, port, metrics_port)


def _listening(words: Sequence[str], host: str, port: int, metrics_port: int) -> list[str]:
    own = {"--host": host, "--port": str(port), "--metrics-port": str(metrics_port)}
    flags = [word.partition("=")[0] for word in words]
    return [
        f"{flag}={own[flag]}" if flag in own else word
        for flag, word in zip(flags, words, strict=True)
    ]


def _variables(settings: Settings) -> list[str]:
    """The engine's environment variables as NAME=VALUE."""
    return [f"{name}={value}" for name, value in pods(settings).variables.items()]


def _title(settings: Settings) -> str:
    return f"{settings.plan['model']['name']} by {settings.engine}"
