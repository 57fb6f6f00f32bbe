"""Completion scripts, run by the shells that they are for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.config.flags import FLAGS
from tests.limits import HANG

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    made = {}
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        made[shell] = tmp_path / f"penstock.{shell}"
        made[shell].write_text(capsys.readouterr().out)
    return made


def ran(shell: str, program: str, directory: Path) -> list[str]:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} on this machine")
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [path, *flags, "-c", program],
        capture_output=True,
        text=True,
        timeout=HANG,
        cwd=directory,
        check=False,
    )
    assert done.stderr == ""
    return sorted(done.stdout.split())


def in_bash(script: Path, line: str, directory: Path) -> list[str]:
    """What bash offers for the last word of `line`."""
    words = line.split(" ")
    program = (
        f"source {script}; COMP_WORDS=({' '.join(map(repr, words))}); "
        f"COMP_CWORD={len(words) - 1}; _penstock; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    return ran("bash", program, directory)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("penstock s", ["serve", "sim"]),
        ("penstock kv ", ["gc", "ls", "verify"]),
        ("penstock bench l", ["latency"]),
        ("penstock serve --max-m", ["--max-model-len"]),
        ("penstock serve smollm2 --no-eng", ["--no-engine-process"]),
        ("penstock serve --isa a", ["amx", "auto", "avx2", "avx512"]),
        ("penstock serve --port ", []),
        ("penstock serve smo", ["smollm2", "smollm2-1.7b"]),
        ("penstock serve weights.g", ["weights.gguf"]),
        ("penstock serve --config pen", ["penstock.yaml"]),
        ("penstock completion ", ["bash", "fish", "zsh"]),
        ("penstock bench serve --dataset-n", ["--dataset-name"]),
        ("penstock bench serve --dataset-name r", ["random"]),
        ("penstock chat --sy", ["--system"]),
        ("penstock gateway --help", ["--help", "--help-all"]),
        ("penstock v", ["verify", "version"]),
    ],
)
def test_bash_offers_what_fits(
    line: str, offered: list[str], scripts: dict[str, Path], tmp_path: Path
) -> None:
    directory = tmp_path / "here"
    directory.mkdir()
    (directory / "weights.gguf").touch()
    (directory / "penstock.yaml").touch()
    assert in_bash(scripts["bash"], line, directory) == offered


def test_bash_offers_every_flag_of_serve(scripts: dict[str, Path], tmp_path: Path) -> None:
    offered = in_bash(scripts["bash"], "penstock serve --", tmp_path)
    assert {flag.name for flag in FLAGS} <= set(offered)
    assert "--gpu-memory-utilization" not in offered, "what is ignored is not offered"


def test_the_negation_of_a_switch_is_described_as_one(scripts: dict[str, Path]) -> None:
    script = scripts["fish"].read_text()
    assert "-l access-log -d 'log a line for every request" in script
    assert "-l no-access-log -d 'the opposite of --access-log'" in script


def test_zsh_takes_the_script(scripts: dict[str, Path], tmp_path: Path) -> None:
    program = (
        f"autoload -U compinit && compinit -D -u; source {scripts['zsh']}; "
        "print -r -- ${_comps[penstock]}"
    )
    assert ran("zsh", program, tmp_path) == ["-F", "_bash_complete", "_penstock"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("penstock s", ["serve", "sim"]),
        ("penstock kv ", ["gc", "ls", "verify"]),
        ("penstock serve --max-m", ["--max-model-len"]),
        ("penstock serve --isa a", ["amx", "auto", "avx2", "avx512"]),
        ("penstock bench serve --dataset-name r", ["random"]),
    ],
)
def test_fish_offers_what_fits(
    line: str, offered: list[str], scripts: dict[str, Path], tmp_path: Path
) -> None:
    program = f"source {scripts['fish']}; complete -C '{line}' | string split -f 1 \\t"
    assert ran("fish", program, tmp_path) == offered
