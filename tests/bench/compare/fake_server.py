"""A server for tests that answers OpenAI's completions at once. Run as a script; standard library
only.

usage: fake_server.py PORT [--name NAME] [--tokens N] [--pause S] [--die-after N] [--die]

--tokens N: answers have N tokens whatever was asked; --pause S: seconds before each token;
--die-after N: the process kills itself in the middle of answer N; --die: it ends before it listens.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    options: argparse.Namespace
    answered = 0

    def do_GET(self) -> None:
        self._json({"object": "list", "data": [{"id": self.options.name, "max_model_len": 4096}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["prompt"]
        count = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        if self.path == "/tokenize":
            ids = [hash(word) % 1000 for word in prompt.split()]
            self._json({"count": count, "tokens": ids, "max_model_len": 4096})
        else:
            self._stream(count, self.options.tokens or body["max_tokens"])

    def _stream(self, prompt_tokens: int, tokens: int) -> None:
        type(self).answered += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(tokens):
            time.sleep(self.options.pause)
            if self.options.die_after and self.answered >= self.options.die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            finish = "length" if index == tokens - 1 else None
            self._event({"choices": [{"index": 0, "text": " word", "finish_reason": finish}]})
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
        self._event({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _json(self, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--name", default="fake")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--die-after", type=int)
    parser.add_argument("--die", action="store_true")
    options = parser.parse_args()
    if options.die:
        sys.exit("cannot allocate memory")
    Handler.options = options
    Server(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
