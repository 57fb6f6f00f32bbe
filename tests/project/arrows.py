"""Which room may import which: the table of ARCHITECTURE.md, in the form that test_arrows.py
checks.

A room's entry names everything it may import from Penstock besides itself. A new room needs an
entry here and a line in ARCHITECTURE.md; a new arrow needs a reason there.
"""

# Crates, by directory under crates/.
RUST: dict[str, set[str]] = {
    "formats": set(),
    "memory": set(),
    "kernels": {"memory"},
    "prefix": set(),
    "pacing": set(),
    "openai": {"wire"},
    "parsers": set(),
    "wire": set(),
    "text": {"formats"},
    "comm": set(),
    "kvstore": {"memory", "prefix", "wire"},
    "grammar": {"text", "wire"},
    "decoder": {"comm", "formats", "grammar", "kernels", "wire"},
    "engine-client": {"wire"},
    "http": set(),
    "edge": {"http", "openai"},
    "server": {
        "edge",
        "engine-client",
        "grammar",
        "http",
        "memory",
        "openai",
        "parsers",
        "text",
        "wire",
    },
    "kube": {"http"},
    "routing": set(),
    "fleet": {"http", "kube", "routing"},
    "events": set(),
    "extproc": set(),
    "gateway": {
        "edge",
        "events",
        "extproc",
        "fleet",
        "http",
        "kube",
        "openai",
        "prefix",
        "routing",
        "text",
    },
    "loadgen": {"openai"},
    "sim": {
        "engine-client",
        "fleet",
        "http",
        "openai",
        "pacing",
        "prefix",
        "routing",
        "server",
        "text",
        "wire",
    },
    # bindings of all of them
    "native": {
        "comm",
        "decoder",
        "events",
        "formats",
        "gateway",
        "grammar",
        "kernels",
        "kvstore",
        "loadgen",
        "pacing",
        "prefix",
        "sim",
        "server",
        "openai",
        "wire",
        "engine-client",
        "text",
    },
}

# Packages and modules of python/penstock. `config` and `core` are open to all.
OPEN = {"config", "core"}
ROOMS_BELOW_ENGINE = {
    "backends",
    "executor",
    "kv",
    "kv_tiers",
    "model",
    "ranks",
    "scheduler",
}
PYTHON: dict[str, set[str]] = {
    "core": set(),
    "config": set(),
    "kv": set(),
    "kv_tiers": {"kv"},
    "scheduler": {"kv", "kv_tiers"},
    "ranks": set(),
    "backends": {"gds", "model"},
    "executor": {"backends", "ranks", "worker"},
    "gds": set(),
    "worker": {"backends", "model", "ranks"},
    "model": set(),
    "engine": ROOMS_BELOW_ENGINE,
    "llm": {"engine", *ROOMS_BELOW_ENGINE},
    "kinds": set(),
    "bench": {"llm", "model"},
    "deploy": set(),
    "plan": {"backends", "bench", "model"},
    "cli": {"bench", "deploy", "engine", "kinds", "llm", "plan", "worker", *ROOMS_BELOW_ENGINE},
    "__init__": {"llm"},
    "__main__": {"cli"},
}

# Rooms that call the compiled extension.
NATIVE = {
    "backends",
    "bench",
    "cli",
    "core",  # its codec, when plans go to other processes
    "engine",
    "executor",
    "gds",
    "kv_tiers",
    "llm",
    "model",
    "plan",  # its measurements of this machine, and the prompts of mixed steps
    "ranks",
    "scheduler",  # the prompts of mixed steps
    "worker",
}

# Third-party packages of the base install and the rooms that may import them.
BASE: dict[str, set[str]] = {"yaml": {"config", "deploy", "kinds", "plan"}}
# Those of extras and the rooms that may import them, inside a function: all else works without
# them.
EXTRAS: dict[str, set[str]] = {
    "huggingface_hub": {"cli", "model"},
    "kvikio": {"gds"},
    "matplotlib": {"bench"},
    "ray": {"executor"},
}
# Those of extras and the folders that import them at the head of a file. Such a folder is imported
# by its name alone, in a function.
FOLDERS: dict[str, str] = {
    "torch": "python/penstock/backends/torch/",
    "triton": "python/penstock/backends/torch/kernels/",
}
