"""`--max-queue-wait` before the pace of a server is known: no request waits longer."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.server import Server, eventually, metric

LONG = {"model": "m", "prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True}
SHORT = {"model": "m", "prompt": "The capital of France is", "max_tokens": 1}
NAME = ("--served-model-name", "m")
BOUND = ("--max-num-seqs", "1", "--max-model-len", "4096", "--max-queue-wait", "1")


def test_what_waits_too_long_is_refused_and_what_has_begun_goes_on(
    model_file: Path, tmp_path: Path
) -> None:
    with Server(model_file, tmp_path, *NAME, *BOUND) as server, server.client() as client:
        with client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as long:
            events = (line for line in long.iter_lines() if line)
            assert next(events).startswith("data: {")
            with server.client() as other:
                refused = other.post("/v1/completions", json=SHORT)
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"]["code"] == "queue_full"
            assert int(refused.headers["retry-after"]) >= 1
            assert next(events).startswith("data: {")
        eventually(lambda: metric(client, "vllm:num_requests_running") == 0, "a free place")
        # Two choices at a server with one place: the second waits for the first.
        pair = client.post("/v1/completions", json=LONG | {"max_tokens": 250, "n": 2})
        assert pair.status_code == 200, pair.text
        assert [len(choice["text"]) > 0 for choice in pair.json()["choices"]] == [True, True]
