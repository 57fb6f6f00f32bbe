"""`penstock bench` as its users start it: against a scripted server, the modelled engine, the real
one.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
import pytest

from penstock.hub import locate
from tests.e2e.server import Server, eventually, metric
from tests.limits import HANG

RANDOM = ("--random-input-len", "20", "--random-output-len", "5")


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str
    result: dict[str, Any]
    """The detailed result file; empty without one."""


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def bench(directory: Path, *words: str) -> Ran:
    """`penstock bench WORDS` to its end, with a detailed file in `directory`."""
    return ended(start("bench", *words, *kept(directory)), directory)


def kept(directory: Path) -> Sequence[str]:
    return "--save-result", "--save-detailed", "--result-filename", str(directory / "result.json")


def ended(process: subprocess.Popen[str], directory: Path) -> Ran:
    out, err = process.communicate(timeout=HANG)
    path = directory / "result.json"
    return Ran(process.returncode, out, err, json.loads(path.read_text()) if path.exists() else {})


@contextmanager
def sim(*flags: str) -> Iterator[str]:
    """The address of `penstock sim FLAGS`."""
    process = start("sim", *flags)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "listening on " in line, line
        yield line.split("listening on ")[1].strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HANG)


FIRST, GAP = 0.060, 0.025
"""Seconds before the scripted server's first token, and between its tokens."""


