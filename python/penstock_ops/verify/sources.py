"""Sources: files, links, commands and measurements that checks read, and the collector that reads
them.

Nothing on the host is changed. All paths are below a root, so that a directory can stand in for a
machine; commands are run with LC_ALL=C and a time limit.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.config.sources import tool_environment
from penstock_ops.verify.evidence import Absence, Evidence, Snapshot

MOST_BYTES = 16 << 20
"""Maximum size of one file's or one command's text. A larger one is no evidence: a log without its
end would have no faults there.
"""
MOST_FILES = 1 << 16
"""Maximum number of files that one pattern may match: an RDMA port on Ethernet has 256 GIDs."""
READ_BYTES = 1 << 16
"""Bytes of one read; a record of /dev/kmsg has at most 8 KiB."""
KILL_SECONDS = 2.0
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


@dataclass(frozen=True, slots=True)
class Growth:
    """Files with counters, read first of all and again after all other sources. The second reading
    is the evidence `NAME.end`, whose text is the seconds between both.
    """

    name: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a function of `penstock_ops.verify.measurements` gives: JSON, in a process of its own
    that is killed at the time limit, since storage that hangs would hold a thread.
    """

    name: str
    words: tuple[str, ...]
    """Name of the measurement, and its arguments."""
    seconds: float = 60.0

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-m", "penstock_ops.verify.measurements", *self.words)


Source = Files | Links | Command | Growth | Measurement
Runner = Callable[[tuple[str, ...], float], Evidence]


def collect(
    node: str, sources: Iterable[Source], root: Path = Path("/"), run: Runner | None = None
) -> Snapshot:
    """Read all `sources`; no source's failure hinders the others."""
    runner = run or run_command
    wanted = list(sources)
    counters = [source for source in wanted if isinstance(source, Growth)]
    begin = time.monotonic()
    found = {source.name: _files(source.pattern, root) for source in counters}
    for source in wanted:
        if not isinstance(source, Growth):
            found[source.name] = _read(source, root, runner)
    for source in counters:
        again = _files(source.pattern, root)
        found[f"{source.name}.end"] = replace(again, text=f"{time.monotonic() - begin:.3f}")
    return Snapshot(node, found)


def _read(source: Source, root: Path, run: Runner) -> Evidence:
    match source:
        case Files() | Growth():
            return _files(source.pattern, root)
        case Links():
            return _links(source.pattern, root)
        case Command():
            return run(source.words, source.seconds)
        case Measurement():
            return run(source.command, source.seconds)


def _matches(pattern: str, root: Path) -> list[Path]:
    found = sorted(glob.glob(pattern.lstrip("/"), root_dir=root, include_hidden=True))
    return [root / name for name in found]


def _files(pattern: str, root: Path) -> Evidence:
    files: dict[str, str] = {}
    worst: tuple[Absence, str] | None = None
    paths = _matches(pattern, root)
    if len(paths) > MOST_FILES:
        detail = f"{pattern}: {len(paths)} files, at most {MOST_FILES} are read"
        return Evidence(absence=Absence.FAILED, detail=detail)
    for path in paths:
        name = "/" + str(path.relative_to(root))
        try:
            files[name] = clean(_content(path))
        except PermissionError:
            worst = (Absence.DENIED, f"{name}: permission denied")
        except OSError as error:
            if not isinstance(error, IsADirectoryError):
                worst = worst or (Absence.FAILED, f"{name}: {error.strerror}")
    if files:
        return Evidence(files=files, detail=worst[1] if worst else "")
    kind, detail = worst or (Absence.MISSING, f"no {pattern}")
    return Evidence(absence=kind, detail=detail)


def _content(path: Path) -> bytes:
    """The bytes of a file; of a device such as /dev/kmsg those that it has now, a record at each
    read. OSError if there are more than MOST_BYTES.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = bytearray()
    try:
        while len(found) <= MOST_BYTES:
            try:
                part = os.read(descriptor, READ_BYTES)
            except BrokenPipeError:  # the kernel has overwritten the record
                continue
            except BlockingIOError:
                break
            if not part:
                break
            found += part
    finally:
        os.close(descriptor)
    if len(found) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return bytes(found)


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
    name = words[0] if words[0] != sys.executable else f"measurement {words[3]}"
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _kill(process)
        return Evidence(absence=Absence.TIMEOUT, detail=f"{name}: no end after {seconds:g} s")
    except KeyboardInterrupt:
        # Its session is its own, so that a terminal's Ctrl-C does not reach it.
        _kill(process)
        raise
    if len(out) > MOST_BYTES:
        detail = f"{name}: output of {len(out)} bytes, at most {MOST_BYTES} are read"
        return Evidence(absence=Absence.FAILED, detail=detail)
    text = clean(out)
    if process.returncode == 0:
        return Evidence(text=text)
    last = (clean(err[:MOST_BYTES]).strip() or text.strip()).rpartition("\n")[2]
    detail = f"{name}: exit status {process.returncode}: {last[-300:]}"
    return Evidence(text=text, absence=Absence.FAILED, detail=detail)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group. A process in an uninterruptible wait, as on dead storage, is left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=KILL_SECONDS)


def clean(data: bytes) -> str:
    """Text of `data` without escape sequences, which some tools write into pipes, and NUL."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\0", "\n")
    return ESCAPE_SEQUENCE.sub("", text)
