"""The tiny checkpoints in tests/fixtures/tiny that have a specification in tests/fixtures/specs.
Those in MAPPINGS have no arithmetic that those in FAMILIES have not: tests of the arithmetic need
not repeat them.
"""

FAMILIES = (
    "alternating",
    "biased",
    "deepseek2",
    "deepseek3",
    "gemma2",
    "gemma2plain",
    "gemma3",
    "glm4moe",
    "gpt2",
    "gptoss",
    "llama",
    "llama3",
    "llama4",
    "llama4moe",
    "mistral",
    "mixed",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "yarn",
)

GGUF_FAMILIES = (
    "deepseek2.gguf",
    "deepseek3.gguf",
    "gemma2plain.gguf",
    "gemma3.gguf",
    "glm4moe.gguf",
    "gpt2.gguf",
    "gptoss.gguf",
    "llama3.gguf",
    "llama4moe.gguf",
    "mixtral.gguf",
    "phi3.gguf",
    "qwen2moe.gguf",
    "qwen3.gguf",
    "qwen3moe.gguf",
    "yarn.gguf",
)

MAPPINGS = (
    "ernie45moe",
    "glm4moelite",
    "qwen3vlmoe",
    "seedoss",
    "smollm3",
)

GGUF_MAPPINGS = (
    "ernie45moe.gguf",
    "seedoss.gguf",
    "smollm3.gguf",
)
