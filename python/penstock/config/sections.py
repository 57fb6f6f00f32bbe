"""Resolved settings: one frozen section for each part of Penstock that reads them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from penstock.config.kv_events import KvEventsConfig


@dataclass(frozen=True, slots=True)
class ModelConfig:
    path: str
    """GGUF file or Hugging Face directory."""
    dtype: str
    quantization: str
    max_model_len: int | None
    """Maximum length of a sequence in tokens; None for the maximum of the model and the KV
    cache.
    """
    seed: int | None
    generation_config: str = "auto"
    """Source of sampling defaults: auto, vllm, or a path."""
    override_generation_config: str | None = None
    """JSON object of sampling defaults that take precedence."""
    load_format: str = "auto"
    """`auto`, or `dummy` for random weights."""

    @property
    def dummy(self) -> bool:
        return self.load_format == "dummy"


@dataclass(frozen=True, slots=True)
class CacheConfig:
    memory_bytes: int | None
    """Bytes of the KV pools on each rank; None: chosen by `penstock.engine.sizing`."""
    block_size: int
    dtype: str
    prefix_caching: bool
    events: KvEventsConfig | None = None
    """None: KV events are not published."""


@dataclass(frozen=True, slots=True)
class TierConfig:
    """Settings of one KV tier."""

    kind: str
    """`ram`, `disk`, `redis` or `object`."""
    size_bytes: int | None = None
    """RAM and disk: capacity summed over all ranks, in bytes."""
    quota: float = 1.0
    """RAM and disk: share of the capacity that requests with the same cache salt may use."""
    path: str | None = None
    """Disk: directory."""
    url: str | None = None
    """Redis and object stores: URL."""
    daily_write_bytes: int | None = None
    """Disk: maximum bytes written in any 24 hours."""
    gds: bool = False
    """Disk: read into GPU memory with GPUDirect Storage."""
    ttl_seconds: int | None = None
    """Redis: lifetime of a value in seconds."""
    options: tuple[tuple[str, str], ...] = ()
    """Object stores: settings in addition to the URL."""

    @property
    def name(self) -> str:
        """Name for logs, metrics and errors, without a password."""
        if self.kind == "ram":
            return "ram"
        return f"disk:{self.path}" if self.kind == "disk" else without_password(self.url or "")


@dataclass(frozen=True, slots=True)
class TiersConfig:
    tiers: tuple[TierConfig, ...] = ()
    chunk_tokens: int = 256
    """Tokens of a chunk, the unit of storage in all tiers but RAM."""

    @property
    def ram(self) -> TierConfig | None:
        return next((tier for tier in self.tiers if tier.kind == "ram"), None)

    @property
    def named(self) -> tuple[TierConfig, ...]:
        """The tiers other than RAM, in the order of their flags, in which they are looked up."""
        return tuple(tier for tier in self.tiers if tier.kind != "ram")


@dataclass(frozen=True, slots=True)
class StepDefaults:
    """Defaults for the size of a step."""

    sequences: int
    tokens: int


ON_CPUS = StepDefaults(sequences=64, tokens=256)
ON_GPUS = StepDefaults(sequences=256, tokens=8192)
"""A GPU can compute many tokens in the time that it takes to read the weights."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queue: int
    policy: str = "fcfs"
    max_wait: float = 0.0
    """Maximum queue time of a client's request in seconds; 0 for no limit."""


@dataclass(frozen=True, slots=True)
class ComputeConfig:
    threads: int
    isa: str | None
    """None: the best instruction set of the machine."""
    backend: str = "cpu"
    """Module of `penstock.backends`, or the full name of any other module."""
    attention: str = "triton"
    """`triton` or `flashinfer`; GPUs only."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    tensor: int = 1
    pipeline: int = 1
    by_experts: bool = False
    """Each rank has whole experts, instead of some columns of every expert."""
    library_sums: bool = False
    """GPUs use NCCL for all all-reduces, also for small ones."""
    backend: str = "inline"
    """`inline`, `mp` or `ray`."""
    ray_address: str | None = None
    """Address of the Ray cluster. None for the address in the environment, else a new cluster."""
    ray_channel: str = "ring"
    ray_overlap_comm: bool = False
    ray_communicator: str | None = None
    """`module:Class` of Ray's Communicator between two stages; None: our own."""
    placement: str = "pack"
    nnodes: int = 1
    node_rank: int = 0
    master: str = ""
    """`HOST:PORT` of node 0, if there are several nodes."""
    join_timeout: float = 300.0
    """Seconds that node 0 waits for the other nodes."""
    token_file: str | None = None
    """None: the nodes' secret is in the environment."""

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline

    @property
    def most_ranks_on_a_node(self) -> int:
        """Number of ranks on node 0. No other node has more."""
        return len(ranks_of_nodes(self.tensor, self.pipeline, self.nnodes)[0])

    def number_on_node(self, rank: int) -> int:
        """Index of a rank among the ranks of its node."""
        held = ranks_of_nodes(self.tensor, self.pipeline, self.nnodes)
        return next(own.index(rank) for own in held if rank in own)


