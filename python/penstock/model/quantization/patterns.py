"""Patterns that name modules of a checkpoint in its quantisation settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from penstock.core.errors import shortened
from penstock.model.errors import ModelError
from penstock.model.fields import Fields
from penstock.model.quantization.expressions import compiled

_WILD = {"*": ".*", "?": "."}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A name, or an expression, that matches modules.

    `name`: the whole name. `match`, `search`: a regular expression, from the start of the name or
    anywhere in it. `contains`: any part of the name. `path`: components of the name that follow
    each other. `glob`: wildcards `*` and `?` in the name of the module, or of one that contains it.
    """

    kind: Literal["name", "match", "search", "contains", "path", "glob"]
    text: str
    key: str
    """Key of the settings in which the pattern occurs, for errors."""

    def expression(self) -> re.Pattern[str]:
        """The compiled form of a pattern that is not plain text. Raises `re.error` for an invalid
        expression, and for one that may take too long.
        """
        return _expression(self.kind, self.text)

    def matches(self, name: str) -> bool:
        if self.kind == "name":
            return name == self.text
        if self.kind == "contains":
            return self.text in name
        found = self.expression()
        return bool(found.match(name) if self.kind in ("match", "glob") else found.search(name))


@lru_cache(maxsize=4096)
def _expression(kind: str, text: str) -> re.Pattern[str]:
    match kind:
        case "path":
            return re.compile(rf"(?:^|\.){re.escape(text.strip('.'))}(?:\.|$)")
        case "glob":
            wanted = "".join(_WILD.get(each, re.escape(each)) for each in text)
            return compiled(rf"{wanted}(\..*)?\Z")
        case _:
            return compiled(text)


def checked(fields: Fields, pattern: Pattern) -> Pattern:
    """`pattern` itself. Raises ModelError if it is no expression that can be matched."""
    try:
        pattern.expression()
    except re.error as error:
        shown = shortened(repr(pattern.text), 80)
        raise ModelError(
            fields.file,
            f"{pattern.key}: {shown} is not a supported regular expression: {error}",
        ) from error
    return pattern


def wild(key: str, text: str) -> Pattern:
    """The pattern of formats that allow wildcards, and parts of names."""
    return Pattern("glob" if re.search(r"[*?]", text) else "path", text, key)
