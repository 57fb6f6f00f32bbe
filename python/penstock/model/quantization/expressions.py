"""Checks regular expressions from checkpoints, which are untrusted: matching some expressions takes
exponential time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 1000
"""Maximum length of an expression in characters."""
DEEPEST = 20
"""Maximum nesting depth of groups in an expression."""
NAME = 64
"""Assumed length of a matched name in characters. A repetition can end after any of them."""
MOST = NAME**6
"""Maximum number of ways in which an expression may match one name."""
_TOKEN = re.compile(
    r"(?P<repeat>(?:[*+]|\{\d*,?\d*\})[?+]?)|(?P<option>\?[?+]?)"
    r"|(?P<open>\((?:\?(?:P<\w+>|<?[=!]|.))?)"
    r"|(?P<close>\))|(?P<bar>\|)|(?P<atom>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)",
    re.DOTALL,
)
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")


def compiled(text: str) -> re.Pattern[str]:
    """Compile an expression. Raises `re.error` if it is invalid, or if it has more than MOST ways
    to match a name, as with nested repetitions.
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
    """The number of ways to match the part of a group that has been read."""

    whole: int = 0
    """Sum over the completed alternatives of the group."""
    sequence: int = 1
    last: int = 1
    """Number of ways to match the last item of the current alternative. `sequence` is the product
    over the items before it.
    """
    is_group: bool = False
    """Whether this last item is a group."""

    def put(self, ways: int, *, is_group: bool = False) -> None:
        self.sequence *= self.last
        self.last, self.is_group = ways, is_group

    def end(self) -> int:
        """Close the current alternative; returns the number of ways of all alternatives so far."""
        self.whole += self.sequence * self.last
        self.sequence = self.last = 1
        self.is_group = False
        return self.whole


def ways(text: str) -> int:
    """Upper bound for the number of ways to match a name: the ways of alternatives are added, the
    ways of consecutive items multiplied. Raises `re.error` for a repeated group, because it has no
    bound.
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
