"""The prompt of a terminal: line editing, pasted text, history and completion."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from penstock.cli.chat.client import ChatError
from penstock.cli.chat.commands import LEAVE, Commands, Leave, summary
from penstock.cli.chat.conversation import Answer, Conversation
from penstock.cli.chat.markdown import DIM, RESET, Markdown, Plain, printable
from penstock.config import cache_directory
from penstock.config.terminal import has_styles, moves_cursor
from penstock.core import PenstockError

try:
    import readline
except ImportError:  # Some builds of Python lack readline.
    readline = None  # type: ignore[assignment]

QUOTES = '"""'
IMAGES = (".bmp", ".gif", ".heic", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
HISTORY_LINES = 1000


class Terminal:
    """The conversation `talk` at a prompt."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._commands = Commands(talk, lambda text: print(printable(text)), at_terminal=True)
        self._capable = moves_cursor()
        self._styled = has_styles()
        self._history = History(cache_directory() / "chat_history")

    def run(self) -> int:
        """Read and answer until the user quits; returns the exit status."""
        if readline is not None:
            self._set_up(readline)
        print(f"{printable(self._talk.client.model)}: /help has the commands, Ctrl-D leaves")
        try:
            while self._turn():
                pass
        finally:
            self._history.keep()
        return 0

    def _turn(self) -> bool:
        """Read and run one question or command; returns False to quit."""
        try:
            question = self._read()
        except EOFError:
            print()
            return False
        except KeyboardInterrupt:
            print(f"\n{self._dim(f'[{LEAVE}]')}")
            return True
        try:
            if question:
                self._run(question)
        except Leave:
            return False
        except PenstockError as error:
            print(f"error: {printable(str(error))}")
        except KeyboardInterrupt:
            print(self._dim(f"[stopped; {LEAVE}]"))
        return True

    def _read(self) -> str:
        """A question or command: a line, a pasted text, or the lines between quotes."""
        text = input(self._prompt("> ")).strip()
        quoted = text.startswith(QUOTES)
        if quoted:
            text = text.removeprefix(QUOTES)
            while not text.rstrip().endswith(QUOTES):
                try:
                    text += "\n" + input(self._prompt("... "))
                except EOFError:
                    print()
                    return ""
            text = text.rstrip().removesuffix(QUOTES).strip()
        # Some terminals paste carriage returns.
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._history.add(f"{QUOTES}{text}{QUOTES}" if quoted else text)
        return text

    def _run(self, text: str) -> None:
        is_command = self._commands.knows(text)
        if not is_command:
            # Check before the error about an unknown command, because paths begin with a slash too.
            refuse_images(text)
        answer: Answer | None
        if is_command or (text.startswith("/") and "\n" not in text):
            answer = self._commands.run(text)
        else:
            answer = self._talk.answer(text)
        if answer is not None:
            with contextlib.closing(answer):
                self._show(answer)

    def _show(self, answer: Answer) -> None:
        """Show an answer as it arrives, and then its measurements."""
        shown = (
            Markdown(lambda: shutil.get_terminal_size().columns, self._styled)
            if self._capable
            else Plain()
        )
        last = "\n"
        try:
            for text in answer:
                out = shown.feed(text)
                last = out[-1:] or last
                sys.stdout.write(out)
                sys.stdout.flush()
        finally:
            out = shown.end()
            print(out, end="" if (out or last).endswith("\n") else "\n", flush=True)
        if self._talk.measures is not None:
            print(self._dim(f"[{summary(self._talk.measures, self._talk)}]"))

    def _dim(self, text: str) -> str:
        return f"{DIM}{text}{RESET}" if self._styled else text

    def _prompt(self, text: str) -> str:
        # readline must be told which characters of the prompt take no columns.
        if self._styled and readline is not None:
            return f"\001{DIM}\002{text}\001{RESET}\002"
        return text

    def _set_up(self, module: ModuleType) -> None:
        self._history.open(module)
        module.set_completer_delims(" ")
        module.set_completer(Completer(self._commands, module.get_line_buffer))
        if "libedit" in (module.__doc__ or ""):
            module.parse_and_bind("bind ^I rl_complete")
        else:
            module.parse_and_bind("tab: complete")
            if self._capable:
                module.parse_and_bind("set enable-bracketed-paste on")


class Completer:
    """Completer for readline: commands, their arguments, and file names."""

    def __init__(self, commands: Commands, line: Callable[[], str]) -> None:
        self._commands = commands
        self._line = line
        self._found: list[str] = []

    def __call__(self, word: str, at: int) -> str | None:
        """Match number `at` for `word`; None after the last match."""
        if at == 0:
            self._found = self._matches(word)
            if len(self._found) == 1 and not self._found[0].endswith("/"):
                self._found[0] += " "
        return self._found[at] if at < len(self._found) else None

    def _matches(self, word: str) -> list[str]:
        line = self._line()
        if not line.startswith("/"):
            return []
        if line.startswith(("/save ", "/load ")):
            return files(word)
        # If the server cannot be reached, there are no model names to complete.
        with contextlib.suppress(PenstockError):
            return self._commands.complete(line)
        return []


def files(start: str) -> list[str]:
    """Paths that begin with `start`; directories end with a slash."""
    folder, _, name = start.rpartition("/")
    shown = f"{folder}/" if "/" in start else ""
    try:
        found = sorted(Path(shown or ".").expanduser().iterdir())
    except (OSError, RuntimeError):
        return []
    return [
        f"{shown}{printable(path.name)}{'/' if path.is_dir() else ''}"
        for path in found
        if path.name.startswith(name) and (name or not path.name.startswith("."))
    ]


def refuse_images(text: str) -> None:
    """Raise ChatError if `text` contains the path of an image. A terminal inserts such a path when
    an image is dropped on it.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    for word in words:
        if not word.lower().endswith(IMAGES):
            continue
        path = word.removeprefix("file://")
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            if Path(path).expanduser().is_file():
                raise ChatError(f"{path} is an image, and chat sends text only: leave it out")


class History:
    """Questions of this and earlier sessions, each one line of the file. A newline within a
    question is stored as a carriage return.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._added: list[str] = []
        self._module: ModuleType | None = None

    def open(self, module: ModuleType) -> None:
        self._module = module
        # A question of several lines must become one history entry.
        module.set_auto_history(False)
        for line in self._lines():
            module.add_history(line.replace("\r", "\n"))

    def add(self, text: str) -> None:
        if self._module is None or not text or text == (self._added or [""])[-1]:
            return
        self._module.add_history(text)
        self._added.append(text)

    def keep(self) -> None:
        """Append the questions of this session to the history file, which keeps at most
        HISTORY_LINES lines.
        """
        added = [text.replace("\n", "\r") for text in self._added]
        if not added:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lines = [*self._lines(), *added][-HISTORY_LINES:]
            self._path.touch(0o600)
            text = "".join(f"{line}\n" for line in lines)
            self._path.write_bytes(text.encode(errors="surrogateescape"))

    def _lines(self) -> list[str]:
        try:
            text = self._path.read_bytes().decode(errors="surrogateescape")
        except OSError:
            return []
        return [line for line in text.split("\n") if line and "\0" not in line]
