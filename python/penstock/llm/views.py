"""Read-only views with the attributes that callers read from vLLM's `llm.llm_engine`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.llm.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelView:
    model: str
    max_model_len: int
    seed: int | None
    vocab_size: int

    def get_vocab_size(self) -> int:
        return self.vocab_size


@dataclass(frozen=True, slots=True)
class CacheView:
    block_size: int
    num_gpu_blocks: int
    """Number of blocks of the KV cache, on any device."""
    enable_prefix_caching: bool


@dataclass(frozen=True, slots=True)
class EngineView:
    model_config: ModelView
    cache_config: CacheView
    tokenizer: Tokenizer | None
    """None with skip_tokenizer_init."""

    def get_model_config(self) -> ModelView:
        return self.model_config

    def get_tokenizer(self) -> Tokenizer | None:
        return self.tokenizer
