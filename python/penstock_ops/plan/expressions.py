"""Regular expressions from checkpoints, which are untrusted and could take exponential time."""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 1000
"""Maximum length in characters."""
DEEPEST = 20
"""Maximum nesting of groups."""
NAME = 64
"""Assumed length of a name: the number of places where a repetition can end."""
MOST = NAME**6
"""Maximum number of ways to match one name."""
_TOKEN = re.compile(
    r"(?P<repeat>(?:[*+]|\{\d*,?\d*\})[?+]?)|(?P<option>\?[?+]?)"
    r"|(?P<open>\((?:\?(?:P<\w+>|<?[=!]|.))?)"
    r"|(?P<close>\))|(?P<bar>\|)|(?P<atom>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)",
    re.DOTALL,
)
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")


def compiled(text: str) -> re.Pattern[str]:
    """Compile an expression. Raises `re.error` for an invalid one, and for one with more than MOST
    ways to match, such as nested repetitions.
    """
    if len(text) > LONGEST:
        raise re.error(f"over {LONGEST} characters")
    if _VERBOSE.search(text):
        raise re.error("the flag x is not read here")
    try:
        found = re.compile(text)
    except (OverflowError, RecursionError) as error:
        raise re.error("too large") from error
    if ways(text) > MOST:
        raise re.error("it may try too many ways to match a name")
    return found


@dataclass(slots=True)
class _Group:
    """Number of ways to match an open group so far."""

    whole: int = 0
    """Sum over its completed alternatives."""
    sequence: int = 1
    last: int = 1
    """Ways to match the last item of the sequence."""
    is_group: bool = False
    """Whether that item is a group."""

    def put(self, ways: int, *, is_group: bool = False) -> None:
        self.sequence *= self.last
        self.last, self.is_group = ways, is_group

    def end(self) -> int:
        """Close an alternative; returns the ways of all."""
        self.whole += self.sequence * self.last
        self.sequence = self.last = 1
        self.is_group = False
        return self.whole


def ways(text: str) -> int:
    """Upper bound of the ways to match a name: alternatives add, sequences multiply. Raises
    `re.error` for a repeated group, which has no bound.
    """
    groups = [_Group()]
    for token in _TOKEN.finditer(text):
        group, kind = groups[-1], token.lastgroup
        if kind == "open":
            if len(groups) > DEEPEST:
                raise re.error(f"groups nested more than {DEEPEST} deep")
            groups.append(_Group())
        elif kind == "close" and len(groups) > 1:
            groups.pop()
            groups[-1].put(group.end(), is_group=True)
        elif kind == "bar":
            group.end()
        elif kind == "repeat":
            if group.is_group:
                raise re.error("a group is repeated")
            group.last = NAME
        elif kind == "option":
            group.last += 1
        else:
            group.put(1)
    return groups[0].end()
