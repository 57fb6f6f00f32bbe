"""Serve open-weight language models on machines you own.

    from penstock import LLM, SamplingParams

Names are imported on first use, so that importing the package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.llm import (
        LLM,
        BeamSearchParams,
        CompletionOutput,
        GuidedDecodingParams,
        PoolingParams,
        RequestOutput,
        SamplingParams,
        StructuredOutputsParams,
        TextPrompt,
        TokensPrompt,
    )

__version__ = "0.2.0"
__all__ = [
    "LLM",
    "BeamSearchParams",
    "CompletionOutput",
    "GuidedDecodingParams",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        from penstock import llm

        return getattr(llm, name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
