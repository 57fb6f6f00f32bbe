"""Errors of a gateway's configuration, at their line of gateway.yaml."""

from __future__ import annotations

import json
import re

from penstock.cli.gateway_kubernetes import WrongSettingError
from penstock.config.documents import Steps, Tree

_SERDE = re.compile(r"^(.*) at line 1 column (\d+)$", re.DOTALL)
_POOL = re.compile(r'pools? "((?:[^"\\]|\\.)*)"')


def check(settings: dict[str, object], tree: Tree | None) -> None:
    """WrongSettingError for settings that the gateway refuses, with the line of the file."""
    from penstock import _native

    text = json.dumps(settings)
    said = _native.gateway_complaint(text)
    if said is not None:
        raise WrongSettingError(said if tree is None else located(said, settings, tree))


def located(said: str, settings: object, tree: Tree) -> str:
    """`FILE:LINE: what is wrong`."""
    if found := _SERDE.match(said):
        steps = steps_at(settings, int(found[2]))
        return f"{tree.place(*_in_file(steps))}: {found[1]}"
    content = tree.content if isinstance(tree.content, dict) else {}
    pools = content.get("pools")
    listed = pools if isinstance(pools, list) else []
    names = [pool.get("name") if isinstance(pool, dict) else None for pool in listed]
    if (found := _POOL.search(said)) and found[1] in names:
        last = len(names) - 1 - names[::-1].index(found[1])
        return f"{tree.place('pools', last)}: {said}"
    word = re.match(r"\w+", said)
    return f"{tree.place(word[0] if word else '')}: {said}"


def steps_at(value: object, column: int) -> Steps:
    """The way to what stands at a column of the JSON of a value, from 1."""
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
    """Where the file has it: the source of a pool's replicas has another form there."""
    if steps[:1] == ("pools",) and steps[2:4] == ("source", "static"):
        return (*steps[:2], "backends", *steps[4:])
    return steps
