"""The table of flags, the only place that defines them: group, kind of value, default, help.

Flags are named as in vLLM if the meaning is the same. A default of `None` means that `resolve`
derives it from the model or the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.kinds import (
    Bytes,
    Choice,
    Count,
    Integer,
    IntegerChoice,
    JsonObject,
    Kind,
    Seconds,
    Switch,
    Text,
)
from penstock.config.kv_events import KvEvents
from penstock.config.log import LOG_FORMATS, LOG_LEVELS
from penstock.config.sections import ON_CPUS, ON_GPUS, TiersConfig
from penstock.config.tiers import Tier

GROUPS = {
    "model": "Model",
    "cache": "KV cache",
    "scheduler": "Scheduling",
    "compute": "Computation",
    "parallel": "Several ranks",
    "server": "Server",
}


@dataclass(frozen=True)
class Flag:
    name: str
    group: str
    kind: Kind
    default: object
    help: str
    repeatable: bool = False
    offline: bool = True
    """Whether `penstock.LLM` accepts the flag as a keyword too."""
    short: str = ""
    """Short name on the command line."""
    separator: str = ","
    """Separator of several values in the environment variable of a repeatable flag."""

    @property
    def key(self) -> str:
        """Key in a configuration file (where `-` equals `_`), and keyword of `LLM`."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def env(self) -> str:
        return f"PENSTOCK_{self.key.upper()}"


def _server(name: str, kind: Kind, default: object, text: str, *, repeatable: bool = False) -> Flag:
    return Flag(name, "server", kind, default, text, repeatable=repeatable, offline=False)


def _nodes(name: str, kind: Kind, default: object, text: str) -> Flag:
    return Flag(name, "parallel", kind, default, text, offline=False)


MASTER_PORT = 29501
"""Default port of node 0, the same as vLLM's."""
_DTYPES = Choice(("auto", "float32", "bfloat16"))
_FORMATS = Choice(("auto", "dummy"), (("safetensors", "auto"), ("gguf", "auto"), ("hf", "auto")))
_WEIGHTS = Choice(
    _DTYPES.values, (("float", "float32"), ("half", "bfloat16"), ("float16", "bfloat16"))
)

