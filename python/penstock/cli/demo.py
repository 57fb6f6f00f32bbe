"""`penstock demo`: start a server, stream one answer, print one line of measurements."""

from __future__ import annotations

import http.client
import json
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from penstock.cli.local_server import (
    HOST,
    authorization,
    events,
    serve_command,
    stop,
    wait_until_ready,
)
from penstock.config.machine import free_port
from penstock.core import PenstockError
from penstock.hub import locate

MAX_TOKENS = 128


@dataclass(slots=True)
class Answer:
    asked: float
    arrivals: list[float] = field(default_factory=list)
    """Time at which each piece of text arrived, in the same clock as `asked`."""
    tokens: int = 0

    def line(self) -> str:
        if not self.arrivals:
            raise PenstockError("the server answered nothing")
        first, last = self.arrivals[0], self.arrivals[-1]
        rate = (self.tokens - 1) / (last - first) if last > first else 0.0
        return f"TTFT {(first - self.asked) * 1e3:.0f} ms, {rate:.0f} tokens/s"


def demo(model: str, question: str) -> int:
    locate(model)
    port = free_port()
    server = subprocess.Popen(serve_command(model, port))
    try:
        wait_until_ready(server, port)
        print(f"\n{question}\n", flush=True)
        answer = ask(port, question)
        print(f"\n\n{answer.line()}, {memory_line(server.pid)}", flush=True)
    finally:
        stop(server)
    return 0


def ask(port: int, question: str) -> Answer:
    """Stream one chat answer to standard output."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Content-Type": "application/json", **authorization()}
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    answer = Answer(time.monotonic())
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != http.client.OK:
        raise PenstockError(f"the server answered {response.status}: {response.read().decode()}")
    for event in events(response):
        take(event, answer)
    connection.close()
    return answer


def take(event: dict[str, object], answer: Answer) -> None:
    if "error" in event:
        raise PenstockError(f"the server ended the answer: {event['error']}")
    choices, usage = event.get("choices"), event.get("usage")
    if isinstance(choices, list) and choices and choices[0]["delta"].get("content"):
        answer.arrivals.append(time.monotonic())
        print(choices[0]["delta"]["content"], end="", flush=True)
    if isinstance(usage, dict):
        answer.tokens = int(usage["completion_tokens"])


def memory_line(pid: int) -> str:
    processes = family(pid)
    total = sum(proportional_bytes(member) for member in processes)
    return f"{total / 2**20:.0f} MiB of memory (PSS of {len(processes)} processes)"


def family(pid: int) -> list[int]:
    """`pid` and its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    members = [pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return members


def proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
