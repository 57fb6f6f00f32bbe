"""How Penstock runs in pods."""

from __future__ import annotations

from penstock_ops.deploy.probes import http, nccl, secret, starting
from penstock_ops.deploy.quoting import GROUP_INDEX, GROUP_SIZE, LEADER, Word
from penstock_ops.deploy.settings import MASTER_PORT, METRICS_PORT, PORT, SHUTDOWN, Settings

PROGRAM = ("python3", "-m", "penstock")
"""Start of Penstock's command. It works in every image with the package, even if the package's
scripts are not in PATH.
"""


def command(settings: Settings, leader: bool) -> list[Word]:
    """The command of a node. It is the same for all nodes; an environment variable has the node's
    number.
    """
    choice, plan = settings.choice, settings.plan
    words: list[Word] = [
        *PROGRAM,
        "serve",
        settings.model,
        f"--served-model-name={plan['model']['name']}",
        "--host=::",
        f"--port={PORT}",
        f"--metrics-port={METRICS_PORT}",
        f"--tensor-parallel-size={choice['tensor_parallel_size']}",
        f"--pipeline-parallel-size={choice['pipeline_parallel_size']}",
        f"--max-num-seqs={choice['max_num_seqs']}",
        f"--max-num-batched-tokens={choice['max_num_batched_tokens']}",
        f"--max-model-len={choice['max_model_len']}",
        f"--kv-cache-memory-bytes={min(row['kv'] for row in plan['memory'])}",
        f"--shutdown-timeout={SHUTDOWN}",
    ]
    if settings.has_devices:
        words.append("--device=cuda")
    if choice["expert_parallel"]:
        words.append("--enable-expert-parallel")
    words += [f"--kv-tier={text}" for text in settings.tiers or ()]
    if settings.ray:
        words += ["--distributed-executor-backend=ray", "--ray-address=auto"]
    elif settings.nodes > 1:
        words += [
            ("--nnodes=", GROUP_SIZE),
            ("--node-rank=", GROUP_INDEX),
            ("--master-addr=", LEADER, f":{MASTER_PORT}"),
            f"--distributed-timeout-seconds={2 * settings.start_seconds}",
        ]
    return words


def environment(settings: Settings, leader: bool) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [{"name": "HOME", "value": "/tmp"}]
    if settings.api_key_secret and leader:
        found.append(secret("PENSTOCK_API_KEY", settings.api_key_secret, "api-key"))
    if settings.needs_token:
        found.append(secret("PENSTOCK_CLUSTER_TOKEN", f"{settings.name}-cluster", "token"))
    # NCCL is used only if a stage spans several pods of devices. Between stages, and between CPUs,
    # Penstock uses its own streams.
    return found + (nccl(settings) if settings.spans and settings.has_devices else [])


def probes(settings: Settings, leader: bool) -> dict[str, object]:
    """Probes of a node. A separate port answers the leader's probes, without an API key. Other
    nodes have no API server; their probe is a command that checks their agent's heartbeat.
    """
    if not leader:
        asked = {"command": [*PROGRAM, "node-health"]}
        return {"livenessProbe": {"exec": asked, "periodSeconds": 30, "timeoutSeconds": 10}}
    return {
        "startupProbe": starting(settings, "/ready", "metrics"),
        "readinessProbe": http("/ready", "metrics", 1, 5),
        "livenessProbe": http("/health", "metrics", 3),
    }
