"""Serves OpenVINO GenAI with OpenAI's completions API, because the package has no server.

usage: openvino_server.py MODEL_DIRECTORY --port PORT --threads N     (run it in the OpenVINO
environment)

GET /health, /v1/models; POST /v1/completions (text or token ids; stream, stream_options,
max_tokens, ignore_eos, temperature), POST /tokenize ({"prompt"} -> {"count", "tokens"}). One thread
owns the pipeline and steps it while there is work. Each connection has a thread that converts
tokens to text and chunks. A disconnecting client ends its request.
"""

from __future__ import annotations

import argparse
import codecs
import itertools
import json
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

CACHE_GB = 4
FINISH = {"STOP": "stop", "LENGTH": "length"}


@dataclass
class Job:
    """A request in flight. `steps` receives the token ids and the finish reason (empty if
    unfinished) of each step, or an exception.
    """

    prompt: Any
    config: genai.GenerationConfig
    steps: queue.SimpleQueue[tuple[list[int], str] | Exception] = field(
        default_factory=queue.SimpleQueue
    )
    abandoned: bool = False
    handle: Any = None


class Pipeline(threading.Thread):
    """The thread that owns OpenVINO's pipeline: continuous batching with prefix caching."""

    def __init__(self, model: str, threads: int) -> None:
        super().__init__(daemon=True)
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = 2048
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        properties = {"INFERENCE_NUM_THREADS": threads}
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties, {})
        self.tokenizer = self._pipeline.get_tokenizer()
        self._waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._live: list[Job] = []
        self._names = itertools.count()

    def submit(self, job: Job) -> None:
        self._waiting.put(job)

    def run(self) -> None:
        while True:
            self._take_in()
            try:
                self._pipeline.step()
                self._live = [job for job in self._live if not self._deliver(job)]
            except Exception as error:  # noqa: BLE001
                for job in self._live:
                    job.steps.put(error)
                self._live = []

    def _take_in(self) -> None:
        """Add all waiting requests to the pipeline. If it has no work, wait for a request."""
        while not self._live or not self._waiting.empty():
            job = self._waiting.get()
            try:
                job.handle = self._pipeline.add_request(next(self._names), job.prompt, job.config)
            except Exception as error:  # noqa: BLE001
                job.steps.put(error)
            else:
                self._live.append(job)

    def _deliver(self, job: Job) -> bool:
        """Send a request's new tokens to its connection; returns whether the request has ended."""
        if job.abandoned:
            job.handle.cancel()
            return True
        if not job.handle.can_read():
            return False
        ids: list[int] = []
        finish = ""
        for output in job.handle.read().values():
            ids += output.generated_ids
            finish = FINISH.get(output.finish_reason.name, "")
        job.steps.put((ids, finish))
        return bool(finish)


class Text:
    """Converts the tokens of one answer to text incrementally. No piece ends within a character."""

    def __init__(self, vocabulary: Sequence[bytes]) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(self._vocabulary[token] for token in ids))


class Service:
    """State that all connections share: pipeline and vocabulary."""

    def __init__(self, model: str, threads: int) -> None:
        self.model = Path(model).name
        self.pipeline = Pipeline(model, threads)
        names = self.pipeline.tokenizer.get_vocab()
        self.vocabulary = [b""] * (max(names.values()) + 1)
        for name, token in names.items():
            self.vocabulary[token] = name
        self.length = int(
            json.loads((Path(model) / "config.json").read_text())["max_position_embeddings"]
        )
        self.names = itertools.count()
        self._encoding = threading.Lock()

    def encode(self, text: str) -> list[int]:
        with self._encoding:
            return [int(token) for token in self.pipeline.tokenizer.encode(text).input_ids.data[0]]

    def job(self, body: dict[str, Any], ids: list[int]) -> Job:
        config = genai.GenerationConfig()
        config.max_new_tokens = int(body.get("max_tokens") or 16)
        config.ignore_eos = bool(body.get("ignore_eos"))
        temperature = float(body.get("temperature") or 0)
        config.do_sample = temperature > 0
        if config.do_sample:
            config.temperature = temperature
        return Job(ov.Tensor(np.array([ids], dtype=np.int64)), config)


