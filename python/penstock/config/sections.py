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
    """`inline` or `mp`."""

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline


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


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine process is told, as JSON on its command line."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    compute: ComputeConfig
    parallel: ParallelConfig = ParallelConfig()

    @property
    def kv_dtype(self) -> str:
        """Form of cached keys and values: as asked for, else float32 where all else is, else bfloat16."""
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
        )


@dataclass(frozen=True, slots=True)
class Config:
    engine: EngineConfig
    server: ServerConfig
