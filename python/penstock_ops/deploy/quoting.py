"""Quotes texts for programs that interpret them. There is a function for each program.

A word of an engine's command is a text, or a sequence of texts and `Variable`s, whose values are
known only in a pod or in a task of a batch job. Text is always quoted, so a program never
interprets it. Words contain no control characters, because these are rejected on input.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.core import PenstockError


@dataclass(frozen=True, slots=True)
class Variable:
    """A part of a word whose value is known only where the command runs."""

    pod: str
    """Name of the environment variable in a pod."""
    job: str = ""
    """Name of the shell variable in a task of a batch job; empty if it uses `alone`."""
    alone: str = ""
    """Text to use where there is neither a pod nor such a shell variable."""
    field: str = ""
    """Field of the pod from which the environment variable is set; empty if something else
    sets it.
    """


Word = str | tuple[str | Variable, ...]

GROUP_SIZE = Variable("LWS_GROUP_SIZE", "SLURM_NNODES")
GROUP_INDEX = Variable("LWS_WORKER_INDEX", "SLURM_NODEID")
LEADER = Variable("LWS_LEADER_ADDRESS", "MASTER")
ADDRESS = Variable("POD_IP", alone="0.0.0.0", field="status.podIP")
"""The pod's own IP address, which is IPv4 or IPv6 like the cluster."""

SAFE_IN_UNITS = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


def plain(word: Word) -> str:
    """A word for programs that receive it verbatim, without expansion."""
    return "".join(each if isinstance(each, str) else each.alone for each in _pieces(word))


def fields(words: Iterable[Word]) -> list[dict[str, object]]:
    """Environment variables for the container, for those parts of `words` that come from fields of
    the pod.
    """
    named = {each for word in words for each in _pieces(word) if isinstance(each, Variable)}
    return [
        {"name": each.pod, "valueFrom": {"fieldRef": {"fieldPath": each.field}}}
        for each in sorted(named, key=lambda each: each.pod)
        if each.field
    ]


def kubernetes(word: Word) -> str:
    """A word for commands, arguments and variables of a container: the kubelet expands `$(NAME)`,
    and reads `$$` as a dollar sign.
    """
    return "".join(
        each.replace("$", "$$") if isinstance(each, str) else f"$({each.pod})"
        for each in _pieces(word)
    )


def compose(value: object) -> object:
    """A value of a Compose file with all its texts quoted: `$` starts a variable there, and `$$` is
    a dollar sign.
    """
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {key: compose(item) for key, item in value.items()}
    return [compose(item) for item in value] if isinstance(value, list) else value


def shell(word: Word) -> str:
    """A word for the shell script of a batch job."""
    found = [
        f'"${{{each.job}}}"'
        if isinstance(each, Variable) and each.job
        else shlex.quote(plain((each,)))
        for each in _pieces(word)
    ]
    return "".join(found)


def unit(word: Word) -> str:
    """A word for systemd's ExecStart, where quotes, backslashes, `%` and `$` are special."""
    text = plain(word)
    escaped = text.replace("%", "%%").replace("$", "$$")
    if SAFE_IN_UNITS.fullmatch(text):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unit_program(path: str) -> str:
    """The first word for systemd's ExecStart, the program. Variables are not expanded in it, and
    one of `-@:+!|` at its start would change how it is executed. PenstockError for a path that
    systemd cannot express, and for one that is not absolute, which it would look up by itself.
    """
    if not path.startswith("/") or "\\" in path:
        raise PenstockError(f"--program {path}: an absolute path is needed, without backslashes")
    return unit(path).replace("$$", "$")


def unit_value(text: str) -> str:
    """A text for a systemd setting that takes the rest of the line, where `%` starts a
    specifier.
    """
    return text.replace("%", "%%")


def _pieces(word: Word) -> tuple[str | Variable, ...]:
    return (word,) if isinstance(word, str) else word
