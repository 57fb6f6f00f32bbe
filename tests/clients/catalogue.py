"""The clients, their pinned packages and what they are known not to do.

A client has an environment of its own below `build/clients`, made once for its packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Client:
    name: str
    """As in the table of docs/clients.md."""
    script: str
    packages: tuple[str, ...]
    """With exact versions, of PyPI or of npm."""
    node: bool = False
    """Whether the packages are of npm."""
    known: Mapping[str, str] = field(default_factory=dict)
    """Features that fail for a reason that is not the server's."""


CUT = "the model's JSON is well-formed but goes on until the length limit cuts it"
SMALL = "the model is too small for a prompt to bring it to that"

CLIENTS = (
    Client("openai (Python)", "openai_.py", ("openai==3.51.0",)),
    Client("Anthropic (Python)", "anthropic_.py", ("anthropic==2.12.0",)),
    Client(
        "langchain-openai",
        "langchain_openai_.py",
        ("langchain-openai==1.7.3",),
        known={"structured output: json_mode": CUT},
    ),
    Client("instructor", "instructor_.py", ("instructor==1.17.0",)),
    Client(
        "pydantic-ai",
        "pydantic_ai_.py",
        ("pydantic-ai-slim[openai]==2.68.0",),
        known={"output type by prompt": SMALL},
    ),
    Client("openai-agents", "openai_agents_.py", ("openai-agents==0.24.0",)),
    Client("litellm", "litellm_.py", ("litellm==1.106.2", "mcp==2.3.0")),
    Client("litellm proxy", "litellm_proxy_.py", ("litellm[proxy]==1.106.2",)),
    Client(
        "LlamaIndex",
        "llama_index_.py",
        ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"),
    ),
    Client("Cohere", "cohere_.py", ("cohere==7.3.1",)),
    Client(
        "smolagents",
        "smolagents_.py",
        ("smolagents[openai]==1.26.0",),
    ),
    Client(
        "outlines",
        "outlines_.py",
        ("outlines[openai]==1.3.3",),
        known={"vllm: JSON": CUT},
    ),
    Client("DSPy", "dspy_.py", ("dspy==3.4.1",)),
    Client("Haystack", "haystack_.py", ("haystack-ai==3.4.0",)),
    Client("llm", "llm_.py", ("llm==0.36",)),
    Client("lm-eval", "lm_eval_.py", ("lm-eval[api]==0.4.13",)),
    Client("aiperf", "aiperf_.py", ("aiperf==0.13.0",)),
    Client("openai (Node)", "openai_node.mjs", ("openai@6.49.0", "zod@4"), node=True),
    Client(
        "Vercel AI SDK",
        "vercel_ai.mjs",
        ("ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.87", "zod@4"),
        node=True,
    ),
    Client("codex-cli", "codex.py", ("@openai/codex@0.169.0",), node=True),
    Client("opencode", "opencode.py", ("opencode-ai@1.18.33",), node=True),
)
