"""The tiny checkpoints in tests/fixtures/tiny that have a specification in tests/fixtures/specs."""

FAMILIES = (
    "alternating",
    "biased",
    "gemma2",
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
