"""`penstock chat` at a pseudo-terminal, and a server whose answers a test writes."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.limits import HANG


def environment(home: Path) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    return {**clean, "PENSTOCK_CACHE": str(home), "TERM": "dumb"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "chat", *words]


class Terminal:
    """The command at a pseudo-terminal."""

    def __init__(self, home: Path, *words: str, **variables: str) -> None:
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, command(*words), {**environment(home), **variables})
        self.text = ""

    def until(self, mark: str) -> str:
        """What was written up to `mark`, from where the last call ended."""
        deadline = time.monotonic() + HANG
        while mark not in self.text:
            assert time.monotonic() < deadline, self.text
            ready, _, _ = select.select([self._descriptor], [], [], 0.1)
            if ready:
                self.text += os.read(self._descriptor, 4096).decode(errors="replace")
        seen, _, self.text = self.text.partition(mark)
        return seen.replace("\r", "")

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def interrupt(self) -> str:
        """Press Ctrl-C at a prompt, again every 2 s, until there is the next prompt; returns what
        was written up to it. CPython's input() misses a signal just before its select(), as after
        a key.
        """
        pressed, deadline = 0.0, time.monotonic() + HANG
        while "> " not in self.text:
            now = time.monotonic()
            assert now < deadline, self.text
            if now >= pressed + 2.0:
                pressed = now
                self.type("\x03")
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self.text += os.read(self._descriptor, 4096).decode(errors="replace")
        return self.until("> ")

    def end(self) -> int:
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self._descriptor)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError(self.text)


@dataclass
class Scripted:
    """A server of the models `models`. Each answer is the next of `answers`, in pieces, and counts
    100 tokens of prompt; the last one is given again and again. Where `counts` is false, it refuses
    requests that ask for that, as some servers do.
    """

    answers: list[list[str]] = field(default_factory=lambda: [["well"]])
    models: tuple[str, ...] = ("alpha", "beta")
    counts: bool = True
    seen: list[dict[str, Any]] = field(default_factory=list)

    def __enter__(self) -> Self:
        scripted = self

        class Handler(_Handler):
            server_of = scripted

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def asked(self) -> list[str]:
        """The questions so far."""
        return [body["messages"][-1]["content"] for body in self.seen]

    def lines(self) -> list[str]:
        """The events of the next answer."""
        pieces = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        deltas = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": len(pieces),
            "prompt_tokens_details": {"cached_tokens": 64},
        }
        counted = [{"choices": [], "usage": usage}] if self.counts else []
        return [json.dumps(event) for event in [*deltas, *counted]] + ["[DONE]"]


class _Handler(BaseHTTPRequestHandler):
    server_of: Scripted

    def do_GET(self) -> None:
        listed = [{"id": name, "max_model_len": 2048} for name in self.server_of.models]
        self._answer(200, json.dumps({"data": listed}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "stream_options" in body and not self.server_of.counts:
            self._answer(400, json.dumps({"error": {"message": "no field stream_options"}}))
            return
        self.server_of.seen.append(body)
        self._answer(200, "".join(f"data: {line}\n\n" for line in self.server_of.lines()))

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""
