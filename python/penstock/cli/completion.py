"""`penstock completion SHELL`: writes a completion script for a shell, generated from the parsers
of all commands.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.cli.help import SwitchAction
from penstock.cli.parser import Parser
from penstock.hub import ALIASES

FILES = ("FILE", "FILE.yaml", "PATH", "MODEL", "DIR", "DIRECTORY")
"""Metavars (names in the help) of values that are, or can be, files."""


@dataclass(slots=True)
class Words:
    """Completions for one command."""

    path: str
    """The command, such as `penstock bench serve`."""
    commands: dict[str, str] = field(default_factory=dict)
    """Subcommands with their help."""
    flags: dict[str, str] = field(default_factory=dict)
    """Flags with their help."""
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Possible values of each flag that takes a value: `FILES` for files; empty for any text."""
    positional: tuple[str, ...] = ()
    """Possible values of the first positional argument."""


def run(shell: str, top: Parser) -> int:
    print(SCRIPTS[shell](commands(top)), end="")
    return 0


def commands(top: Parser) -> list[Words]:
    """Every command, parents first."""
    found = [_words("penstock", top)]
    for name, parser in top.commands().items():
        inner = parser.commands()
        words = _words(f"penstock {name}", parser)
        if made := parser.get_default("parsers"):
            inner = made()
            words.commands = {each: own.description or "" for each, own in inner.items()}
            words.positional = ()
        found.append(words)
        found += [_words(f"penstock {name} {each}", parser) for each, parser in inner.items()]
    return found


def _words(path: str, parser: Parser) -> Words:
    words = Words(path)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            words.commands = {name: helps.get(name, "") for name in action.choices}
        elif not action.option_strings and action.nargs != argparse.REMAINDER:
            words.positional = words.positional or _values(action)
        elif action.help != argparse.SUPPRESS:
            for spelling in action.option_strings:
                words.flags[spelling] = _help(action, spelling)
                if action.nargs != 0:
                    words.values[spelling] = _values(action)
    return words


def _values(action: argparse.Action) -> tuple[str, ...]:
    if action.choices:
        return tuple(map(str, action.choices))
    metavar = str(action.metavar or "")
    if metavar.startswith("{"):
        return tuple(metavar.strip("{}").split(","))
    if metavar == "MODEL":
        return (*ALIASES, *FILES[:1])
    return FILES[:1] if metavar in FILES else ()


def _help(action: argparse.Action, spelling: str) -> str:
    text = action.help_of(spelling) if isinstance(action, SwitchAction) else action.help or ""
    return text.split(";")[0].split(" (default")[0].split(" [PENSTOCK")[0]


def _split(values: tuple[str, ...]) -> tuple[str, bool]:
    """The words among the possible values, joined by spaces, and whether files are possible too."""
    return " ".join(value for value in values if value != FILES[0]), FILES[0] in values


def _bash_action(values: tuple[str, ...]) -> str:
    words, files = _split(values)
    action = f'COMPREPLY=($(compgen -W {shlex.quote(words)} -- "$word"))'
    if files:
        action += '; COMPREPLY+=($(compgen -f -- "$word")); compopt -o filenames 2>/dev/null'
    return action


def _bash(every: list[Words]) -> str:
    lines = [
        '# bash completion of penstock: eval "$(penstock completion bash)"',
        "_penstock() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        "  local path=penstock at next",
        "  COMPREPLY=()",
        "  for ((at = 1; at < COMP_CWORD; at++)); do",
        '    next="$path ${COMP_WORDS[at]}"',
        f'    case "$next" in {_alternatives(every[1:])}) path="$next";; *) break;; esac',
        "  done",
        '  case "$path $before" in',
    ]
    for words in every:
        for flag, values in words.values.items():
            pattern = shlex.quote(f"{words.path} {flag}")
            lines.append(f"    {pattern}) {_bash_action(values)}; return;;")
    lines += ["  esac", '  case "$path" in']
    for words in every:
        flags = shlex.quote(" ".join(words.flags))
        first = _bash_action((*words.commands, *words.positional))
        lines.append(
            f"    {shlex.quote(words.path)}) if [[ $word == -* ]]; then "
            f'COMPREPLY=($(compgen -W {flags} -- "$word")); else {first}; fi;;'
        )
    lines += ["  esac", "}", "complete -F _penstock penstock"]
    return "\n".join(lines) + "\n"


def _alternatives(every: list[Words]) -> str:
    return "|".join(shlex.quote(words.path) for words in every)


def _zsh(every: list[Words]) -> str:
    """The bash script, which zsh runs with bashcompinit."""
    start = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
    return f"#compdef penstock\n{start}{_bash(every)}"


def _fish(every: list[Words]) -> str:
    lines = ["# fish completion of penstock: penstock completion fish | source", ""]
    lines += [
        "function __penstock_at",
        "  set -l words (commandline -opc | string match -v -- '-*')",
        "  set -l count (count $argv)",
        '  test (count $words) -ge $count; and test "$words[1..$count]" = "$argv"',
        "  and begin",
        "    set -l depth (math $count + 1)",
        "    not set -q words[$depth]; or not contains -- $words[$depth] $__penstock_commands",
        "  end",
        "end",
        "complete -c penstock -f",
    ]
    names = sorted({name for words in every for name in words.commands})
    lines.insert(2, f"set -g __penstock_commands {' '.join(names)}")
    for words in every:
        at = f"complete -c penstock -n {shlex.quote('__penstock_at ' + words.path)}"
        for name, help_ in words.commands.items():
            lines.append(f"{at} -a {name} -d {shlex.quote(help_)}")
        if words.positional:
            given, files = _split(words.positional)
            lines.append(f"{at} {'-F' if files else '-f'} -a {shlex.quote(given)}")
        for flag, help_ in words.flags.items():
            kind = "-l" if flag.startswith("--") else "-o" if len(flag) > 2 else "-s"
            line = f"{at} {kind} {flag.lstrip('-')} -d {shlex.quote(help_)}"
            if flag in words.values:
                given, files = _split(words.values[flag])
                line += f" -r {'-F' if files else '-f'} -a {shlex.quote(given)}"
            lines.append(line)
    return "\n".join(lines) + "\n"


SCRIPTS: dict[str, Callable[[list[Words]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
