"""Plans to deploy."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main, parser
from tests.deploy.image import NAME, Images, call, debian, needs_tools
from tests.deploy.topology.trees import PAIR
from tests.plan.conftest import CONFIGS, FP8

CUDA_ROOM = 40 << 30
"""Bytes: wheels, base, two layers with them and their working copies."""
R1 = ["deepseek-ai/DeepSeek-R1", "--on", "dell-xe9680-h100:2", "--engine"]
QWQ = ["Qwen/QwQ-32B", "--on", "a10-24gb:4", "--engine"]
PLANS: dict[str, list[str]] = {
    "sglang-two-nodes": [*R1, "sglang", "-tp", "16", "--memory-fraction", "0.85"],
    "vllm-two-nodes": [*R1, "vllm", "-tp", "8", "-pp", "2"],
    "vllm-one-node": [*QWQ, "vllm", "-tp", "2", "-pp", "2", "--memory-fraction", "0.95"],
    "sglang-by-requests": [
        *("moonshotai/Kimi-K2-Instruct", "--on", "azure-nd96isr-h200-v5:2", "--engine", "sglang"),
        *("-tp", "16", "--expert-parallel", "--attention-by-requests", "--weights", "fp8"),
    ],
    "vllm-one-device": ["Qwen/Qwen3-8B", "--on", "l40s-48gb", "--engine", "vllm", "-tp", "1"],
    "vllm-eight-devices": [
        "Qwen/Qwen3-32B",
        "--on",
        "h100-sxm-80gb:8",
        "--engine",
        "vllm",
        "-tp",
        "8",
    ],
    "penstock-two-nodes": [*R1, "penstock", "-tp", "8", "-pp", "2"],
    "penstock-stage-two-nodes": [*R1, "penstock", "-tp", "16"],
    "vllm-stage-two-nodes": [*R1, "vllm", "-tp", "16"],
    "amd": ["Qwen/Qwen3-32B", "--on", "mi300x-192gb:2", "--engine", "vllm", "-tp", "2"],
}
"""Words of `penstock plan`, the model first."""
HERE = "penstock-here"
"""A plan of this machine, which is written by hand: a real one is measured."""

FRONT = ("--claim", "w", "--pod-monitor", "--gateway-image", "registry/penstock:1")
TIER = ("--kv-tier", "disk:/var/kv,64GiB")
DIRECT = ("--kv-tier", "disk:/var/kv,64GiB,gds=true")
INTERFACES = ",".join(f"ibs{number}" for number in range(8))
DEPLOYMENTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "processors": (HERE, "k8s", ("--claim", "w")),
    "pulled": (HERE, "k8s", ("--pull", "org/name", "--storage-class", "fast")),
    "image-volume": (HERE, "k8s", ("--image-volume", "registry/model:1")),
    "image-volume-group": (
        "penstock-two-nodes",
        "k8s",
        ("--image-volume", f"registry:5000/org/model:1@sha256:{64 * '1'}", "--model-path", "m"),
    ),
    "one-device": ("vllm-one-device", "k8s", ("--host-path", "/srv/models")),
    "eight-devices": ("vllm-eight-devices", "k8s", ("--claim", "w", "--pod-monitor")),
    "two-by-eight": ("penstock-two-nodes", "k8s", ("--claim", "w", "--api-key-secret", "keys")),
    "stage-over-pods": ("penstock-stage-two-nodes", "k8s", ("--claim", "w")),
    "rdma": ("sglang-two-nodes", "k8s", ("--claim", "w", "--nic-interfaces", INTERFACES)),
    "topology": ("sglang-by-requests", "k8s", ("--claim", "w", "--topology-file", "vm.xml")),
    "tiers": (
        HERE,
        "k8s",
        ("--claim", "w", "--kv-tier", "ram:4GiB", "--kv-tier", "disk:/var/kv,64GiB"),
    ),
    "claim-per-pod": (
        HERE,
        "k8s",
        ("--pull", "org/name", "--claim-per-pod", *TIER, "--kv-volume", "claim-per-pod"),
    ),
    "claims-of-group": (
        "vllm-two-nodes",
        "k8s",
        ("--pull", "org/name", "--claim-per-pod", "--kv-tier", "ram:64GiB", *TIER),
    ),
    "ephemeral-claims": (
        "penstock-two-nodes",
        "ray",
        ("--pull", "org/name", "--claim-per-pod", "ephemeral", "--scrape-annotations"),
    ),
    "nfs": (HERE, "k8s", ("--nfs", "nas:/models", *TIER, "--kv-volume", "nfs:nas:/kv")),
    "tier-on-host": (
        "penstock-two-nodes",
        "k8s",
        ("--claim", "w", *DIRECT, "--kv-volume", "hostpath:/mnt/nvme"),
    ),
    "two-listeners": (
        "vllm-one-device",
        "k8s",
        (
            *(*FRONT, "--gateway", "istio", "--plain-listener", "8080", "--listener", "8081"),
            *("--canary", "next=10", "--mirror", "shadow=5", "--failure-mode", "FailOpen"),
            *("--image-pull-secret", "registry", "--ip-family", "IPv6", "--scrape-annotations"),
        ),
    ),
    "bench": (HERE, "bench", ("--claim", "w")),
    "amd": ("amd", "k8s", ("--claim", "w", "--node-selector", "gpu=mi300x")),
    "proxy": ("vllm-one-device", "k8s", (*FRONT, "--gateway", "proxy")),
    "picker": (
        "sglang-two-nodes",
        "k8s",
        (*FRONT, "--gateway", "istio", "--picker-tls-secret", "tls", "--objective", "batch=-1"),
    ),
    "autoscaled": (HERE, "k8s", ("--claim", "w", "--autoscale-to", "8")),
    "autoscaled-group": ("vllm-two-nodes", "k8s", ("--claim", "w", "--autoscale-to", "3")),
    "keda": (HERE, "k8s", ("--claim", "w", "--autoscale-to", "8", "--prometheus", "http://p:9090")),
    "ray": ("penstock-two-nodes", "ray", (*FRONT, "--gateway", "proxy")),
    "ray-vllm": ("vllm-one-node", "ray", ("--claim", "w")),
    "ray-stage": ("vllm-stage-two-nodes", "ray", ("--claim", "w")),
}
"""Plan, target and flags."""

PARSER = cache(parser)
PLACES = ("--claim", "--host-path", "--image-volume", "--pull", "--nfs")
"""Flags that say where the model is."""
Written = Callable[..., dict[str, Any]]
Deployed = Callable[[str], dict[str, Any]]


@pytest.fixture(autouse=True)
def one_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """`main` makes the flags of each command once for all tests: that takes longer than to read a
    plan.
    """
    monkeypatch.setattr(sys.modules["penstock.cli.main"], "parser", PARSER)


@pytest.fixture(scope="session")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a plan of PLANS, or HERE. Each is made once."""

    @cache
    def make(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        path = folder / "plan.yaml"
        if kind == HERE:
            path.write_text(yaml.safe_dump(of_this_machine()))
            return path
        name, *words = PLANS[kind]
        model = folder / name.rpartition("/")[2]
        model.mkdir()
        quantised = {"quantization_config": FP8} if "DeepSeek" in name else {}
        (model / "config.json").write_text(json.dumps({**CONFIGS[name], **quantised}))
        asked = ["--rate", "0.2", "--isl", "100", "--osl", "20", "--requests", "10"]
        assert main(["plan", str(model), *words, *asked, "-o", str(path)]) == 0
        return path

    return make


@pytest.fixture
def written(plan: Callable[[str], Path], tmp_path: Path) -> Written:
    """`written(kind, *words)`: manifests by file name."""

    def write(kind: str, *words: str) -> dict[str, Any]:
        out = tmp_path / "manifests"
        given = words if any(w in PLACES for w in words) else ()
        place = () if given else ("--claim", "weights")
        asked = ["--image", "registry/engine:0", "-o", str(out), *place, *words]
        assert main(["deploy", "k8s", str(plan(kind)), *asked]) == 0
        return {path.name: yaml.safe_load(path.read_text()) for path in out.iterdir()}

    return write


@pytest.fixture
def deployed(
    plan: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Deployed:
    """`deployed(name)`: manifests of DEPLOYMENTS by file name; they are in `tmp_path`/manifests."""

    def write(name: str) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        Path("vm.xml").write_text(PAIR)
        kind, target, words = DEPLOYMENTS[name]
        asked = ["--image", "registry/engine:0", "-o", "manifests", *words]
        assert main(["deploy", target, str(plan(kind)), *asked]) == 0
        return {path.name: yaml.safe_load(path.read_text()) for path in Path("manifests").iterdir()}

    return write


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Images]:
    """A store with the base and the image."""
    with built(tmp_path_factory.mktemp("images"), repository, "") as store:
        yield store


@pytest.fixture
def cuda_images(tmp_path: Path, repository: Path) -> Iterator[Images]:
    """A store with the image for GPUs, over a base with a C compiler."""
    needs_tools()
    room = shutil.disk_usage(tmp_path).free
    if room < CUDA_ROOM:
        pytest.skip(f"{room >> 30} GiB of disk are free, the image for GPUs needs 40")
    with built(tmp_path, repository, "[cuda]", "gcc", "libc6-dev") as store:
        yield store


@contextmanager
def built(folder: Path, repository: Path, extras: str, *packages: str) -> Iterator[Images]:
    """A store with the image of the wheel with `extras` ("" or "[cuda]"), over Debian with more
    packages.
    """
    needs_tools()
    wheels = folder / "context/wheels"
    wheels.mkdir(parents=True)
    own = sorted((repository / "build/wheels").glob("penstock-*.whl"))
    assert own, "no wheel in build/wheels: make install"
    shutil.copy(own[-1], wheels)
    pip = (sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:")
    call(*pip, "-c", repository / "constraints.txt", "--dest", wheels, f"{own[-1]}{extras}")
    with Images(folder) as store:
        store.base(debian(*packages))
        store.build(repository / "deploy/Containerfile", folder / "context", NAME)
        yield store


def of_a_start(seconds: int) -> dict[str, Any]:
    """Planned times, whatever the volume."""
    row = {"seconds": seconds, "pull_seconds": 0}
    return {
        "image": {"seconds": 0},
        "weights": {kind: dict(row) for kind in ("claim", "host_path", "image")},
    }


def of_this_machine() -> dict[str, Any]:
    row = {"ranks": [0], "total": 16 << 30, "weights": 1 << 30, "kept_free": 1 << 30}
    return {
        "schema": 1,
        "model": {"name": "SmolLM2-135M", "runs": "yes"},
        "target": {"per_node": 1, "resource": "", "fabric_resources": {}},
        "engine": "penstock",
        "choice": {
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "expert_parallel": False,
            "attention_by_requests": False,
            "replicas": 2,
            "max_num_batched_tokens": 256,
            "max_num_seqs": 64,
            "max_model_len": 4096,
            "kv_cache_dtype": "bf16",
            "memory_fraction": None,
        },
        "memory": [{**row, "shared_memory": 0, "kv": 4 << 30}],
        "start": of_a_start(600),
        "thresholds": {
            "requests_waiting": {"needed": 4},
            "kv_use": {"needed": 0.875},
        },
    }
