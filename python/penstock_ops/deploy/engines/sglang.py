"""How SGLang runs in pods."""

from __future__ import annotations

from penstock_ops.deploy.probes import between_nodes, secret
from penstock_ops.deploy.quoting import ADDRESS, GROUP_INDEX, GROUP_SIZE, LEADER, Variable, Word
from penstock_ops.deploy.settings import PORT, Settings

DIST_PORT = 20000
KV = {"bf16": "auto", "fp8": "fp8_e4m3"}


def command(settings: Settings, leader: bool) -> list[Word]:
    choice, plan = settings.choice, settings.plan
    tp = choice["tensor_parallel_size"]
    words: list[Word] = [
        "python3",
        "-m",
        "sglang.launch_server",
        f"--model-path={settings.model}",
        f"--served-model-name={plan['model']['name']}",
        # With the address `::`, SGLang's HTTP server would reject IPv4 connections.
        ("--host=", ADDRESS),
        f"--port={PORT}",
        f"--tp-size={tp}",
        f"--pp-size={choice['pipeline_parallel_size']}",
        f"--max-running-requests={choice['max_num_seqs']}",
        f"--chunked-prefill-size={choice['max_num_batched_tokens']}",
        f"--context-length={choice['max_model_len']}",
        f"--kv-cache-dtype={KV.get(choice['kv_cache_dtype'], 'auto')}",
        "--enable-metrics",
    ]
    if choice["memory_fraction"]:
        words.append(f"--mem-fraction-static={choice['memory_fraction']}")
    if choice["expert_parallel"]:
        words.append(f"--ep-size={tp}")
    if choice["attention_by_requests"]:
        words += ["--enable-dp-attention", f"--dp-size={tp}"]
    if settings.nodes > 1:
        words += [
            ("--dist-init-addr=", LEADER, f":{DIST_PORT}"),
            ("--nnodes=", GROUP_SIZE),
            ("--node-rank=", GROUP_INDEX),
        ]
    if settings.api_key_secret and leader:
        words.append(("--api-key=", Variable("API_KEY")))
    return words


def environment(settings: Settings, leader: bool) -> list[dict[str, object]]:
    found = between_nodes(settings)
    if settings.api_key_secret and leader:
        found.append(secret("API_KEY", settings.api_key_secret, "api-key"))
    return found
