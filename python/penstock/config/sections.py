"""Resolved settings, one frozen section for each room that reads them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelConfig:
    path: str
    """GGUF file or Hugging Face directory."""
    dtype: str
    quantization: str
    max_model_len: int | None
    """None: as long as model and KV cache allow."""
    seed: int | None


@dataclass(frozen=True, slots=True)
class CacheConfig:
    memory_bytes: int | None
    """None: by the rule in `penstock.config.memory`."""
    block_size: int
    dtype: str
    prefix_caching: bool


@dataclass(frozen=True, slots=True)
class TierConfig:
    """A place behind the KV pool, in the order in which places are asked."""

    kind: str
    """`ram`, `disk`, `redis` or `object`."""
    size_bytes: int | None = None
    """Of RAM and disk: the most it may hold, of all ranks together."""
    quota: float = 1.0
    """Of RAM and disk: the share that requests of one cache salt may hold."""
    path: str | None = None
    """Of a disk."""
    url: str | None = None
    """Of Redis and object stores."""
    daily_write_bytes: int | None = None
    """Of a disk: written in any 24 hours at most."""
    direct: str = "auto"
    """Of a disk: `auto`, `on` or `off`."""
    ttl_seconds: int | None = None
    """Of Redis."""
    options: tuple[tuple[str, str], ...] = ()
    """Of object stores: what their URL does not say."""

    @property
    def name(self) -> str:
        """For logs, metrics and errors; without a password."""
        if self.kind == "ram":
            return "ram"
        return f"disk:{self.path}" if self.kind == "disk" else without_password(self.url or "")


@dataclass(frozen=True, slots=True)
class TiersConfig:
    tiers: tuple[TierConfig, ...] = ()
    chunk_tokens: int = 256
    """Tokens of what disks and remote stores keep as one."""

    @property
    def ram(self) -> TierConfig | None:
        return next((tier for tier in self.tiers if tier.kind == "ram"), None)

    @property
    def named(self) -> tuple[TierConfig, ...]:
        """Those that go by name."""
        return tuple(tier for tier in self.tiers if tier.kind != "ram")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queue: int


@dataclass(frozen=True, slots=True)
class ComputeConfig:
    threads: int
    isa: str | None
    """None: the best of the machine."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    tensor: int = 1
    pipeline: int = 1
    backend: str = "inline"
    """`inline`, `mp` or `ray`."""
    ray_address: str | None = None
    """None: as the environment says, else a cluster of our own."""
    ray_channel: str = "ring"
    ray_overlap_comm: bool = False
    placement: str = "pack"
    nnodes: int = 1
    node_rank: int = 0
    master: str = ""
    """`HOST:PORT` of node 0, where there are several nodes."""
    token_file: str | None = None
    """None: the secret of the nodes is in the environment."""

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline

    @property
    def most_ranks_on_a_node(self) -> int:
        """Without Ray, which places ranks itself."""
        return self.tensor * -(-self.pipeline // self.nnodes)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    host: str
    port: int
    served_model_names: tuple[str, ...]
    api_keys: tuple[str, ...]
    chat_template: str | None
    engine_process: bool
    shutdown_timeout: float
    engine_stall_timeout: float
    admin_api_key: str | None = None
    """None: nobody may look after the cache."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine process is told, as JSON on its command line."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    compute: ComputeConfig
    parallel: ParallelConfig = ParallelConfig()
    tiers: TiersConfig = TiersConfig()

    @property
    def kv_dtype(self) -> str:
        """Form of cached keys and values: as asked for, else float32 where all else is, else
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
            CacheConfig(**sections["cache"]),
            SchedulerConfig(**sections["scheduler"]),
            ComputeConfig(**sections["compute"]),
            ParallelConfig(**sections["parallel"]),
            _tiers(**sections["tiers"]),
        )


@dataclass(frozen=True, slots=True)
class Config:
    engine: EngineConfig
    server: ServerConfig


def without_password(url: str) -> str:
    """`redis://:secret@host` as `redis://host`."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else url


def _tiers(tiers: list[dict[str, Any]], chunk_tokens: int) -> TiersConfig:
    return TiersConfig(tuple(_tier(**tier) for tier in tiers), chunk_tokens)


def _tier(options: list[list[str]], **fields: Any) -> TierConfig:
    return TierConfig(**fields, options=tuple((key, value) for key, value in options))
