"""How vLLM runs in pods."""

from __future__ import annotations

from penstock_ops.deploy.engines.lmcache import lmcache_environment, lmcache_flags
from penstock_ops.deploy.probes import between_nodes, secret
from penstock_ops.deploy.quoting import GROUP_INDEX, GROUP_SIZE, LEADER, Word
from penstock_ops.deploy.settings import MASTER_PORT, PORT, SHUTDOWN, Settings

NO_STATISTICS = {"VLLM_NO_USAGE_STATS": "1"}
"""Without it, vLLM reports its use to its developers (docs.vllm.ai, Usage Stats Collection)."""
KV = {"bf16": "auto", "fp8": "fp8"}


def command(settings: Settings, leader: bool) -> list[Word]:
    choice, plan = settings.choice, settings.plan
    tp = choice["tensor_parallel_size"]
    shared = choice["attention_by_requests"]
    words: list[Word] = [
        "vllm",
        "serve",
        settings.model,
        f"--served-model-name={plan['model']['name']}",
        "--host=::",
        f"--port={PORT}",
        f"--tensor-parallel-size={1 if shared else tp}",
        f"--pipeline-parallel-size={choice['pipeline_parallel_size']}",
        f"--max-num-seqs={choice['max_num_seqs']}",
        f"--max-num-batched-tokens={choice['max_num_batched_tokens']}",
        f"--max-model-len={choice['max_model_len']}",
        f"--kv-cache-dtype={KV.get(choice['kv_cache_dtype'], 'auto')}",
        f"--gpu-memory-utilization={choice['memory_fraction'] or 0.92}",
        # Without it, vLLM aborts open requests at SIGTERM (vllm-project/vllm#36666, since 0.18).
        f"--shutdown-timeout={SHUTDOWN}",
    ]
    if shared:
        words.append(f"--data-parallel-size={tp}")
    if choice["expert_parallel"]:
        words.append("--enable-expert-parallel")
    words += lmcache_flags(settings)
    if settings.ray:
        words.append("--distributed-executor-backend=ray")
    elif settings.nodes > 1:
        words += [
            "--distributed-executor-backend=mp",
            ("--nnodes=", GROUP_SIZE),
            ("--node-rank=", GROUP_INDEX),
            ("--master-addr=", LEADER),
            f"--master-port={MASTER_PORT}",
        ]
        words += [] if leader else ["--headless"]
    return words


def environment(settings: Settings, leader: bool) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [
        {"name": name, "value": value} for name, value in NO_STATISTICS.items()
    ]
    found += between_nodes(settings) + lmcache_environment(settings)
    if settings.api_key_secret and leader:
        found.append(secret("VLLM_API_KEY", settings.api_key_secret, "api-key"))
    return found
