"""Published models for which a plan can be made by name: the keys of `config.json` that a plan
depends on. `catalogue.jsonl` has one model a line, with the source and date of its keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.core import InvalidValueError, did_you_mean

FILE = Path(__file__).with_name("catalogue.jsonl")
FORM = re.compile(r"-(instruct|chat|it|hf|base)$")
SHORTEST = 3
"""Minimum number of characters of a name to search for it within other names."""
MOST = 3
"""Maximum number of models named in a hint."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalogue."""

    name: str
    """`org/name`, as on the Hugging Face hub."""
    source: str
    """Source of the keys: a package with its version, or the publisher."""
    date: str
    """Date on which the keys were taken, as YYYY-MM-DD."""
    config: Mapping[str, object]
    """Keys of config.json."""
    quantised: Mapping[str, object]
    """Content of hf_quant_config.json; empty if the model has none."""

    @property
    def short(self) -> str:
        """The name after the slash."""
        return self.name.rpartition("/")[2]


@cache
def entries() -> Mapping[str, Entry]:
    """All models of the catalogue by name, sorted by name."""
    rows = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
    return {
        row["model"]: Entry(
            row["model"],
            row["source"],
            row["date"],
            row["config"],
            row.get("hf_quant_config", {}),
        )
        for row in rows
    }


def find(name: str) -> Entry | None:
    """The model with this name, else the only model whose name after the slash matches; case is
    ignored. None if there is none. Raises InvalidValueError if several publishers have such a
    model.
    """
    wanted = name.lower()
    found = [entry for entry in entries().values() if wanted in _spellings(entry)]
    if len(found) > 1:
        expected = f"a publisher and a name: {', '.join(entry.name for entry in found)}"
        raise InvalidValueError("MODEL", name, expected)
    return found[0] if found else None


def hint(name: str) -> str:
    """`; did you mean X?` with up to three models whose names contain this one or are similar to
    it; empty if there are none. A chat model (`-Instruct`) has the shape of its base model.
    """
    names = [entry.short for entry in entries().values()]
    head = FORM.sub("", name.rpartition("/")[2].lower())
    within = [each for each in names if len(head) >= SHORTEST and head in each.lower()]
    if within:
        return f"; did you mean {' or '.join(within[:MOST])}?"
    return did_you_mean(name, entries() if "/" in name else names, MOST)


def _spellings(entry: Entry) -> tuple[str, str]:
    return entry.name.lower(), entry.short.lower()
