"""What `--help` shows: commands in groups, the flags that matter, a text for each."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from penstock.cli import gateway_flags
from penstock.cli.arguments import COMMON
from penstock.cli.main import GROUPS, main, parser
from penstock.cli.parser import Parser
from penstock.config.flags import FLAGS
from penstock.config.flags import GROUPS as SECTIONS
from penstock.config.kinds import Switch


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    return capsys.readouterr().out


def section(text: str, title: str) -> str:
    return text.split(f"\n{title}:\n")[1].split("\n\n")[0]


def flags(text: str) -> list[str]:
    """The flags that a help shows, without the negations of switches."""
    found = re.findall(r"^  (?:-\w, )?--((?:\[no-\])?[\w-]+)", text, re.MULTILINE)
    return [f"--{name.removeprefix('[no-]')}" for name in found]


def every_command() -> Iterator[tuple[str, Parser]]:
    waiting = [("penstock", parser())]
    while waiting:
        path, own = waiting.pop()
        yield path, own
        lazily = own.get_default("parsers")
        inner = {**own.commands(), **(lazily() if lazily else {})}
        waiting += [(f"{path} {name}", one) for name, one in inner.items()]


def test_every_command_is_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--help")
    assert re.findall(r"^(\w.*):$", text, re.MULTILINE) == [*GROUPS, "options", "Examples"]
    for name, command in parser().commands().items():
        assert re.search(rf"^  {name} +\w", section(text, command.group), re.MULTILINE), name
        assert len(re.findall(rf"^  {name} ", text, re.MULTILINE)) == 1


def test_serve_shows_the_flags_that_matter(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "serve", "--help")
    assert len(COMMON) == 15
    assert sorted(flags(text)) == sorted(["--help", "--help-all", *COMMON])
    assert "  --[no-]access-log " in text
    assert text.endswith("All flags: `penstock serve --help-all`, docs/flags.md.\n")


def test_help_all_has_every_flag_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "serve", "--help-all")
    for flag in FLAGS:
        own = section(text, SECTIONS[flag.group])
        name = f"--[no-]{flag.name[2:]}" if isinstance(flag.kind, Switch) else flag.name
        assert f"  {name}" in own
        assert flag.env in "".join(own.split())


def test_the_gateway_shows_the_flags_that_matter(capsys: pytest.CaptureFixture[str]) -> None:
    every = flags(shown(capsys, "gateway", "--help-all"))
    few = flags(shown(capsys, "gateway", "--help"))
    assert sorted(few) == sorted(["--help", "--help-all", *gateway_flags.COMMON])
    own = argparse.ArgumentParser()
    gateway_flags.add_arguments(own)
    assert {action.option_strings[-1] for action in own._actions} <= set(every)


def test_every_flag_and_argument_has_a_text() -> None:
    silent = [
        f"{path} {action.option_strings or action.dest}"
        for path, own in every_command()
        for action in own._actions
        if not isinstance(action, argparse._SubParsersAction)
        and (not action.help or re.match(r"\(?default\b", action.help))
    ]
    assert not silent, "\n".join(silent)


@pytest.mark.parametrize("words", [("--help",), ("serve", "--help")])
def test_the_examples_are_understood(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = section(shown(capsys, *words), "Examples").splitlines()
    assert len(lines) == 3
    for command in (one for line in lines for one in line.split("&&")):
        program, *rest = shlex.split(command)
        assert program == "penstock"
        assert "command" in parser().parse_args(rest)


@pytest.mark.parametrize(("columns", "most"), [(60, 60), (80, 80), (200, 100)])
def test_lines_fit_the_terminal(
    columns: int, most: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no longer than can be read well, in a terminal however wide."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in (("--help",), ("serve", "--help"), ("gateway", "--help"), ("kv", "ls", "--help")):
        text = shown(capsys, *words)
        assert max(map(len, text.splitlines())) <= most, text
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["run"], "no command 'run'; here it is `penstock chat MODEL`"),
        (["ls"], "here it is `penstock models`"),
        (["stop"], "Ctrl-C, or SIGTERM, stops a server"),
        (["smollm2"], "to talk with a model: `penstock chat smollm2`"),
        (["org/repo"], "`penstock chat org/repo`"),
        (["serv"], "did you mean serve?"),
        (["serve", "m", "-t", "2"], "unknown: -t; here it is --threads"),
        (["serve", "m", "-ngl", "99"], "unknown: -ngl; here it is --device cuda"),
        (["serve", "-c", "4096", "m"], "unknown: -c; here it is --max-model-len"),
        (["chat", "m", "--model", "x"], "unknown: --model; here it is MODEL"),
        (["chat", "-p", "hi"], "unknown: -p; here it is PROMPT"),
        (
            ["chat", "m", "--hel"],
            "unknown: --hel; did you mean --help? (`penstock chat --help` has all flags)",
        ),
    ],
)
def test_words_of_other_programs_have_a_hint(
    words: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert wanted in capsys.readouterr().err


def test_short_flags_of_two_letters_take_their_value(capsys: pytest.CaptureFixture[str]) -> None:
    parsed = parser().parse_args(["serve", "m", "-tp", "2", "-pp", "2"])
    assert parsed.setting_tensor_parallel_size == parsed.setting_pipeline_parallel_size == "2"
    with pytest.raises(SystemExit):
        main(["models", "rm", "--help"])
    assert capsys.readouterr().out.startswith("usage: penstock models rm [-h] NAME")
