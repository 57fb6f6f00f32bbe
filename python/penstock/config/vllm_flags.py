"""Flags of vLLM that have no counterpart here, for the command line and `penstock.LLM`. They are
ignored with a warning that has the reason, or refused if ignoring them would change answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.core import InvalidValueError, PenstockError


@dataclass(frozen=True)
class Foreign:
    """A vLLM flag. With `only`, these values match Penstock's behaviour; others are rejected."""

    name: str
    why: str
    takes_value: bool = True
    only: tuple[str, ...] = ()
    refused: bool = False

    @property
    def key(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")

    def notice(self, spelling: str, value: str) -> str:
        """The warning for this value of the flag; empty for none. Raises InvalidValueError or
        PenstockError if it cannot be ignored.
        """
        if self.refused and spelling.startswith("--no-"):
            return ""
        if self.refused:
            raise PenstockError(f"{spelling} is not supported: {self.why}")
        if not self.only:
            return f"{spelling} is ignored: {self.why}"
        if value not in self.only:
            raise InvalidValueError(spelling, value, f"{' or '.join(self.only)}: {self.why}")
        return ""


def _switch(name: str, why: str) -> Foreign:
    return Foreign(name, why, takes_value=False)


def _only(name: str, why: str, *values: str) -> Foreign:
    return Foreign(name, why, only=values)


def _refused(name: str, why: str, *, takes_value: bool = True) -> Foreign:
    return Foreign(name, why, takes_value=takes_value, refused=True)


_GRAPHS = "graphs are captured on GPUs, without a choice"
_BOTH = "every model answers with text, and with vectors where it is asked to"
_NO_MEDIA = "models here read text only"
_NO_ADAPTERS = "there are no adapters"
_MERGE = (
    "there are no adapters, and the base model would answer for one: merge the adapter into the "
    "weights (merge_and_unload() of peft), and serve these"
)
_MEMORY = "see --kv-cache-memory-bytes"
_KERNELS = "kernels are compiled on GPUs, without a choice"
_ONE_SERVER = "a server has one engine; --replicas starts several behind a gateway"
_NO_PLUGINS = "the engine runs no code of its callers"
_POOLING = "vectors are pooled as the checkpoint says"
_GRAMMARS = "there is one implementation of grammars"
_NO_CODE = "no code is ever loaded from a model"
_NOT_LOGGED = "see --access-log; no text of a request is ever logged"
_HF_HOME = "files of the hub are kept in its cache; set HF_HUB_CACHE"

FOREIGN: tuple[Foreign, ...] = (
    # Model
    _switch("--trust-remote-code", _NO_CODE),
    _only("--config-format", "the files show their format", "auto", "hf"),
    _only("--model-impl", "there is one implementation", "auto", "vllm"),
    _only("--tokenizer-mode", "there is one tokenizer", "auto", "hf", "fast"),
    _only("--task", _BOTH, "auto", "generate", "embed", "embedding", "score", "classify"),
    _only("--runner", _BOTH, "auto", "generate", "pooling"),
    _only("--convert", _BOTH, "auto", "none", "embed"),
    Foreign("--download-dir", _HF_HOME),
    Foreign("--hf-token", "a command line is no place for it; set HF_TOKEN"),
    Foreign("--code-revision", _NO_CODE),
    Foreign("--tokenizer-revision", "the tokenizer comes with its model; see --revision"),
    Foreign("--model-loader-extra-config", "there is one loader"),
    Foreign("--safetensors-load-strategy", "weights are mapped and packed layer by layer"),
    Foreign("--max-parallel-loading-workers", "weights are packed by all threads"),
    Foreign("--ignore-patterns", "only files that are read are downloaded"),
    _refused("--hf-overrides", "change config.json, in a copy of the directory"),
    _refused("--rope-scaling", "change config.json, in a copy of the directory"),
    _refused("--rope-theta", "change config.json, in a copy of the directory"),
    _refused("--hf-config-path", "config.json is read from the model's directory"),
    _refused("--pooler-config", _POOLING),
    _refused("--override-pooler-config", _POOLING),
    Foreign("--structured-outputs-config", _GRAMMARS),
    Foreign("--guided-decoding-backend", _GRAMMARS),
    Foreign("--additional-config", "there are no plugins to read it"),
    _refused("--io-processor-plugin", _NO_PLUGINS),
    _refused("--logits-processors", "the sampler runs no code of its callers"),
    _only("--logprobs-mode", "they are of the unchanged logits", "raw_logprobs"),
    Foreign("--max-logprobs", "up to 20 may be asked for"),
    # Memory and cache
    Foreign("--gpu-memory-utilization", _MEMORY),
    Foreign("--num-gpu-blocks-override", _MEMORY),
    Foreign("--swap-space", "KV of preempted requests goes to RAM with --kv-tier ram:SIZE"),
    Foreign("--cpu-offload-gb", "weights are in the memory of the host anyway"),
    Foreign("--kv-offloading-size", "see --kv-tier ram:SIZE"),
    Foreign("--kv-offloading-backend", "see --kv-tier"),
    _refused("--kv-transfer-config", "KV is shared through --kv-tier"),
    Foreign("--prefix-caching-hash-algo", "digests of blocks are BLAKE3"),
    _switch("--calculate-kv-scales", "keys and values are not scaled"),
    _switch("--disable-sliding-window", "layers with a window keep what they see"),
    _switch("--disable-hybrid-kv-cache-manager", "layers with a window have blocks of their own"),
    _switch("--disable-cascade-attn", "there is no other attention than one"),
    _switch("--enable-sleep-mode", "a server that is stopped gives all memory back"),
    # Computation
    _switch("--enforce-eager", _GRAPHS),
    Foreign("--attention-config", "see --attention-backend"),
    Foreign("--max-cudagraph-capture-size", _GRAPHS),
    Foreign("--profiler-config", "see penstock bench latency"),
    Foreign("--max-seq-len-to-capture", _GRAPHS),
    Foreign("--cuda-graph-sizes", _GRAPHS),
    Foreign("--cudagraph-capture-sizes", _GRAPHS),
    Foreign("--compilation-config", _KERNELS),
    Foreign("--optimization-level", _KERNELS),
    Foreign("--speculative-config", "drafts change the speed only, and there is no drafter"),
    _switch("--ray-workers-use-nsight", "there is nothing of CUDA to profile"),
    # Scheduling
    _switch("--enable-chunked-prefill", "prompts are always computed in chunks"),
    _switch("--async-scheduling", "steps are planned ahead where it helps"),
    Foreign("--max-num-partial-prefills", "see --max-num-batched-tokens"),
    Foreign("--max-long-partial-prefills", "see --max-num-batched-tokens"),
    Foreign("--long-prefill-token-threshold", "see --max-num-batched-tokens"),
    Foreign("--num-scheduler-steps", "a step computes one token of each sequence"),
    Foreign("--preemption-mode", "preempted requests are computed again, or kept by --kv-tier"),
    _refused("--scheduler-cls", _NO_PLUGINS),
    Foreign("--stream-interval", "each token is sent as it comes"),
    # Ranks
    _only("--data-parallel-size", _ONE_SERVER, "1"),
    _only("-dp", _ONE_SERVER, "1"),
    _only("--api-server-count", _ONE_SERVER, "1"),
    _only("--prefill-context-parallel-size", "see --tensor-parallel-size", "1"),
    _only("--decode-context-parallel-size", "see --tensor-parallel-size", "1"),
    _refused("--worker-cls", _NO_PLUGINS),
    _refused("--worker-extension-cls", _NO_PLUGINS),
    _switch("--enable-eplb", "experts stay on their ranks"),
    _switch("--headless", "nodes other than 0 have no API server anyway"),
    # Adapters and media
    _refused("--enable-lora", _MERGE, takes_value=False),
    Foreign("--max-loras", _NO_ADAPTERS),
    Foreign("--max-lora-rank", _NO_ADAPTERS),
    Foreign("--max-cpu-loras", _NO_ADAPTERS),
    _refused("--lora-modules", _MERGE),
    Foreign("--lora-dtype", _NO_ADAPTERS),
    _switch("--fully-sharded-loras", _NO_ADAPTERS),
    _switch("--language-model-only", _NO_MEDIA),
    Foreign("--limit-mm-per-prompt", _NO_MEDIA),
    Foreign("--mm-processor-kwargs", _NO_MEDIA),
    Foreign("--mm-processor-cache-gb", _NO_MEDIA),
    Foreign("--media-io-kwargs", _NO_MEDIA),
    Foreign("--allowed-local-media-path", _NO_MEDIA),
    Foreign("--allowed-media-domains", _NO_MEDIA),
    _switch("--disable-mm-preprocessor-cache", _NO_MEDIA),
    # Server
    _only("--response-role", "answers have OpenAI's role", "assistant"),
    _only(
        "--chat-template-content-format",
        "parts of a message are joined to one text",
        "auto",
        "string",
    ),
    _switch("--enable-auto-tool-choice", "the model may always choose to call tools"),
    Foreign("--root-path", "answers name no path of the server"),
    _refused("--middleware", "the server runs no code of others"),
    Foreign("--uvicorn-log-level", "there is no uvicorn; see --log-level"),
    _switch("--disable-uvicorn-access-log", "there is none without --access-log"),
    Foreign("--disable-access-log-for-endpoints", "there is none without --access-log"),
    Foreign("--log-config-file", "see --log-level and --log-format"),
    _switch("--enable-log-requests", _NOT_LOGGED),
    _switch("--disable-log-requests", _NOT_LOGGED),
    _switch("--enable-log-outputs", _NOT_LOGGED),
    Foreign("--max-log-len", _NOT_LOGGED),
    _switch("--enable-ssl-refresh", "certificates are read again when they change"),
    Foreign("--ssl-ciphers", "the ciphers of TLS 1.3 and the strong ones of 1.2 are on"),
    _refused("--ssl-ca-certs", "certificates of clients are not checked"),
    _only("--ssl-cert-reqs", "certificates of clients are not checked", "0"),
    _switch("--use-tqdm-on-load", "the stages of the start are logged"),
    _switch("--disable-log-stats", "statistics are at /metrics and not logged"),
    _switch("--enable-prompt-tokens-details", "they are always in the usage"),
    _switch("--enable-server-load-tracking", "the load is at /metrics"),
    _switch("--enable-request-id-headers", "every answer has x-request-id"),
    _switch("--enable-tokenizer-info-endpoint", "endpoints are not opened one by one"),
    _switch("--disable-fastapi-docs", "there is no FastAPI"),
    _switch("--disable-frontend-multiprocessing", "see --no-engine-process"),
    Foreign("--h11-max-incomplete-event-size", "see --max-request-bytes"),
    Foreign("--h11-max-header-count", "a request has at most 100 headers"),
    Foreign("--collect-detailed-traces", "see --otlp-traces-endpoint"),
    Foreign("--show-hidden-metrics-for-version", "no metrics are hidden"),
)
BY_NAME = {flag.name: flag for flag in FOREIGN}
_BY_KEY = {flag.key: flag for flag in FOREIGN}


def foreign_keys() -> Iterable[str]:
    return _BY_KEY


def ignored_value(key: str, value: object) -> str | None:
    """Warning for a keyword of vLLM's `LLM`; empty if its value matches what Penstock does anyway,
    None if the keyword is unknown. Raises the errors of `Foreign.notice`.
    """
    flag = _BY_KEY.get(key)
    if flag is None:
        return None
    return flag.notice(key, str(value)) if value not in (False, None) else ""
