"""Adds to argparse the vLLM flags that Penstock ignores or rejects."""

from __future__ import annotations

import argparse

from penstock.config.kinds import negative
from penstock.config.log import warn
from penstock.config.vllm_flags import BY_NAME, FOREIGN


def add_foreign(parser: argparse.ArgumentParser) -> None:
    """Add each flag in `FOREIGN` that `parser` does not have. A switch is added with its
    negation.
    """
    known = {name for action in parser._actions for name in action.option_strings}
    for flag in FOREIGN:
        names = [flag.name]
        if not flag.takes_value:
            names.append(negative(flag.name))
        if free := [name for name in names if name not in known]:
            parser.add_argument(
                *free,
                action=_Notice,
                nargs=None if flag.takes_value else 0,
                const=flag.name,
                dest=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )


class _Notice(argparse.Action):
    """Action of such a flag: warns that it has no effect. Raises PenstockError if ignoring it would
    change answers.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        flag, spelling = BY_NAME[str(self.const)], option_string or str(self.const)
        if notice := flag.notice(spelling, str(values)):
            warn(notice)
