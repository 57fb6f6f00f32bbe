"""A program in place of a server, run by its path: it is ready at once, never, or ends. Starts a
process of its own, and writes the numbers of both to a file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

# Growth between two readings: 8 s in the queue, 10 steps of 20 ms.
METRICS = """\
vllm:request_queue_time_seconds_sum {queue}
vllm:num_preemptions_total 3
penstock:engine_step_seconds_sum {seconds}
penstock:engine_step_seconds_count {steps}
"""


class Handler(BaseHTTPRequestHandler):
    readings = 0
    is_ready = True

    def do_GET(self) -> None:
        at = Handler.readings
        Handler.readings += self.path == "/metrics"
        body = METRICS.format(queue=1 + 8 * at, seconds=5 + 0.2 * at, steps=100 + 10 * at)
        self.send_response(200 if self.is_ready else 503)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


def main(mode: str, port: str, pids: str) -> int:
    child = subprocess.Popen(["sleep", "600"])
    with open(pids, "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    if mode == "ends":
        print("cannot load the weights", flush=True)
        return 7
    Handler.is_ready = mode == "ready"
    HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