def ranks_of_nodes(tp: int, pp: int, nnodes: int) -> list[range]:
    """The ranks of each node, in the order of nodes. Nodes get whole stages if there are enough
    stages, else ranks are distributed evenly. Any remainder goes to the first nodes.
    """
    unit = tp if nnodes <= pp else 1
    least, more = divmod(tp * pp // unit, nnodes)
    starts = [unit * (node * least + min(node, more)) for node in range(nnodes + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


@dataclass(frozen=True, slots=True)
class LogConfig:
    level: str = "info"
    """One of `LOG_LEVELS`."""
    format: str = "text"
    """`text` or `json`."""
    color: bool = False
    """Whether text has colors where standard error is a terminal."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    host: str
    port: int
    served_model_names: tuple[str, ...]
    api_keys: tuple[str, ...]
    allowed_origins: tuple[str, ...]
    chat_template: str | None
    engine_process: bool
    shutdown_timeout: float
    engine_stall_timeout: float
    admin_api_key: str | None = None
    """Key that requests to /v1/kv need; None: /v1/kv is disabled."""
    max_request_bytes: int | None = None
    """Maximum bytes of a request's body; None: derived from the model's maximum length."""
    max_queue_wait: float = 0.0
    """Maximum seconds that a request may wait in the queue; 0 for no limit."""
    uds: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    metrics_port: int | None = None
    replicas: int = 1
    api_key_file: str | None = None
    ui: bool = True
    """Whether browsers get a web page at `/`."""
    access_log: bool = False
    otlp_traces_endpoint: str | None = None
    allow_special_tokens: bool = False
    """Whether special tokens that clients write in their texts count as such."""
    trust_request_chat_template: bool = False
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    tokenizer: str | None = None
    """Model whose tokenizer is used; None for the model's own."""
    skip_tokenizer_init: bool = False
    """Whether prompts and outputs are token ids, without text."""
    revision: str | None = None
    """Branch, tag or commit of the Hugging Face repository."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Configuration of the engine process, sent as JSON to its standard input. Not on its command
    line, which every user of the host can read, because URLs of tiers have passwords.
    """

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    compute: ComputeConfig
    parallel: ParallelConfig = ParallelConfig()
    tiers: TiersConfig = TiersConfig()
    log: LogConfig = LogConfig()

    @property
    def kv_dtype(self) -> str:
        """Element type of the KV cache: as configured; by default float32 for a float32 model, else
        bfloat16.
        """
        if self.cache.dtype != "auto":
            return self.cache.dtype
        whole = self.model.quantization == "none" or (
            self.model.quantization == "auto" and self.model.dtype == "float32"
        )
        return "float32" if whole else "bfloat16"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EngineConfig:
        sections: dict[str, dict[str, Any]] = json.loads(text)
        return cls(
            ModelConfig(**sections["model"]),
            _cache(**sections["cache"]),
            SchedulerConfig(**sections["scheduler"]),
            ComputeConfig(**sections["compute"]),
            ParallelConfig(**sections["parallel"]),
            _tiers(**sections["tiers"]),
            LogConfig(**sections["log"]),
        )


@dataclass(frozen=True, slots=True)
class Config:
    engine: EngineConfig
    server: ServerConfig


def without_password(url: str) -> str:
    """The URL without credentials: `redis://:secret@host` becomes `redis://host`."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else url


def _cache(events: dict[str, Any] | None, **fields: Any) -> CacheConfig:
    return CacheConfig(events=None if events is None else KvEventsConfig(**events), **fields)


def _tiers(tiers: list[dict[str, Any]], chunk_tokens: int) -> TiersConfig:
    return TiersConfig(tuple(_tier(**tier) for tier in tiers), chunk_tokens)


def _tier(options: list[list[str]], **fields: Any) -> TierConfig:
    return TierConfig(**fields, options=tuple((key, value) for key, value in options))