class Connection(BaseHTTPRequestHandler):
    """One keep-alive client connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    service: Service

    def do_GET(self) -> None:
        if self.path == "/health":
            self._json({})
        elif self.path == "/v1/models":
            entry = {
                "id": self.service.model,
                "object": "model",
                "max_model_len": self.service.length,
            }
            self._json({"object": "list", "data": [entry]})
        else:
            self._json({"error": {"message": f"no {self.path} here"}}, 404)

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            prompt = body["prompt"]
            ids = (
                self.service.encode(prompt)
                if isinstance(prompt, str)
                else [int(token) for token in prompt]
            )
        except (ValueError, KeyError, TypeError) as error:
            self._json({"error": {"message": f"wrong request: {error!r}"}}, 400)
            return
        if self.path == "/tokenize":
            self._json({"count": len(ids), "tokens": ids, "max_model_len": self.service.length})
        elif self.path != "/v1/completions":
            self._json({"error": {"message": f"no {self.path} here"}}, 404)
        elif len(ids) + int(body.get("max_tokens") or 16) > self.service.length:
            self._json({"error": {"message": f"longer than {self.service.length} tokens"}}, 400)
        else:
            self._complete(body, ids)

    def _complete(self, body: dict[str, Any], ids: list[int]) -> None:
        job = self.service.job(body, ids)
        answer = Answer(f"cmpl-{next(self.service.names)}", self.service, len(ids))
        self.service.pipeline.submit(job)
        try:
            if body.get("stream"):
                self._stream(
                    job, answer, bool((body.get("stream_options") or {}).get("include_usage"))
                )
            else:
                self._whole(job, answer)
        except OSError:
            job.abandoned = True
            self.close_connection = True

    def _stream(self, job: Job, answer: Answer, usage: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in answer.pieces(job):
            self._event(piece)
        if usage and not answer.failed:
            self._event({**answer.head(), "choices": [], "usage": answer.usage()})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _whole(self, job: Job, answer: Answer) -> None:
        pieces = list(answer.pieces(job))
        if answer.failed:
            self._json(pieces[-1], 500)
            return
        text = "".join(piece["choices"][0]["text"] for piece in pieces)
        choice = {**pieces[-1]["choices"][0], "text": text}
        self._json({**answer.head(), "choices": [choice], "usage": answer.usage()})

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _json(self, value: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        """Log no requests, because the servers compared with this one log none."""


@dataclass
class Answer:
    """The SSE chunks of one answer, and its token counts."""

    name: str
    service: Service
    prompt_tokens: int
    tokens: int = 0
    failed: bool = False

    def head(self) -> dict[str, Any]:
        return {"id": self.name, "object": "text_completion", "model": self.service.model}

    def usage(self) -> dict[str, int]:
        total = self.prompt_tokens + self.tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": total,
        }

    def pieces(self, job: Job) -> Iterator[dict[str, Any]]:
        """One chunk for each step, the last with the finish reason; after an exception, an
        error.
        """
        text = Text(self.service.vocabulary)
        while True:
            step = job.steps.get()
            if isinstance(step, Exception):
                self.failed = True
                yield {"error": {"message": str(step), "type": "server_error"}}
                return
            ids, finish = step
            self.tokens += len(ids)
            choice = {"index": 0, "text": text.add(ids), "finish_reason": finish or None}
            yield {**self.head(), "choices": [choice]}
            if finish:
                return


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser(description="OpenVINO GenAI behind OpenAI's completions")
    parser.add_argument("model", help="directory that optimum-cli exported")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    Connection.service = Service(options.model, options.threads)
    Connection.service.pipeline.start()
    print(
        f"openvino-genai {genai.__version__} at http://{options.host}:{options.port}",
        file=sys.stderr,
    )
    Server((options.host, options.port), Connection).serve_forever()


if __name__ == "__main__":
    main()
