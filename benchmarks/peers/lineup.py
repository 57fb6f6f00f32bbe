"""Penstock and each peer by name: its command, environment, arithmetic and version."""

import platform
import re
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peers.client import Client
from peers.contenders import Contender, OpenVino, Server

STALL_TIMEOUT_S = "3600"  # a stopped engine must not look like a hung one to its own front door
LLAMA_CACHE_MB = (
    "2048"  # host prompt cache; the default of 8 GiB for each server does not fit beside the others
)
PEERS = ("llama-q4_1", "llama-q4_0", "vllm", "openvino")


@dataclass(frozen=True)
class Setup:
    """What the commands are made of."""

    peers: Path
    repository: Path
    penstock: Path
    threads: int
    penstock_args: Sequence[str]


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def penstock(setup: Setup, client: Client) -> Contender:
    """`penstock serve smollm2` with its defaults."""
    port = free_port()
    command = [str(setup.penstock), "serve", "smollm2", "--port", str(port)]
    command += ["--engine-stall-timeout", STALL_TIMEOUT_S, *setup.penstock_args]
    numerics = "4-bit weights (Q4_1), int8 activations, bf16 KV"
    return Server("penstock", numerics, command, {}, client, port, "/ready")


def llama(kind: str) -> Callable[[Setup, Client], Contender]:
    """llama-server with the file as shipped (q4_1) or requantised to the format it repacks (q4_0)."""

    def build(setup: Setup, client: Client) -> Contender:
        port = free_port()
        files = {"q4_1": "SmolLM2-135M-Instruct.Q4_1.gguf", "q4_0": "smol-Q4_0.gguf"}
        threads = str(setup.threads)
        command = [str(setup.peers / "llama.cpp/build/bin/llama-server")]
        command += [
            "-m",
            str(setup.peers / "model" / files[kind]),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        command += ["-t", threads, "-tb", threads, "-np", "16", "-cb", "-fa", "on", "-c", "65536"]
        command += ["--cache-ram", LLAMA_CACHE_MB, "--no-webui"]
        numerics = f"4-bit weights ({kind.upper()}), 8-bit activations, f16 KV"
        return Server(f"llama-{kind}", numerics, command, {}, client, port, "/health")

    return build


def vllm(setup: Setup, client: Client) -> Contender:
    """vLLM in bfloat16 with 4 GB of KV cache and its threads bound to the cores."""
    port = free_port()
    command = [str(setup.peers / "vllm/bin/vllm"), "serve", str(setup.peers / "hf-bf16")]
    command += ["--served-model-name", "smol", "--dtype", "bfloat16", "--max-model-len", "8192"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{setup.threads - 1}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return Server("vllm", "bf16 weights, activations and KV", command, environment, client, port, "/health")


def openvino(setup: Setup, client: Client) -> Contender:
    """OpenVINO GenAI with 8-bit weights, without HTTP. `client` is not used."""
    worker = setup.repository / "benchmarks/peers/openvino_worker.py"
    command = [str(setup.peers / "openvino/bin/python"), str(worker)]
    command += [str(setup.peers / "ov-int8"), str(setup.threads)]
    return OpenVino("openvino", "8-bit weights, u8 KV, precision as it chooses; no HTTP", command, {})


BUILDERS: dict[str, Callable[[Setup, Client], Contender]] = {
    "penstock": penstock,
    "llama-q4_1": llama("q4_1"),
    "llama-q4_0": llama("q4_0"),
    "vllm": vllm,
    "openvino": openvino,
}


def _output(*command: str) -> str:
    """First line that mentions a digit of what `command` prints, or why it could not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError as error:
        return str(error.strerror)
    lines = (done.stdout + done.stderr).splitlines()
    return next((line.strip() for line in lines if re.search(r"\d", line)), "unknown")


def versions(setup: Setup, names: Sequence[str]) -> dict[str, str]:
    """Versions of the contenders in `names` and of what they run on."""
    ask_distribution = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
    commands = {
        "penstock": (str(setup.penstock), "--version"),
        "llama": (str(setup.peers / "llama.cpp/build/bin/llama-server"), "--version"),
        "vllm": (str(setup.peers / "vllm/bin/python"), "-c", ask_distribution, "vllm-cpu"),
        "openvino": (str(setup.peers / "openvino/bin/python"), "-c", ask_distribution, "openvino-genai"),
    }
    used = {
        name: _output(*command)
        for name, command in commands.items()
        if any(n.startswith(name) for n in names)
    }
    commit = _output("git", "-C", str(setup.repository), "rev-parse", "--short", "HEAD")
    return {**used, "commit": commit, "processor": processor(), "kernel": platform.release().split("-")[0]}


def processor() -> str:
    """Name and number of the processors."""
    names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{len(names)} x {names[0]}" if names else platform.machine()
