"""An argparse parser that attributes errors to the right command and suggests corrections of
typos.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn

from penstock.cli.help import HelpFormatter
from penstock.core import did_you_mean as did_you_mean

ELSEWHERE = {
    "-m": "MODEL",
    "-p": "PROMPT",
    "--prompt": "PROMPT",
    "--model": "MODEL",
    "-c": "--max-model-len",
    "-np": "--max-num-seqs",
    "-b": "--max-num-batched-tokens",
    "-t": "--threads",
    "-a": "--served-model-name",
    "-ngl": "--device cuda",
    "--n-gpu-layers": "--device cuda",
    "--gpu-layers": "--device cuda",
    "--ctx-size": "--max-model-len",
    "--context-length": "--max-model-len",
    "--parallel": "--max-num-seqs",
    "--max-running-requests": "--max-num-seqs",
    "--batch-size": "--max-num-batched-tokens",
    "--ubatch-size": "--max-num-batched-tokens",
    "--chunked-prefill-size": "--max-num-batched-tokens",
    "--cache-type-k": "--kv-cache-dtype",
    "--cache-type-v": "--kv-cache-dtype",
    "--alias": "--served-model-name",
    "--tp-size": "--tensor-parallel-size",
    "--pp-size": "--pipeline-parallel-size",
    "--chat-template-file": "--chat-template",
}
"""Flags of llama.cpp's server and of SGLang, each with its equivalent here: a flag, or an argument
by its name in the help.
"""
_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)


def _similar(word: str, known: Collection[str]) -> str:
    """Suggestion for an unknown flag: its equivalent here, or a known flag with a similar
    spelling.
    """
    name = word.partition("=")[0]
    here = ELSEWHERE.get(name, "")
    if here and here.split()[0] in known:
        return f"; here it is {here}"
    # The flag --help shares letters with many others, so it would be a wrong suggestion.
    likely = [flag for flag in known if not flag.startswith("--help") or name.startswith("--h")]
    return did_you_mean(name, likely)


class Parser(argparse.ArgumentParser):
    """Parser that reports unknown flags as errors of the subcommand, not of `penstock`. Flags
    cannot be abbreviated. `group` is the heading of this command in the help of its parent.
    """

    def __init__(self, *args: Any, group: str = "", **kwargs: Any) -> None:
        usual = {"allow_abbrev": False, "formatter_class": HelpFormatter}
        super().__init__(*args, **{**usual, **kwargs})
        self.group = group
        self.elsewhere: Callable[[str], str] = lambda _: ""
        """Suggestion for a command that does not exist: the command to run instead, in words; empty
        if unknown.
        """
        self._common: Collection[str] = ()

    def shorten(self, common: Collection[str], more: str) -> None:
        """With --help, show only the flags in `common`, followed by the text `more`. With
        --help-all, show all flags.
        """
        self.add_argument("--help-all", action=_HelpAll, help="show all flags, and exit")
        self._common = {"--help", "--help-all", *common}
        self.epilog = "\n".join(filter(None, [self.epilog, more]))

    def format_help(self, *, everything: bool = False) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, text, actions in self._sections():
            shown = [one for one in actions if everything or self._is_common(one)]
            if shown:
                formatter.start_section(title)
                formatter.add_text(text)
                formatter.add_arguments(shown)
                formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _sections(self) -> Iterator[tuple[str | None, str | None, Sequence[argparse.Action]]]:
        """Heading, description and members of each group of commands and of flags."""
        for group in self._action_groups:
            members = []
            for action in group._group_actions:
                if grouped := _grouped_commands(action):
                    yield from ((title, None, own) for title, own in grouped.items())
                else:
                    members.append(action)
            yield group.title, group.description, members

    def _is_common(self, action: argparse.Action) -> bool:
        named = any(name in self._common for name in action.option_strings)
        return named or not self._common or not action.option_strings

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
            if here := self.elsewhere(word):
                message = f"no command {word!r}; {here}"
            else:
                message = f"{message}{did_you_mean(word, choices)}"
        super().error(message)

    def _get_option_tuples(self, option_string: str) -> Any:
        """Candidates for `option_string`, without the longer short flags. By default argparse
        accepts -t for -tp even if abbreviations are off.
        """
        name = option_string.partition("=")[0]
        found = super()._get_option_tuples(option_string)
        return [one for one in found if one[1] in (name, name[:2])]

    def _unknown(self, words: Sequence[str]) -> str:
        known = [name for name in self.flags() if name.startswith("--")]
        known += [str(one.metavar) for one in self._actions if not one.option_strings]
        named = [f"{word}{_similar(word, known)}" for word in words if word.startswith("-")]
        every = "--help-all" if self._common else "--help"
        return f"unknown: {', '.join(named or words)} (`{self.prog} {every}` has all flags)"

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


def _grouped_commands(action: argparse.Action) -> dict[str, list[argparse.Action]]:
    """Commands by heading, in the order of each heading's first command; empty if commands have no
    headings.
    """
    grouped: dict[str, list[argparse.Action]] = {}
    if isinstance(action, argparse._SubParsersAction):
        for command in action._choices_actions:
            if title := action.choices[command.dest].group:
                grouped.setdefault(title, []).append(command)
    return grouped


class _HelpAll(argparse.Action):
    """Action of --help-all."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, Parser)
        print(parser.format_help(everything=True), end="")
        parser.exit()
