"""A conversation: its messages and settings, in memory and in files."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from penstock.cli.chat.client import ChatClient, ChatError, Measures
from penstock.cli.chat.settings import check

Message = dict[str, str]
Answer = Generator[str, None, None]
"""Pieces of text. Closing the generator early cancels the request."""


@dataclass
class Totals:
    """Sums over the answers of this session."""

    answers: int = 0
    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def add(self, one: Measures) -> None:
        self.answers += 1
        self.prompt += one.prompt or 0
        self.completion += one.completion or 0
        self.cached += one.cached or 0


class Conversation:
    """The messages so far, without questions that were not answered."""

    def __init__(self, client: ChatClient, system: str | None) -> None:
        self.client = client
        self.system = system
        self.messages: list[Message] = []
        self.question: str | None = None
        """The last question, whether it was answered or not."""
        self._earlier: list[Message] = []
        """The messages before the last question."""
        self.measures: Measures | None = None
        """Measurements of the last answer."""
        self.totals = Totals()

    def answer(self, question: str) -> Answer:
        """Send a question to the server, and yield the answer as it arrives. Raises ChatError with
        the reason on failure. The part of the answer that has arrived by then is kept, also when
        the iterator is closed early.
        """
        self.question, self._earlier = question, self.messages
        return self._answer(question)

    def retry(self) -> Answer:
        """Repeat the last question. The new answer replaces the old one as soon as it begins to
        arrive. Raises ChatError if there is no last question.
        """
        if self.question is None:
            raise ChatError("there is no question to ask again")
        return self._answer(self.question)

    def _answer(self, question: str) -> Answer:
        asked: list[Message] = [*self._earlier, {"role": "user", "content": question}]
        parts: list[str] = []
        measures = Measures()
        self.measures = None
        try:
            sent = [*self._before(), *asked]
            with contextlib.closing(self.client.answer(sent, measures)) as texts:
                for text in texts:
                    parts.append(text)
                    yield text
        finally:
            if parts:
                self.messages = [*asked, {"role": "assistant", "content": "".join(parts)}]
            if measures.first is not None or measures.completion is not None:
                self.measures = measures
                self.totals.add(measures)

    def reset(self) -> None:
        """Delete the messages. System prompt and settings are kept."""
        self.messages, self._earlier = [], []
        self.question, self.measures = None, None

    def context_used(self) -> int | None:
        """Tokens of the context after the last answer; None if the server did not report them."""
        one = self.measures
        if one is None or one.prompt is None or one.completion is None:
            return None
        return one.prompt + one.completion

    def save(self, name: str, over: bool) -> None:
        """Write the conversation as JSON. Raises ChatError if the file exists and `over` is false,
        or if it cannot be written. On an error the file is unchanged.
        """
        path = Path(name).expanduser()
        record = {
            "model": self.client.model,
            "messages": [*self._before(), *self.messages],
            "settings": self.client.settings,
        }
        try:
            if over and path.exists():
                _replace(path, json.dumps(record, indent=2) + "\n")
            else:
                _create(path, json.dumps(record, indent=2) + "\n")
        except FileExistsError as error:
            raise ChatError(f"{name} exists: `/save -f {name}` replaces it") from error
        except OSError as error:
            raise ChatError(f"{name}: {error.strerror}") from error

    def load(self, name: str) -> str | None:
        """Continue the conversation in a file that `save` wrote. Returns the name of its model, if
        the file has one. On an error, raises ChatError with the location, and keeps the present
        conversation.
        """
        try:
            record = json.loads(Path(name).expanduser().read_bytes())
        except OSError as error:
            raise ChatError(f"{name}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ChatError(f"{name} is not JSON, which /save writes") from error
        try:
            messages, settings = _messages(record), _settings(record)
        except ChatError as error:
            raise ChatError(f"{name}: {error}") from error
        self.reset()
        self.system = None
        if messages and messages[0]["role"] == "system":
            self.system = messages.pop(0)["content"]
        self.messages = messages
        asked = [at for at, message in enumerate(messages) if message["role"] == "user"]
        if asked:
            self._earlier = messages[: asked[-1]]
            self.question = messages[asked[-1]]["content"]
        self.client.settings = settings
        model = record.get("model")
        return model if isinstance(model, str) else None

    def _before(self) -> list[Message]:
        return [{"role": "system", "content": self.system}] if self.system else []


def _messages(record: object) -> list[Message]:
    found = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(found, list):
        raise ChatError("there is no list `messages`, which /save writes")
    messages = []
    for at, message in enumerate(found):
        role, content = (
            (message.get("role"), message.get("content"))
            if isinstance(message, dict)
            else (None, None)
        )
        if role not in ("user", "assistant") and not (role == "system" and at == 0):
            raise ChatError(f"messages[{at}].role is {role!r}, expected user or assistant")
        if not isinstance(content, str):
            raise ChatError(f"messages[{at}].content is not text, and chat has no images")
        messages.append({"role": role, "content": content})
    return messages


def _settings(record: dict[str, object]) -> dict[str, object]:
    found = record.get("settings", {})
    if not isinstance(found, dict):
        raise ChatError("`settings` is not an object")
    return {name: check(name, value) for name, value in found.items()}


def _create(path: Path, text: str) -> None:
    with path.open("x") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink()
            raise


def _replace(path: Path, text: str) -> None:
    """Replace `path` by a new file, or write into `path` if it is a pipe or a device."""
    if not path.is_file():
        path.write_text(text)
        return
    target = path.resolve()
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".chat-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(temporary).chmod(target.stat().st_mode & 0o7777)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
