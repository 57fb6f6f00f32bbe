"""Allowed imports between rooms; test_arrows.py enforces them.

A room's entry names everything it may import from Penstock besides itself. A new room needs an
entry here and a line in ARCHITECTURE.md; a new arrow needs a reason.
"""

# Products, by directory under crates/: each with those below it.
PRODUCTS: dict[str, set[str]] = {
    "base": set(),
    "compute": {"base"},
    "kv": {"base"},
    "server": {"base"},
    "gateway": {"base", "kv", "server"},
    "lab": {"base", "gateway", "kv", "server"},
    "native": {"base", "compute", "gateway", "kv", "lab", "server"},
}

# Crates, by directory under their product's.
RUST: dict[str, set[str]] = {
    "checkpoint": set(),
    "memory": set(),
    "kernels": {"memory"},
    "prefix": set(),
    "pacing": set(),
    "api-types": {"wire"},
    "output-parsers": set(),
    "wire": set(),
    "tokenizer": {"checkpoint"},
    "collectives": set(),
    "kvstore": {"memory", "prefix", "wire"},
    "structured-output": {"tokenizer", "wire"},
    "decoder": {"collectives", "checkpoint", "structured-output", "kernels", "wire"},
    "engine-client": {"wire"},
    "http": set(),
    "page": set(),
    "api-http": {"http", "api-types", "page"},
    "server": {
        "api-http",
        "engine-client",
        "structured-output",
        "http",
        "memory",
        "page",
        "api-types",
        "output-parsers",
        "tokenizer",
        "wire",
    },
    "kube": {"http"},
    "routing": set(),
    "fleet": {"http", "kube", "routing"},
    "kv-events": set(),
    "extproc": set(),
    "gateway": {
        "api-http",
        "kv-events",
        "extproc",
        "fleet",
        "http",
        "kube",
        "api-types",
        "page",
        "prefix",
        "routing",
        "tokenizer",
    },
    "loadgen": {"api-types"},
    "sim": {
        "engine-client",
        "fleet",
        "http",
        "api-types",
        "pacing",
        "prefix",
        "routing",
        "server",
        "tokenizer",
        "wire",
    },
    # bindings of all of them
    "native": {
        "collectives",
        "decoder",
        "kube",
        "kv-events",
        "checkpoint",
        "gateway",
        "structured-output",
        "kernels",
        "kvstore",
        "loadgen",
        "pacing",
        "prefix",
        "sim",
        "server",
        "api-types",
        "wire",
        "engine-client",
        "tokenizer",
    },
}

# Packages and modules of python/penstock, and the packages beside it: penstock_lab measures,
# penstock_ops plans and deploys. `config` and `core` are open to all.
OPEN = {"config", "core"}
ROOMS_BELOW_ENGINE = {
    "backends",
    "executor",
    "kv",
    "model",
    "scheduler",
}
PYTHON: dict[str, set[str]] = {
    "core": set(),
    "config": set(),
    "kv": set(),
    "scheduler": {"kv"},
    "backends": {"kv", "model"},
    "executor": {"backends", "model"},
    "model": set(),
    "engine": ROOMS_BELOW_ENGINE,
    "hub": {"model"},
    "llm": {"engine", "hub", *ROOMS_BELOW_ENGINE},
    "inference_extension": set(),
    "cli": {"engine", "hub", "inference_extension", "llm", *ROOMS_BELOW_ENGINE},
    "__init__": {"llm"},
    "__main__": {"cli"},
    "penstock_lab.bench": {"cli", "executor", "hub", "llm", "model"},
    "penstock_lab.route": {"cli", "inference_extension", "penstock_lab.bench", "penstock_lab.sim"},
    "penstock_lab.sim": {"cli", "hub", "model"},
    "penstock_ops.deploy": {"penstock_ops.plan"},  # node types
    "penstock_ops.plan": {"backends", "hub", "model", "penstock_lab.bench"},
    "penstock_ops.top": set(),
    # deploy: the command of a host; executor: its address; top: the reader of metrics.
    "penstock_ops.up": {
        "executor",
        "hub",
        "model",
        "penstock_lab.bench",
        "penstock_ops.deploy",
        "penstock_ops.plan",
        "penstock_ops.top",
        "penstock_ops.verify",
    },
    # backends: the options of the engine's client of KV tiers.
    "penstock_ops.verify": {"backends", "executor", "kv", "penstock_ops.plan"},
}

# Rooms that call the compiled extension.
NATIVE = {
    "backends",
    "cli",
    "core",  # its codec, when plans go to other processes
    "engine",
    "executor",
    "kv",
    "llm",
    "model",
    "penstock_lab.bench",
    "penstock_lab.sim",
    "penstock_ops.deploy",  # the client of a Kubernetes API server
    "penstock_ops.plan",  # its measurements of this machine, and the prompts of mixed steps
    "penstock_ops.verify",  # the engine's client of KV tiers
    "scheduler",  # the prompts of mixed steps
}

# Floors of the torch backend: its packages, and the files beside them. The ground is open to the
# upper ones.
TORCH = "penstock.backends.torch"
TORCH_GROUND = {"async_copy", "checks", "device_lost", "inputs", "kernels", "runtime", "shard"}
TORCH_FLOORS: dict[str, set[str]] = {
    "runtime": set(),
    "kernels": {"runtime"},
    "shard": set(),
    "checks": set(),
    "device_lost": {"runtime"},
    "async_copy": {"device_lost", "kernels", "runtime"},
    "load": {"kernels", "runtime", "shard"},
    "inputs": {"kernels", "load", "runtime"},
    "kv": {"async_copy", "load", "runtime", "shard"},
    "sampling": {"checks", "inputs", "kernels"},
    "ranks": {"async_copy", "device_lost", "inputs", "runtime", "sampling", "shard"},
    "layers": {"inputs", "kernels", "kv", "load", "ranks", "shard"},
    "step": {"layers", "load", "sampling", *TORCH_GROUND},
    "startup": {"kv", "layers", "load", "ranks", "sampling", "step", *TORCH_GROUND},
    "backend": {"kv", "layers", "load", "ranks", "sampling", "startup", "step", *TORCH_GROUND},
    "__init__": {"backend", "step"},
}

# Third-party packages of the base install and the rooms that may import them.
BASE: dict[str, set[str]] = {
    "yaml": {"config", "inference_extension", "penstock_ops.deploy", "penstock_ops.plan"}
}
# Those of extras and the rooms that may import them, inside a function: all else works without
# them.
EXTRAS: dict[str, set[str]] = {
    "kvikio": {"kv"},
    "matplotlib": {"penstock_lab.bench"},
    "ray": {"executor"},
}
# Those of extras and the folders that import them at the head of a file. Such a folder is imported
# by its name alone, in a function.
FOLDERS: dict[str, str] = {
    "torch": "python/penstock/backends/torch/",
    "triton": "python/penstock/backends/torch/kernels/",
}
