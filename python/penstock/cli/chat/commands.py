"""Slash commands of a conversation, such as /save."""

from __future__ import annotations

from collections.abc import Callable

from penstock.cli.chat.client import ChatError, Measures
from penstock.cli.chat.conversation import Answer, Conversation
from penstock.cli.chat.markdown import printable
from penstock.cli.chat.settings import SETTINGS, named, read
from penstock.cli.parser import did_you_mean
from penstock.core import shortened

HELP = f"""\
/model [NAME]         list the server's models, or switch to one
/system [TEXT]        show the system prompt, or change it and start anew
/set [NAME [VALUE]]   show the settings, change one, or leave it to the server (no VALUE):
                      {" ".join(SETTINGS)}
/stats                tokens, speed and use of the context
/retry                ask the last question again
/save [-f] FILE       write messages and settings as JSON; -f replaces a file
/load FILE            continue a conversation that /save wrote
/clear, /reset        forget the conversation, keep system prompt and settings
/help                 this list
/exit                 leave, as Ctrl-D does; Ctrl-C stops an answer

Tab completes. A pasted text is one question; so are lines from \"\"\" to \"\"\"."""
LEAVE = "Ctrl-D or /exit leaves"


class Leave(Exception):  # noqa: N818 (no error)
    """Raised to end the conversation."""


class Commands:
    """Runs the commands of the conversation `talk`, and writes their output with `show`. Without a
    terminal, /save overwrites files, and commands print no confirmation.
    """

    def __init__(
        self, talk: Conversation, show: Callable[[str], None], *, at_terminal: bool
    ) -> None:
        self._talk = talk
        self._show = show
        self._at_terminal = at_terminal
        self._commands: dict[str, Callable[[str], Answer | None]] = {
            "/model": self._model,
            "/system": self._system,
            "/set": self._set,
            "/stats": self._stats,
            "/retry": self._retry,
            "/save": self._save,
            "/load": self._load,
            "/clear": self._clear,
            "/reset": self._clear,
            "/help": lambda _rest: self._show(HELP),
            "/?": lambda _rest: self._show(HELP),
            "/exit": self._exit,
            "/quit": self._exit,
            "/bye": self._exit,
        }

    def knows(self, line: str) -> bool:
        """Whether `line` begins with a command."""
        return line.split(maxsplit=1)[0] in self._commands

    def run(self, line: str) -> Answer | None:
        """Run the command in `line`. Returns the model's answer if the command requests one. Raises
        Leave to end the conversation, and ChatError for an invalid command.
        """
        name, *rest = line.split(maxsplit=1)
        command = self._commands.get(name)
        if command is None:
            close = did_you_mean(name, self._commands)
            raise ChatError(f"no command {shortened(name)}{close} (/help has all)")
        return command(rest[0].strip() if rest else "")

    def complete(self, line: str) -> list[str]:
        """Completions of the last word of `line`, except file names."""
        words = line.split(" ")
        if len(words) == 1:
            known = list(self._commands)
        elif words[:-1] == ["/set"]:
            known = list(SETTINGS)
        elif words[:-1] == ["/model"]:
            known = [printable(name) for name in self._talk.client.models()]
        else:
            known = []
        return [word for word in known if word.startswith(words[-1])]

    def _confirm(self, text: str) -> None:
        if self._at_terminal:
            self._show(text)

    def _model(self, name: str) -> None:
        client = self._talk.client
        models = client.models()
        if not name:
            for model, context in models.items():
                mark = "*" if model == client.model else " "
                size = f" ({context} tokens of context)" if context else ""
                self._show(f"{mark} {model}{size}")
        elif name in models:
            client.model = name
            self._confirm(f"{name} answers from here on")
        else:
            known = shortened(", ".join(map(printable, models)), 200)
            raise ChatError(f"no model {name}{did_you_mean(name, models)}; the server has {known}")

    def _system(self, text: str) -> None:
        if not text:
            self._show(self._talk.system or "there is no system prompt")
            return
        self._talk.system = text
        self._talk.reset()
        self._confirm("system prompt changed, conversation forgotten")

    def _set(self, rest: str) -> None:
        settings = self._talk.client.settings
        name, value = (*rest.split(maxsplit=1), "", "")[:2]
        if not name:
            for name in SETTINGS:
                self._show(f"{name} {settings.get(name, '(as the server has it)')}")
        elif value:
            settings[name] = read(name, value)
            self._confirm(f"{name} is {settings[name]}")
        else:
            named(name)
            settings.pop(name, None)
            self._confirm(f"{name} is as the server has it")

    def _stats(self, _rest: str) -> None:
        totals, one = self._talk.totals, self._talk.measures
        self._show(
            f"{totals.answers} answers: {totals.prompt} tokens of prompts, of which "
            f"{totals.cached} were cached, and {totals.completion} of answers"
        )
        if one is not None:
            self._show(f"last answer: {summary(one, self._talk)}")

    def _retry(self, _rest: str) -> Answer:
        return self._talk.retry()

    def _save(self, rest: str) -> None:
        over = rest == "-f" or rest.startswith("-f ")
        name = rest[2:].strip() if over else rest
        if not name:
            raise ChatError("/save needs the name of a file")
        self._talk.save(name, over=over or not self._at_terminal)
        self._confirm(f"{len(self._talk.messages)} messages are in {name}")

    def _load(self, name: str) -> None:
        if not name:
            raise ChatError("/load needs the name of a file")
        model = self._talk.load(name)
        self._confirm(f"{len(self._talk.messages)} messages from {name}")
        if model not in (None, self._talk.client.model):
            self._confirm(f"they are of the model {model}; {self._talk.client.model} answers now")

    def _clear(self, _rest: str) -> None:
        self._talk.reset()
        self._confirm("conversation forgotten")

    def _exit(self, _rest: str) -> None:
        raise Leave


def summary(one: Measures, talk: Conversation) -> str:
    """Token counts, speed and context use of the last answer, as far as they are known."""
    parts = []
    if one.completion is not None:
        parts.append(f"{one.completion} tokens")
    if one.rate is not None:
        parts.append(f"{one.rate:.1f} tokens/s")
    if one.first is not None:
        parts.append(f"first after {one.first:.2f} s")
    if one.cut:
        parts.append("cut at max_tokens or the end of the context")
    used, context = talk.context_used(), talk.client.context()
    if used is not None and context:
        parts.append(f"context {used} of {context} tokens ({used / context:.0%})")
    elif used is not None:
        parts.append(f"context {used} tokens")
    return ", ".join(parts) or "the server counts no tokens"
