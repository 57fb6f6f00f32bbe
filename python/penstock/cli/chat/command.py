"""The `penstock chat` command: its flags, the server that it starts, and questions from a pipe."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TextIO

from penstock.cli.chat.client import ChatClient
from penstock.cli.chat.commands import HELP, Commands, Leave
from penstock.cli.chat.conversation import Conversation
from penstock.cli.chat.markdown import printable
from penstock.cli.local_server import (
    HOST,
    api_key,
    serve_command,
    stop,
    wait_until_ready,
)
from penstock.config.machine import free_port
from penstock.core import PenstockError
from penstock.hub import locate

CLEAR = "\r\x1b[K"
LAST_BYTES = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Talk with a model: one that a server at --url has, or MODEL, for which a server is "
        "started and stopped again. With PROMPT it answers that and exits. Without a terminal each "
        "line of the input is a question."
    )
    commands = textwrap.indent(HELP, "  ", lambda line: line.startswith(("/", " ")))
    parser.epilog = f"In the conversation:\n{commands}"
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="as of `penstock serve` (default: smollm2); with --url a name that the server has",
    )
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="one question to answer")
    parser.add_argument("--url", metavar="URL", help="of a server, such as http://127.0.0.1:8000")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="for the server; better in the environment [PENSTOCK_API_KEY, OPENAI_API_KEY]",
    )
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument(
        "--max-tokens",
        metavar="N",
        type=int,
        default=1024,
        help="longest answer (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature", metavar="T", type=float, help="of sampling (default: the server's)"
    )


def run(parsed: argparse.Namespace) -> int:
    """Run the conversation. Returns the exit status, which is 1 if a question from a pipe was not
    answered.
    """
    settings = {
        name: value
        for name in ("max_tokens", "temperature")
        if (value := getattr(parsed, name)) is not None
    }
    with contextlib.ExitStack() as opened:
        url, model = parsed.url, parsed.model
        if url is None:
            url, model = opened.enter_context(own_server(model or "smollm2")), None
        client = ChatClient(url, parsed.api_key or api_key(), model, settings)
        talk = Conversation(client, parsed.system)
        if parsed.prompt is not None:
            return from_pipe(talk, [parsed.prompt], sys.stdout)
        if sys.stdin.isatty() and sys.stdout.isatty():
            # Other commands do not import this, because the import of readline writes to some
            # terminals.
            from penstock.cli.chat.terminal import Terminal

            return Terminal(talk).run()
        return from_pipe(talk, sys.stdin, sys.stdout)


@contextlib.contextmanager
def own_server(model: str) -> Iterator[str]:
    """Inside the block, run a server for `model`; yields its address. Prints the server's log if it
    fails.
    """
    locate(model)  # A download has its progress here, and the start no limit of time for it.
    port = free_port()
    with tempfile.TemporaryFile() as log:
        # A separate session, so that Ctrl-C stops the answer and not the server.
        server = subprocess.Popen(
            serve_command(model, port), stdout=log, stderr=log, start_new_session=True
        )
        try:
            with StartUp(log) as shown:
                wait_until_ready(server, port, shown.look)
            yield f"http://{HOST}:{port}"
        except PenstockError as error:
            raise PenstockError(last_line(log) or str(error)) from error
        finally:
            stop(server)


class StartUp:
    """Shows the last log line of a starting server on a terminal."""

    def __init__(self, log: IO[bytes]) -> None:
        # The server shares this file position, so read without moving it.
        self._log = log.fileno()
        self._terminal = sys.stderr.isatty()
        self._size = 0

    def __enter__(self) -> StartUp:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._size and self._terminal:
            print(CLEAR, end="", file=sys.stderr, flush=True)

    def look(self) -> None:
        size = os.fstat(self._log).st_size
        if size == self._size or not self._terminal:
            return
        self._size = size
        end = os.pread(self._log, LAST_BYTES, max(size - LAST_BYTES, 0))
        line = end.decode(errors="replace").strip().rpartition("\n")[2]
        said = printable(line.partition("penstock")[2].partition(": ")[2])
        width = shutil.get_terminal_size().columns - 1
        print(f"{CLEAR}{said[:width]}", end="\r", file=sys.stderr, flush=True)


def last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("penstock: error: ") if lines else ""


def from_pipe(talk: Conversation, lines: Iterable[str], out: TextIO) -> int:
    """Answer each of `lines`; returns the exit status, which is 1 if a question could not be
    answered.
    """
    show = printable if out.isatty() else str
    commands = Commands(talk, lambda text: print(show(text), file=out), at_terminal=False)
    status = 0
    for line in filter(None, map(str.strip, lines)):
        try:
            answer = commands.run(line) if line.startswith("/") else talk.answer(line)
            if answer is not None:
                with contextlib.closing(answer):
                    write(answer, out, show)
        except Leave:
            break
        except PenstockError as error:
            print(f"penstock: error: {error}", file=sys.stderr)
            status = 1
    return status


def write(answer: Iterator[str], out: TextIO, show: Callable[[str], str]) -> None:
    """Write an answer as it arrives, and a newline at its end unless the answer is empty."""
    some = False
    try:
        for text in answer:
            some = True
            out.write(show(text))
            out.flush()
    finally:
        if some:
            out.write("\n")
            out.flush()
