"""Output of tools and names of devices in reports: control characters are escaped, so that they
cannot move a terminal's cursor or end a line.
"""

from __future__ import annotations

from penstock.config.forms import control_character


def escaped(text: str) -> str:
    """`text` on one line, with control characters as in a Python string."""
    if not control_character(text):
        return text
    return "".join(
        each.encode("unicode_escape").decode() if control_character(each) else each for each in text
    )
