"""An argparse parser that attributes errors to the right command and has suggestions for typos."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """Parser that reports unknown flags as errors of the subcommand, not of `penstock`. Flags
    cannot be abbreviated.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        if found := _CHOICE.search(message):
            word, choices = found[1], re.findall(r"[^\s,']+", found[2])
            message = f"{message}{did_you_mean(word, choices)}"
        super().error(message)

    def _unknown(self, words: Sequence[str]) -> str:
        flags = [name for name in self.flags() if name.startswith("--")]
        named = [
            f"{word}{did_you_mean(word.partition('=')[0], flags)}"
            for word in words
            if word.startswith("-")
        ]
        return f"unknown: {', '.join(named or words)} (`{self.prog} --help` has all flags)"

    def flags(self) -> list[str]:
        """Names of the flags that the help shows."""
        return [
            name
            for action in self._actions
            if action.help != argparse.SUPPRESS
            for name in action.option_strings
        ]

    def commands(self) -> dict[str, Parser]:
        """Subcommands by name."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return dict(action.choices)
        return {}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or empty if no name is similar."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
