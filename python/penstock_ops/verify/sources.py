"""Sources: files, links and commands that checks read, and the collector that reads them.

Nothing on the host is changed. All paths are below a root, so that a directory can stand in for a
machine; commands are run with LC_ALL=C and a time limit.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.config.sources import tool_environment
from penstock_ops.verify.evidence import Absence, Evidence, Snapshot

MOST_BYTES = 4 << 20
"""Maximum size of one file's or one command's text."""
MOST_FILES = 4096
"""Maximum number of files that one pattern may match."""
ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class Files:
    """All files that a pattern of absolute paths matches, such as /sys/class/net/*/mtu."""

    name: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Links:
    """The targets of all symbolic links that a pattern matches, as absolute paths."""

    name: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command's standard output."""

    name: str
    words: tuple[str, ...]
    seconds: float = 30.0
    """Time limit."""


Source = Files | Links | Command
Runner = Callable[[tuple[str, ...], float], Evidence]


def collect(
    node: str, sources: Iterable[Source], root: Path = Path("/"), run: Runner | None = None
) -> Snapshot:
    """Read all `sources`; no source's failure hinders the others."""
    runner = run or run_command
    return Snapshot(node, {source.name: _read(source, root, runner) for source in sources})


def _read(source: Source, root: Path, run: Runner) -> Evidence:
    match source:
        case Files():
            return _files(source.pattern, root)
        case Links():
            return _links(source.pattern, root)
        case Command():
            return run(source.words, source.seconds)


def _matches(pattern: str, root: Path) -> list[Path]:
    found = sorted(glob.glob(pattern.lstrip("/"), root_dir=root, include_hidden=True))
    return [root / name for name in found[:MOST_FILES]]


def _files(pattern: str, root: Path) -> Evidence:
    files: dict[str, str] = {}
    worst: tuple[Absence, str] | None = None
    for path in _matches(pattern, root):
        name = "/" + str(path.relative_to(root))
        try:
            with path.open("rb", buffering=0) as file:
                files[name] = clean(file.read(MOST_BYTES) or b"")
        except PermissionError:
            worst = (Absence.DENIED, f"{name}: permission denied")
        except OSError as error:
            if not isinstance(error, IsADirectoryError):
                worst = worst or (Absence.FAILED, f"{name}: {error.strerror}")
    if files:
        return Evidence(files=files, detail=worst[1] if worst else "")
    kind, detail = worst or (Absence.MISSING, f"no {pattern}")
    return Evidence(absence=kind, detail=detail)


def _links(pattern: str, root: Path) -> Evidence:
    base = root.resolve()
    files: dict[str, str] = {}
    for path in _matches(pattern, root):
        target = path.resolve()
        if target.is_relative_to(base):
            files["/" + str(path.relative_to(root))] = "/" + str(target.relative_to(base))
    if files:
        return Evidence(files=files)
    return Evidence(absence=Absence.MISSING, detail=f"no {pattern}")


def run_command(words: tuple[str, ...], seconds: float) -> Evidence:
    """Run a command without a shell. Its process group is killed at the time limit."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=tool_environment(),
            start_new_session=True,
        )
    except FileNotFoundError:
        return Evidence(absence=Absence.MISSING, detail=f"no program {words[0]}")
    except PermissionError:
        return Evidence(absence=Absence.DENIED, detail=f"{words[0]}: permission denied")
    except OSError as error:
        return Evidence(absence=Absence.FAILED, detail=f"{words[0]}: {error.strerror}")
    with process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return Evidence(
                absence=Absence.TIMEOUT, detail=f"{words[0]}: no end after {seconds:g} s"
            )
    text = clean(out[:MOST_BYTES])
    if process.returncode == 0:
        return Evidence(text=text)
    said = clean(err[:MOST_BYTES]).strip() or text.strip()
    detail = f"{words[0]}: exit status {process.returncode}: {said[-300:]}"
    return Evidence(text=text, absence=Absence.FAILED, detail=detail)


def clean(data: bytes) -> str:
    """Text of `data` without escape sequences, which some tools write into pipes, and NUL."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\0", "\n")
    return ESCAPE_SEQUENCE.sub("", text)