FLAGS: tuple[Flag, ...] = (
    Flag(
        "--dtype",
        "model",
        _WEIGHTS,
        "auto",
        "arithmetic of weights that are not quantised; half and float16 are computed as bfloat16",
    ),
    Flag(
        "--quantization",
        "model",
        Choice(("auto", "none", "int8", "int4")),
        "auto",
        "auto: as stored; none: everything in float32; int8, int4: quantised at load",
    ),
    Flag("--load-format", "model", _FORMATS, "auto", "dummy: random weights for config.json"),
    Flag(
        "--max-model-len",
        "model",
        Count(2, 2**24, ("auto", "-1")),
        None,
        "longest prompt and output together, in tokens, also as 4k (4000) or 4K (4096); default, "
        "and auto: the model's own, or what the KV cache holds",
    ),
    Flag(
        "--seed",
        "model",
        Integer(0, 2**63 - 1),
        None,
        "seed of requests that bring none; default: a new one each",
    ),
    Flag(
        "--tokenizer",
        "model",
        Text(),
        None,
        "model whose tokenizer and chat template are used instead of MODEL's own",
        offline=False,
    ),
    Flag("--skip-tokenizer-init", "model", Switch(), False, "token ids only: no text in, none out"),
    Flag(
        "--revision",
        "model",
        Text(),
        None,
        "branch, tag or commit of a MODEL of the Hugging Face hub; default: its main branch",
        offline=False,
    ),
    Flag(
        "--generation-config",
        "model",
        Text(),
        "auto",
        "where sampling defaults come from: the model, its card for an alias (auto), nowhere "
        "(vllm), or a generation_config.json or its directory",
    ),
    Flag(
        "--override-generation-config",
        "model",
        JsonObject(),
        None,
        "JSON object of sampling defaults over those, such as '{\"temperature\": 0.2}'",
    ),
    _server(
        "--chat-template", Text(), None, "file with a chat template instead of the model's own"
    ),
    _server(
        "--allow-special-tokens",
        Switch(),
        False,
        "read special tokens that clients spell in messages, such as <|im_end|>, as control tokens "
        "(as vLLM does); by default they are plain text",
    ),
    _server(
        "--trust-request-chat-template",
        Switch(),
        False,
        "run the chat_template of a request in place of the model's: its instructions and output "
        "are bounded, the memory of what it computes is not, so for clients that are trusted",
    ),
    _server(
        "--tool-call-parser",
        Text(),
        "auto",
        "format of the model's tool calls: auto (by the chat template) or a name such as hermes, "
        "qwen3_coder, llama3_json, mistral (docs/api.md has all)",
    ),
    _server(
        "--reasoning-parser",
        Text(),
        "auto",
        "format of the model's reasoning: auto (by the chat template), none (reasoning is content) "
        "or a name such as deepseek_r1, qwen3, granite (docs/api.md has all)",
    ),
    Flag(
        "--kv-cache-memory-bytes",
        "cache",
        Bytes(2**20, 2**46),
        None,
        "memory for keys and values, of each rank; default: two sequences of full length, within "
        "256 MiB and 1 GiB, never above half of the free memory",
    ),
    Flag("--block-size", "cache", IntegerChoice((16, 32, 64, 128)), 32, "tokens in a KV block"),
    Flag(
        "--kv-cache-dtype",
        "cache",
        _DTYPES,
        "auto",
        "form of cached keys and values; auto: bfloat16",
    ),
    Flag(
        "--enable-prefix-caching", "cache", Switch(), True, "reuse KV of prompts that start alike"
    ),
    Flag(
        "--kv-events-config",
        "cache",
        KvEvents(),
        None,
        'publish which KV blocks the pool holds, JSON as in vLLM: {"enable_kv_cache_events": true, '
        '"endpoint": "tcp://*:5557"} (docs/gateway.md)',
    ),
    Flag(
        "--kv-tier",
        "cache",
        Tier(),
        (),
        "where KV is kept beyond the pool, in the order in which it is looked for: ram:SIZE, "
        "disk:PATH,SIZE, the URL of a Redis or of an object store (docs/kv-tiers.md); "
        "separated by spaces in the environment",
        repeatable=True,
        separator=" ",
    ),
    Flag(
        "--kv-chunk-tokens",
        "cache",
        Integer(16, 2**16),
        TiersConfig().chunk_tokens,
        "tokens of what disks and remote stores keep as one, a multiple of --block-size",
    ),
    Flag(
        "--max-num-seqs",
        "scheduler",
        Integer(1, 4096),
        None,
        f"sequences computed together; default: {ON_CPUS.sequences}, on GPUs {ON_GPUS.sequences}",
    ),
    Flag(
        "--max-num-batched-tokens",
        "scheduler",
        Count(1, 2**20),
        None,
        f"tokens computed in one step, at least --max-num-seqs; default: {ON_CPUS.tokens}, on GPUs "
        f"{ON_GPUS.tokens}. While answers run, prompts lengthen a step to three times its time at "
        "most, where possible",
    ),
    Flag(
        "--max-num-queued-reqs",
        "scheduler",
        Integer(1, 2**20),
        1024,
        "requests that may wait; more are refused with 503 and Retry-After",
    ),
    Flag(
        "--scheduling-policy",
        "scheduler",
        Choice(("fcfs", "priority")),
        "fcfs",
        "order of requests: by arrival (fcfs), or by the priority that they set, lower values "
        "first (priority)",
    ),
    Flag(
        "--threads",
        "compute",
        Integer(1, 1024),
        None,
        "threads that compute, divided between the ranks; default: the CPUs of the cgroup",
    ),
    Flag(
        "--isa",
        "compute",
        Choice(("auto", "amx", "avx512", "avx2", "portable")),
        "auto",
        "instruction set of the kernels; auto: the best of this machine",
    ),
    Flag(
        "--device",
        "compute",
        Text(),
        "auto",
        "backend that computes: cpu, cuda (docs/gpu.md), or a module (docs/adding-a-backend.md); "
        "auto: cuda where torch is installed and an NVIDIA GPU is there",
    ),
    Flag(
        "--attention-backend",
        "compute",
        Choice(("triton", "flashinfer")),
        "triton",
        "kernels of attention on GPUs: our own, or FlashInfer's where it is installed; not yet "
        "measured which is faster (docs/gpu.md)",
    ),
    Flag(
        "--tensor-parallel-size",
        "parallel",
        Integer(1, 1024),
        1,
        "ranks that share the work of each layer",
        short="-tp",
    ),
    Flag(
        "--pipeline-parallel-size",
        "parallel",
        Integer(1, 1024),
        1,
        "stages of layers that work on several steps at once",
        short="-pp",
    ),
    Flag(
        "--enable-expert-parallel",
        "parallel",
        Switch(),
        False,
        "give each rank of --tensor-parallel-size whole experts instead of columns of all",
    ),
    Flag(
        "--disable-custom-all-reduce",
        "parallel",
        Switch(),
        False,
        "leave all sums between GPUs to NCCL, small ones too (docs/gpu.md)",
    ),
    Flag(
        "--distributed-executor-backend",
        "parallel",
        Choice(("inline", "mp", "ray")),
        None,
        "where ranks run: in the engine's process, each in a process of its own on the --nnodes "
        "hosts, or as actors of a Ray cluster; default: inline for a single rank, else mp",
    ),
    Flag(
        "--ray-address",
        "parallel",
        Text(),
        None,
        "Ray cluster that holds the ranks: host:port, or auto for the one this host belongs to; "
        "default: $RAY_ADDRESS, else one of our own on this host",
    ),
    Flag(
        "--ray-channel",
        "parallel",
        Choice(("ring", "compiled-graph", "compiled-graph-tensors", "actor")),
        "ring",
        "transport of steps to Ray's actors. ring: shared memory, and streams to other nodes; "
        "compiled-graph: Ray's own, which keeps a CPU of each actor busy; compiled-graph-tensors: "
        "the same, and on GPUs NCCL sends rows between stages as tensors; actor: calls, the "
        "slowest",
    ),
    Flag(
        "--ray-overlap-comm",
        "parallel",
        Switch(),
        False,
        "send the rows of a step while the next computes (--ray-channel compiled-graph-tensors)",
    ),
    Flag(
        "--ray-communicator",
        "parallel",
        Text(),
        None,
        "MODULE:CLASS of a Ray Communicator between stages (docs/adding-a-backend.md)",
    ),
    Flag(
        "--placement",
        "parallel",
        Choice(("pack", "spread", "strict-pack", "strict-spread")),
        "pack",
        "how Ray places stages on nodes: together or apart if it can, or only so (strict); the "
        "ranks of one stage are always on one node",
    ),
    _nodes(
        "--nnodes",
        Integer(1, 1024),
        1,
        "hosts that run this same command, each with a --node-rank of its own: at most the number "
        "of ranks. Up to --pipeline-parallel-size each has whole stages; more share the sums of a "
        "stage over the network",
    ),
    _nodes(
        "--node-rank",
        Integer(0, 1023),
        None,
        "which of the --nnodes this is: 0 serves, the others run their ranks for it",
    ),
    _nodes(
        "--master-addr",
        Text(),
        None,
        f"node 0 as HOST[:PORT], port {MASTER_PORT} unless given. The others call it; node 0 "
        "listens at the address, on all of its own when HOST is a name",
    ),
    _nodes(
        "--distributed-timeout-seconds",
        Seconds(1, 86_400),
        300.0,
        "how long node 0 waits for the other nodes, which may be fetching image and weights",
    ),
    _nodes(
        "--cluster-token-file",
        Text(),
        None,
        "file with the secret that all nodes share, 16 characters or more; default: "
        "$PENSTOCK_CLUSTER_TOKEN",
    ),
    _server(
        "--host",
        Text(),
        "127.0.0.1",
        "address to listen on; the default is reachable from this machine only",
    ),
    _server("--port", Integer(0, 65535), 8000, "port to listen on; 0 takes a free one"),
    _server("--uds", Text(), None, "Unix socket to listen on instead of --host and --port"),
    _server(
        "--ssl-certfile",
        Text(),
        None,
        "PEM file with the certificate chain of https; read again when it changes",
    ),
    _server("--ssl-keyfile", Text(), None, "PEM file with the key of --ssl-certfile"),
    _server(
        "--replicas",
        Integer(1, 64),
        1,
        "servers of the model on this host, each with its share of --threads, behind a gateway "
        "(docs/gateway.md)",
    ),
    _server(
        "--metrics-port",
        Integer(1, 65535),
        None,
        "port for /metrics and the probes alone; default: /metrics is on --port, without a key",
    ),
    _server(
        "--served-model-name",
        Text(),
        (),
        "name clients use for the model; give it several times for aliases; default: MODEL",
        repeatable=True,
    ),
    _server(
        "--api-key",
        Text(),
        (),
        "key that clients must send; give it several times for several",
        repeatable=True,
    ),
    _server(
        "--api-key-file",
        Text(),
        None,
        "JSON file of named keys with limits of their own, read again when it changes "
        "(docs/limits.md)",
    ),
    _server(
        "--allowed-origins",
        Text(),
        (),
        "origin whose pages may use the server from a browser, such as http://localhost:3000, or "
        "'*' for all; give it several times for several; default: none",
        repeatable=True,
    ),
    _server(
        "--admin-api-key",
        Text(),
        None,
        "key for /v1/kv, which clears, pins and reports the KV cache; default: closed. Better in "
        "the environment than on the command line, which every user of the machine can read",
    ),
    _server(
        "--engine-process",
        Switch(),
        True,
        "run the engine in its own process; --no-engine-process keeps it in this one, for "
        "comparison",
    ),
    _server(
        "--shutdown-timeout", Seconds(0, 3600), 30.0, "time that running requests get after SIGTERM"
    ),
    _server(
        "--engine-stall-timeout",
        Seconds(1, 3600),
        30.0,
        "time without progress after which /health says that the engine is stuck; its requests "
        "stay open",
    ),
    _server(
        "--max-queue-wait",
        Seconds(0, 3600),
        10.0,
        "requests that would wait longer for their turn, at the pace at which others end, or have "
        "waited longer, are refused with 503 and Retry-After; 0: no such limit",
    ),
    _server(
        "--max-request-bytes",
        Bytes(2**10, 2**32),
        None,
        "largest body of a request; default: text of the model's length in its longest tokens, "
        "and 1 MiB (docs/limits.md)",
    ),
    _server("--log-level", Choice(LOG_LEVELS), "info", "lines of the log: this level and worse"),
    _server(
        "--log-format",
        Choice(LOG_FORMATS),
        "text",
        "form of a line of the log; json: an object with time, level, source and message",
    ),
    _server("--ui", Switch(), True, "browsers get a web page at / (docs/page.md)"),
    _server("--access-log", Switch(), False, "log a line for every request that has ended"),
    _server("--otlp-traces-endpoint", Text(), None, "collector of traces (docs/operating.md)"),
)

BY_KEY = {flag.key: flag for flag in FLAGS}
