"""Help output: the formatter of all commands, a switch and its negation on one line, and
`--help-all`.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from penstock.config.kinds import negative

MOST_COLUMNS = 100
"""Maximum line length, for readability."""


class HelpFormatter(argparse.HelpFormatter):
    """Wraps lines to the terminal's width, only at spaces, so that names of flags and files stay
    whole. In descriptions, lines that begin with a space are kept unchanged.
    """

    def __init__(self, prog: str, **kwargs: Any) -> None:
        width = min(shutil.get_terminal_size().columns, MOST_COLUMNS) - 2
        super().__init__(prog, **{"width": width, **kwargs})

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for line in text.splitlines():
            kept = not line or line.startswith(" ")
            lines += [line] if kept else self._split_lines(line, width - len(indent))
        return "\n".join(indent + line for line in lines)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, SwitchAction):
            return f"--[no-]{action.option_strings[0].removeprefix('--')}"
        return super()._format_action_invocation(action)


class SwitchAction(argparse.Action):
    """A switch and its negation. The value is the text `true` or `false`."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        (name,) = option_strings
        super().__init__([name, negative(name)], dest, nargs=0, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(
            namespace, self.dest, "true" if option_string == self.option_strings[0] else "false"
        )

    def help_of(self, spelling: str) -> str:
        """Help of one of the two names."""
        name = self.option_strings[0]
        return self.help or "" if spelling == name else f"the opposite of {name}"
