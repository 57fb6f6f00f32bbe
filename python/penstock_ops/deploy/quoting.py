"""Quoting of texts for programs that interpret them: one function for each program.

A word of an engine's command is a text, or a sequence of texts and `Variable`s, whose values only a
pod or a batch job's task has. A text is therefore always data. Words contain no control characters,
because these are rejected on input.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.core import PenstockError


@dataclass(frozen=True, slots=True)
class Variable:
    """A value known only where the word is used."""

    pod: str
    """Variable in the pod's environment."""
    job: str = ""
    """Shell variable in a task of a batch job."""
    alone: str = ""
    """Replacement text elsewhere."""
    field: str = ""
    """Pod field that defines the variable, if nothing else does."""


Word = str | tuple[str | Variable, ...]

GROUP_SIZE = Variable("LWS_GROUP_SIZE", "SLURM_NNODES")
GROUP_INDEX = Variable("LWS_WORKER_INDEX", "SLURM_NODEID")
LEADER = Variable("LWS_LEADER_ADDRESS", "MASTER")
ADDRESS = Variable("POD_IP", alone="0.0.0.0", field="status.podIP")
"""The pod's own address, in the cluster's address family."""

SAFE_IN_UNITS = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


def plain(word: Word) -> str:
    """For programs that receive words verbatim, without expansion."""
    return "".join(each if isinstance(each, str) else each.alone for each in _pieces(word))


def fields(words: Iterable[Word]) -> list[dict[str, object]]:
    """Container variables that the words refer to and that come from fields of the pod."""
    named = {each for word in words for each in _pieces(word) if isinstance(each, Variable)}
    return [
        {"name": each.pod, "valueFrom": {"fieldRef": {"fieldPath": each.field}}}
        for each in sorted(named, key=lambda each: each.pod)
        if each.field
    ]


def kubernetes(word: Word) -> str:
    """For commands, arguments and values of variables, where the kubelet expands `$(NAME)` and
    reads `$$` as a dollar sign.
    """
    return "".join(
        each.replace("$", "$$") if isinstance(each, str) else f"$({each.pod})"
        for each in _pieces(word)
    )


def compose(value: object) -> object:
    """For all texts of a Compose file, where `$` starts a variable and `$$` is a dollar sign."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {key: compose(item) for key, item in value.items()}
    return [compose(item) for item in value] if isinstance(value, list) else value


def shell(word: Word) -> str:
    """For a word in the script of a batch job."""
    found = [
        f'"${{{each.job}}}"'
        if isinstance(each, Variable) and each.job
        else shlex.quote(plain((each,)))
        for each in _pieces(word)
    ]
    return "".join(found)


def unit(word: Word) -> str:
    """For a word of ExecStart, where quotes, backslashes, `%` and `$` are special."""
    text = plain(word)
    escaped = text.replace("%", "%%").replace("$", "$$")
    if SAFE_IN_UNITS.fullmatch(text):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unit_program(path: str) -> str:
    """For the first word of ExecStart. It expands no variables, and any of `-@:+!|` at its start
    would change its execution. PenstockError for a path that systemd cannot express.
    """
    if not re.match(r"[/\w]", path, re.ASCII) or "\\" in path:
        raise PenstockError(f"{path}: systemd cannot start a program of this name")
    return unit(path).replace("$$", "$")


def unit_value(text: str) -> str:
    """For a value up to the end of its line, where `%` starts a specifier."""
    return text.replace("%", "%%")


def _pieces(word: Word) -> tuple[str | Variable, ...]:
    return (word,) if isinstance(word, str) else word
