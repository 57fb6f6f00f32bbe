"""`penstock chat`: a conversation in the terminal, with a given server or with one that the command
starts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TextIO

from penstock.cli.chat_client import ChatClient, ChatError
from penstock.cli.local_server import (
    HOST,
    api_key,
    serve_command,
    stop,
    wait_until_ready,
)
from penstock.cli.parser import did_you_mean
from penstock.config import cache_directory
from penstock.config.machine import free_port
from penstock.core import PenstockError

HELP = """\
/reset         forget the conversation, keep the system prompt
/system TEXT   change the system prompt and start anew; without TEXT show it
/save FILE     write the conversation as JSON
/exit          leave, as Ctrl-D does; Ctrl-C stops an answer"""
COMMANDS = ("/reset", "/system", "/save", "/exit", "/help")
HISTORY_LINES = 1000
CLEAR = "\r\x1b[K"
LAST_BYTES = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Talk with a model: one that a server at --url has, or MODEL, for which a server is "
        "started and stopped again. Without a terminal each line of the input is a question."
    )
    parser.epilog = f"In the conversation:\n{HELP}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="as of `penstock serve` (default: smollm2); with --url a name that the server has",
    )
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
    options = {
        name: value
        for name in ("max_tokens", "temperature")
        if (value := getattr(parsed, name)) is not None
    }
    with contextlib.ExitStack() as opened:
        url, model = parsed.url, parsed.model
        if url is None:
            url, model = opened.enter_context(own_server(model or "smollm2")), None
        client = ChatClient(url, parsed.api_key or api_key(), model, options)
        talk = Conversation(client, parsed.system, sys.stdout)
        if sys.stdin.isatty() and sys.stdout.isatty():
            return Terminal(talk).run()
        return from_pipe(talk, sys.stdin)


@contextlib.contextmanager
def own_server(model: str) -> Iterator[str]:
    """Inside the block, run a server for `model`; yields its address. Prints the server's log if it
    fails.
    """
    port = free_port()
    with tempfile.TemporaryFile() as log:
        # In a session of its own, so that Ctrl-C stops an answer and not the server.
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


class Conversation:
    """A conversation: the messages so far, without questions that were not answered."""

    def __init__(self, client: ChatClient, system: str | None, out: TextIO) -> None:
        self.client = client
        self.system = system
        self.messages: list[dict[str, str]] = []
        self._out = out
        self._terminal = out.isatty()

    def ask(self, question: str) -> None:
        """Ask the server, and print the answer as it streams. Raises ChatError with the reason if
        it fails. After Ctrl-C, the part of the answer that has arrived is kept.
        """
        before = [{"role": "system", "content": self.system}] if self.system else []
        asked = [*self.messages, {"role": "user", "content": question}]
        parts: list[str] = []
        try:
            for text in self.client.answer([*before, *asked]):
                parts.append(text)
                self._out.write(printable(text) if self._terminal else text)
                self._out.flush()
        finally:
            if parts:
                self._out.write("\n")
                self._out.flush()
                self.messages = [*asked, {"role": "assistant", "content": "".join(parts)}]

    def command(self, line: str) -> bool:
        """Run a slash command; returns False to quit. Raises ChatError for a wrong command."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name == "/exit":
            return False
        if name == "/help":
            print(HELP, file=self._out)
        elif name == "/reset":
            self.messages = []
        elif name == "/system" and rest:
            self.system, self.messages = rest, []
        elif name == "/system":
            print(self.system or "there is no system prompt", file=self._out)
        elif name == "/save":
            self._save(rest)
        else:
            raise ChatError(f"no command {name}{did_you_mean(name, COMMANDS)} (/help has all)")
        return True

    def _save(self, name: str) -> None:
        if not name:
            raise ChatError("/save needs the name of a file")
        before = [{"role": "system", "content": self.system}] if self.system else []
        record = {"model": self.client.model, "messages": [*before, *self.messages]}
        try:
            Path(name).expanduser().write_text(json.dumps(record, indent=2) + "\n")
        except OSError as error:
            raise ChatError(f"{name}: {error.strerror}") from error


def printable(text: str) -> str:
    """`text` without control characters, which a terminal would interpret."""
    return "".join(c for c in text if c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f"))


def from_pipe(talk: Conversation, lines: TextIO) -> int:
    """Answer each line of a pipe; returns the exit status, 1 if one could not be answered."""
    status = 0
    for line in lines:
        line = line.strip()
        try:
            if line.startswith("/"):
                if not talk.command(line):
                    break
            elif line:
                talk.ask(line)
        except PenstockError as error:
            print(f"penstock: error: {error}", file=sys.stderr)
            status = 1
    return status


class Terminal:
    """Questions at a prompt, with readline's line editing and history."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._history = cache_directory() / "chat_history"

    def run(self) -> int:
        self._open_history()
        print(f"{self._talk.client.model}: /help has the commands, Ctrl-D leaves")
        try:
            while self._turn():
                pass
        finally:
            self._keep_history()
        return 0

    def _turn(self) -> bool:
        """Read and run one question or command; returns False to quit."""
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return False
        except KeyboardInterrupt:
            print()
            return True
        try:
            if line.startswith("/"):
                return self._talk.command(line)
            if line:
                self._talk.ask(line)
        except PenstockError as error:
            print(f"error: {error}")
        except KeyboardInterrupt:
            print("[stopped]")
        return True

    def _open_history(self) -> None:
        # Some builds of Python lack readline; input works without it.
        with contextlib.suppress(ImportError, OSError):
            import readline

            readline.set_history_length(HISTORY_LINES)
            readline.read_history_file(self._history)

    def _keep_history(self) -> None:
        with contextlib.suppress(ImportError, OSError):
            import readline

            self._history.parent.mkdir(parents=True, exist_ok=True)
            self._history.touch(0o600)
            readline.write_history_file(self._history)
