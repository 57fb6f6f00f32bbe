"""Chromium without a window, on pages of origins of their own.

A page runs a script and posts what the script returns to where it came from.
"""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.limits import HANG

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PAGE = """<!doctype html><meta charset="utf-8"><script type="module">
const attempt = async (url, init) => {
  try {
    const answer = await fetch(url, init);
    return {status: answer.status, type: answer.type, text: await answer.text()};
  } catch (error) {
    return {error: error.name};
  }
};
const found = {};
for (const [name, [url, init]] of Object.entries(%s)) found[name] = await attempt(url, init);
await fetch("/found", {method: "POST", body: JSON.stringify(found)});
</script>"""

Requests = dict[str, tuple[str, dict[str, Any]]]
"""URL and options of `fetch` by name."""


def program() -> str | None:
    """The browser, when there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def version(browser: str) -> str:
    done = subprocess.run([browser, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Site:
    """An origin with one page."""

    def __init__(self) -> None:
        site = self
        self.page = ""
        self.found: queue.Queue[dict[str, Any]] = queue.Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(site.page if self.path == "/" else "")

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                site.found.put(json.loads(self.rfile.read(length)))
                self.answer("")

            def answer(self, text: str) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server.server_port}"

    def fetched(self, browser: str, requests: Requests) -> dict[str, dict[str, Any]]:
        """What `fetch` gives to the page for each request, in order: status, type and text, or the
        name of the error.
        """
        self.page = PAGE % json.dumps(requests)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            flags = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
            process = subprocess.Popen(
                [browser, *flags, f"--user-data-dir={profile}", self.origin],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                return self.found.get(timeout=HANG)
            finally:
                process.kill()
                process.wait()


@contextmanager
def site() -> Iterator[Site]:
    made = Site()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
