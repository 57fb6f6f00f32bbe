"""Texts in what other programs read as code: a function for each of these programs.

A word of an engine's command is a text, or texts and what only a pod or a task of a job knows. So
a text is data whatever is in it. Control characters are in no word: they are refused where names
enter.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.core import PenstockError


@dataclass(frozen=True, slots=True)
class Variable:
    """A value that is known where the word is used."""

    pod: str
    """Variable of the pod's environment."""
    job: str = ""
    """Variable of the shell in a task of a batch job."""
    alone: str = ""
    """The text that stands for it elsewhere."""
    field: str = ""
    """Field of the pod that the variable is made of, where nothing else makes it."""


Word = str | tuple[str | Variable, ...]

GROUP_SIZE = Variable("LWS_GROUP_SIZE", "SLURM_NNODES")
GROUP_INDEX = Variable("LWS_WORKER_INDEX", "SLURM_NODEID")
LEADER = Variable("LWS_LEADER_ADDRESS", "MASTER")
ADDRESS = Variable("POD_IP", alone="0.0.0.0", field="status.podIP")
"""The pod's own, of the family that its cluster has."""

SAFE_IN_UNITS = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


def plain(word: Word) -> str:
    """For a program that is given words, and expands nothing."""
    return "".join(each if isinstance(each, str) else each.alone for each in _pieces(word))


def fields(words: Iterable[Word]) -> list[dict[str, object]]:
    """Variables of a container that its words name and its pod's fields have."""
    named = {each for word in words for each in _pieces(word) if isinstance(each, Variable)}
    return [
        {"name": each.pod, "valueFrom": {"fieldRef": {"fieldPath": each.field}}}
        for each in sorted(named, key=lambda each: each.pod)
        if each.field
    ]


def kubernetes(word: Word) -> str:
    """In commands, arguments and values of variables, where the kubelet puts values for `$(NAME)`
    and takes `$$` for a dollar.
    """
    return "".join(
        each.replace("$", "$$") if isinstance(each, str) else f"$({each.pod})"
        for each in _pieces(word)
    )


def compose(value: object) -> object:
    """All texts of a Compose file, where `$` begins a variable and `$$` is a dollar."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {key: compose(item) for key, item in value.items()}
    return [compose(item) for item in value] if isinstance(value, list) else value


def shell(word: Word) -> str:
    """A word of a script of a batch job."""
    found = [
        f'"${{{each.job}}}"'
        if isinstance(each, Variable) and each.job
        else shlex.quote(plain((each,)))
        for each in _pieces(word)
    ]
    return "".join(found)


def unit(word: Word) -> str:
    """A word of ExecStart: quotes, backslashes, `%` and `$` have a meaning there."""
    text = plain(word)
    escaped = text.replace("%", "%%").replace("$", "$$")
    if SAFE_IN_UNITS.fullmatch(text):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unit_program(path: str) -> str:
    """The first word of ExecStart: no variable begins in it, and each of `-@:+!|` at its start
    would change what is run. PenstockError for what systemd has no form for.
    """
    if not re.match(r"[/\w]", path, re.ASCII) or "\\" in path:
        raise PenstockError(f"{path}: systemd cannot start a program of this name")
    return unit(path).replace("$$", "$")


def unit_value(text: str) -> str:
    """A value to the end of its line, such as a description: `%` begins a specifier."""
    return text.replace("%", "%%")


def _pieces(word: Word) -> tuple[str | Variable, ...]:
    return (word,) if isinstance(word, str) else word
