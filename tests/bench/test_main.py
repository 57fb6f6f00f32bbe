"""`penstock bench`: which command runs, with which flags, and what it exits with."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from types import ModuleType

import pytest

from penstock.cli.main import main
from penstock_lab.bench.main import COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module(COMMANDS[command][0])
    assert callable(module.add_arguments)
    assert callable(module.run)
    with pytest.raises(SystemExit) as caught:
        main(["bench", command, "--help"])
    assert caught.value.code == 0
    assert f"usage: penstock bench {command}" in capsys.readouterr().out


def test_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    printed = capsys.readouterr().out
    for command, (_, summary) in COMMANDS.items():
        assert f"{command} " in printed
        assert summary in printed


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "nonsense"])
    assert caught.value.code == 2
    assert "sweep" in capsys.readouterr().err


def test_words_after_the_command_are_the_commands_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[argparse.Namespace] = []
    fake = ModuleType("fake")
    fake.add_arguments = lambda parser: parser.add_argument("--flag")  # type: ignore[attr-defined]
    fake.run = lambda parsed: seen.append(parsed) or 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, COMMANDS["serve"][0], fake)
    assert main(["bench", "serve", "--flag=-x"]) == 7
    assert seen[0].flag == "-x"
    assert seen[0].argv == ["serve", "--flag=-x"]
