"""`penstock node-health`: a probe that checks whether the agent of a node other than 0 is alive."""

from __future__ import annotations

import sys

from penstock.config import heartbeat_directory
from penstock.executor.nodes.heartbeat import heartbeats

MOST_AGE = 60.0
"""Seconds after which a heartbeat counts as stale by default. Starting or stopping ranks may take
this long.
"""


def node_health(node: int | None, most_age: float) -> int:
    """Print the age of the heartbeats; returns 1 if one is stale or there is none."""
    directory = heartbeat_directory()
    found = [(number, age) for number, age in heartbeats(directory) if node in (None, number)]
    if not found:
        which = "node other than 0" if node is None else f"node {node}"
        print(
            f"no heartbeat of a {which} in {directory}: `penstock serve --node-rank` does not run "
            "here as this user, or with another XDG_RUNTIME_DIR",
            file=sys.stderr,
        )
        return 1
    stale = [number for number, age in found if age > most_age]
    for number, age in found:
        state = f"stale, more than {most_age:g} s" if number in stale else "alive"
        print(f"node {number}: heartbeat {age:.1f} s ago: {state}")
    return 1 if stale else 0
