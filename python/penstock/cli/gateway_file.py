"""Finds the line in gateway.yaml that an error in the gateway's configuration is about."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from pathlib import Path

from penstock.cli.gateway_kubernetes import WrongSettingError
from penstock.config.documents import Steps, Tree, read_tree
from penstock.core import did_you_mean

_SERDE = re.compile(r"^(.*) at line 1 column (\d+)$", re.DOTALL)
UNKNOWN_FIELD = "unknown field `"
_UNKNOWN = re.compile(r"unknown field `(.*?)`, expected (?:one of )?(.*)$", re.DOTALL)
_POOL = re.compile(r'pools? "((?:[^"\\]|\\.)*)"')


def check(settings: dict[str, object], file: Path | None, of_flags: Container[str]) -> None:
    """Raise WrongSettingError for a setting that the gateway rejects. The error has the line in
    `file`, unless the value comes from a flag (`of_flags`: names of the settings set by flags).
    """
    from penstock import _native

    said = _native.gateway_complaint(json.dumps(settings))
    if said is not None:
        known = None if file is None else read_tree(file)
        raise WrongSettingError(said if known is None else located(said, settings, known, of_flags))


def located(said: str, settings: object, tree: Tree, of_flags: Container[str] = ()) -> str:
    """`FILE:LINE: error` for the error `said` about `settings`. Without FILE:LINE if the setting is
    not in the file.
    """
    if found := _SERDE.match(said):
        steps = steps_at(settings, int(found[2]))
        return _placed(tree, _in_file(steps), _with_hint(found[1]), of_flags)
    content = tree.content if isinstance(tree.content, dict) else {}
    pools = content.get("pools")
    listed = pools if isinstance(pools, list) else []
    names = [pool.get("name") if isinstance(pool, dict) else None for pool in listed]
    if (found := _POOL.search(said)) and found[1] in names:
        last = len(names) - 1 - names[::-1].index(found[1])
        return f"{tree.place('pools', last)}: {said}"
    word = re.match(r"\w+", said)
    return _placed(tree, (word[0],) if word else (), said, of_flags)


def _with_hint(said: str) -> str:
    """The error `said` or, if it is about an unknown name, a version with the most similar name
    instead of all names.
    """
    if not (found := _UNKNOWN.search(said)):
        return said
    hint = did_you_mean(found[1], re.findall(r"`(\w+)`", found[2]))
    return f"{said[: found.start()]}{UNKNOWN_FIELD}{found[1]}`{hint}" if hint else said


def _placed(tree: Tree, steps: Steps, said: str, of_flags: Container[str]) -> str:
    of_file = not steps or (steps[:1] in tree.lines and steps[0] not in of_flags)
    return f"{tree.place(*steps)}: {said}" if of_file else said


def steps_at(value: object, column: int) -> Steps:
    """Path to the value at a column (from 1) in the JSON text of `value`."""
    steps: list[str | int] = []
    start = 1
    while isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        at = start + 1
        for key, item in pairs:
            begin = at + (len(json.dumps(key)) + 2 if isinstance(key, str) else 0)
            end = begin + len(json.dumps(item))
            if column <= end:
                steps.append(key)
                value, start = item, begin
                break
            at = end + 2
        else:
            break
        if column < start:
            break
    return tuple(steps)


def _in_file(steps: Steps) -> Steps:
    """The path of a setting in the spelling of gateway.yaml, which has another form for the source
    of a pool's replicas.
    """
    if steps[:1] == ("pools",) and steps[2:4] == ("source", "static"):
        return (*steps[:2], "backends", *steps[4:])
    return steps