class Scripted:
    """Answers every completion with `max_tokens` tokens at exact times after the request came."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.bodies: list[dict[str, Any]] = []
        self.off_ms: list[float] = []
        """How far from the script it wrote, by its own clock: what it cannot blame on the client.
        """
        self._port: int = 0

    @contextmanager
    def serving(self) -> Iterator[str]:
        server = self.loop.run_until_complete(
            asyncio.start_server(self._connection, "127.0.0.1", 0)
        )
        thread = threading.Thread(target=self.loop.run_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            self.loop.call_soon_threadsafe(self._end)
            thread.join(HANG)
            self.loop.close()

    def _end(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.call_soon(self.loop.call_soon, self.loop.stop)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else b""
                if path == "/v1/completions":
                    await self._complete(writer, json.loads(body))
                else:
                    self._whole(writer, path)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _whole(self, writer: asyncio.StreamWriter, path: str) -> None:
        known = path == "/v1/models"
        text = json.dumps({"data": [{"id": "scripted"}]} if known else {}).encode()
        status = "200 OK" if known else "404 Not Found"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)

    async def _complete(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        came = self.loop.time()
        if not body.get("stream"):
            # The tokenizer that this server does not have is asked for its count of words.
            words = len(str(body["prompt"]).split())
            text = json.dumps({"choices": [], "usage": {"prompt_tokens": words}}).encode()
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
            return
        self.bodies.append(body)
        headers = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n" + headers)
        count = body["max_tokens"]
        for token in range(count):
            at = came + FIRST + token * GAP
            await asyncio.sleep(at - self.loop.time())
            finish = "length" if token == count - 1 else None
            self._event(writer, {"choices": [{"index": 0, "text": " a", "finish_reason": finish}]})
            self.off_ms.append((self.loop.time() - at) * 1000)
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": count}
        self._event(writer, {"choices": [], "usage": usage})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def _event(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def test_measured_times_are_those_of_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted = Scripted()
    with scripted.serving() as url:
        words = (
            "--num-prompts",
            "60",
            "--request-rate",
            "30",
            "--percentile-metrics",
            "ttft,tpot,itl,e2el",
        )
        ran = bench(tmp_path, "serve", "--base-url", url, *RANDOM, *words)
    assert ran.status == 0, ran.err
    found = ran.result
    truth = {"ttft": FIRST, "tpot": GAP, "itl": GAP, "e2el": FIRST + 4 * GAP}
    # The medians: a client or server that stands still for a moment moves the means.
    off = {name: found[f"median_{name}_ms"] - seconds * 1000 for name, seconds in truth.items()}
    own = mean(scripted.off_ms)
    with capsys.disabled():
        listed = ", ".join(f"{name} {value:+.2f}" for name, value in off.items())
        print(f"\nmedian - script, ms: {listed}; the server itself was {own:.2f} late")
    # No server is early, and the machine may be busy: how late says nothing about the definitions.
    assert all(value > -1.0 for value in off.values()), off
    assert all(value < 1000.0 for value in off.values()), off
    assert found["completed"] == len(scripted.bodies) == 60
    assert found["output_lens"] == [5] * 60
    assert [len(gaps) for gaps in found["itls"]] == [4] * 60
    assert found["penstock"]["usage"] == {"reported": 60, "prompt_mismatch": 0, "cached_tokens": 0}
    assert found["penstock"]["detail"]["due"][-1] == pytest.approx(2.0)


FAULTS = {
    "status": "http_status",
    "error-event": "error_event",
    "cut": "no_finish",
    "no-finish": "no_finish",
    "malformed": "malformed",
    "early-stop": "short",
    "stall": "timeout",
}


@pytest.mark.parametrize(("fault", "failure"), FAULTS.items())
def test_faults_are_failures_with_their_reason(fault: str, failure: str, tmp_path: Path) -> None:
    ran = faulty(f"{fault}:0.4", tmp_path)
    assert ran.status == 0, ran.err
    failures = ran.result["penstock"]["failures"]
    assert set(failures) == {failure}
    assert 0 < failures[failure] < 30
    assert ran.result["completed"] + ran.result["failed"] == 30
    assert f"Failed ({failure}):" in ran.out
    assert ran.result["penstock"]["failure_examples"][0].startswith(f"{failure}: ")


def faulty(fault: str, directory: Path) -> Ran:
    """A load on a server with a fault. The first seed by which the questions before a load are
    spared.
    """
    # Only what stalls must reach it, and only that.
    idle = "10" if fault.startswith("stall:") else f"{HANG:.0f}"
    words = ("--num-prompts", "30", "--idle-timeout", idle, "--prompt-ids", "--vocab-size", "1000")
    for seed in range(20):
        with sim("--profile", "fast", "--fault", fault, "--seed", str(seed)) as url:
            ran = bench(directory, "serve", "--base-url", url, *RANDOM, *words)
        if "to a request for one token" not in ran.err:
            return ran
    raise AssertionError(ran.err)


def test_answers_without_usage_are_counted_by_their_events(tmp_path: Path) -> None:
    with sim("--profile", "fast", "--fault", "no-usage:1") as url:
        words = ("--num-prompts", "10", "--prompt-ids", "--vocab-size", "1000")
        ran = bench(tmp_path, "serve", "--base-url", url, *RANDOM, *words)
    assert ran.status == 0, ran.err
    assert ran.result["penstock"]["usage"]["reported"] == 0
    assert ran.result["output_lens"] == [5] * 10
    assert "Answers without usage:                   10" in ran.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_partial_file(number: signal.Signals, tmp_path: Path) -> None:
    with sim("--profile", "fast") as url:
        words = ("--num-prompts", "10000", "--request-rate", "20")
        process = start("bench", "serve", "--base-url", url, *RANDOM, *words, *kept(tmp_path))
        with httpx.Client(base_url=url) as client:
            eventually(
                lambda: metric(client, "vllm:generation_tokens_total") > 100, "a load that runs"
            )
        process.send_signal(number)
        ran = ended(process, tmp_path)
    assert ran.status == 130, ran.err
    found = ran.result
    assert found["penstock"]["partial"]
    assert 0 < found["completed"] < 10_000
    assert found["num_prompts"] == 10_000
    assert set(found["penstock"]["failures"]) <= {"interrupted", "unsent"}
    assert "Interrupted; requests not ended:" in ran.out


@pytest.mark.parametrize("scale", [0.05, 0.1])
def test_a_trace_is_sent_when_it_came(
    scale: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = [0.0, 1.5, 1.5, 4.0, 10.0, 20.0]
    rows = [f"2023-11-16 18:00:{time:010.7f},{20 + index},4" for index, time in enumerate(times)]
    trace = tmp_path / "azure.csv"
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    with sim("--profile", "fast") as url:
        ran = bench(tmp_path, "trace", str(trace), "--base-url", url, "--time-scale", str(scale))
    assert ran.status == 0, ran.err
    detail = ran.result["penstock"]["detail"]
    assert detail["due"] == pytest.approx([time * scale for time in times])
    late = [(sent - due) * 1000 for sent, due in zip(detail["sent"], detail["due"], strict=True)]
    with capsys.disabled():
        print(f"\ntrace at scale {scale}: sent at most {max(late):.2f} ms late")
    assert min(late) >= 0
    assert ran.result["input_lens"] == [20 + index for index in range(6)]
    assert ran.result["output_lens"] == [4] * 6


def test_nobody_listens(tmp_path: Path) -> None:
    ran = bench(tmp_path, "serve", "--port", "1", *RANDOM)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith("penstock: error: no answer from http://127.0.0.1:1/v1/models")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--prompt-ids",),
        ("--backend", "openai-chat"),
        ("--tokenizer", "smollm2", "--random-prefix-len", "40", "--random-range-ratio", "0.5"),
    ],
    ids=["text", "ids", "chat", "prefix"],
)
def test_the_real_server_counts_what_was_asked(
    server: Server, words: Sequence[str], tmp_path: Path
) -> None:
    if "--tokenizer" in words and not locate("smollm2").path.is_file():
        pytest.skip("no default model: run `penstock pull smollm2`")
    lengths = ("--random-input-len", "60", "--random-output-len", "4", "--num-prompts", "8")
    ran = bench(
        tmp_path, "serve", "--base-url", server.url, *lengths, "--max-concurrency", "4", *words
    )
    assert ran.status == 0, ran.err
    found = ran.result
    assert found["completed"] == 8
    assert found["penstock"]["usage"]["reported"] == 8
    assert found["penstock"]["usage"]["prompt_mismatch"] == 0
    if not words:
        assert found["input_lens"] == [60] * 8
        assert found["penstock"]["usage"]["cached_tokens"] == 0
    if "openai-chat" not in words:
        assert sum(found["output_lens"]) == found["total_output_tokens"]
    assert "Prompts of another length than asked:    0" in ran.out
