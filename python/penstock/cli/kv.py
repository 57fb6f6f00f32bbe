"""`penstock kv ls|verify|gc PATH`: list, check and clean the directory of a disk tier.

Engines may use the directory at the same time (docs/kv-format.md).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from penstock.config.kinds import Bytes
from penstock.core import InvalidValueError, PenstockError

Report = dict[str, Any]
_SIZE = Bytes(0, 2**60)
_AGE = re.compile(r"(\d+)\s*(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Look after the directory of a disk tier (--kv-tier disk:PATH,SIZE). "
        "Engines may use it meanwhile."
    )
    acts = parser.add_subparsers(required=True, metavar="ACT")
    listing = acts.add_parser("ls", help="stores, chunks, files, bytes, last use")
    verify = acts.add_parser("verify", help="read every file; exit 1 with a list of damaged ones")
    verify.add_argument("--quarantine", action="store_true", help="put damaged files aside")
    collect = acts.add_parser(
        "gc", help="remove chunks by rules, files left behind, damaged files that were put aside"
    )
    collect.add_argument(
        "--limit",
        metavar="SIZE",
        help="least recently used chunks go until so much is left (100GiB)",
    )
    collect.add_argument(
        "--older-than", metavar="AGE", help="chunks go that were not used for so long (30d)"
    )
    collect.add_argument(
        "--identity",
        metavar="ID",
        help="this store goes, or only its chunks --older-than; its first digits do",
    )
    for act, function in ((listing, _ls), (verify, _verify), (collect, _gc)):
        act.add_argument("path", metavar="PATH", help="the directory of the tier")
        act.add_argument("--json", action="store_true", help="print the report as JSON")
        act.set_defaults(command=function)


def _ls(parsed: argparse.Namespace) -> int:
    from penstock._native import kv_inventory

    found = _call(kv_inventory, parsed.path)
    if parsed.json:
        print(json.dumps(found, indent=2))
        return 0
    rows = [("STORE", "CHUNKS", "FILES", "BYTES", "LAST USE", "WHAT")]
    for store in found["stores"]:
        about = store["about"] or "its identity.json is missing"
        rows.append(
            (
                store["name"],
                str(store["chunks"]),
                str(store["parts"]),
                size(store["bytes"]),
                _time(store["newest_use"]),
                about,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print(
            "  ".join(
                [*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[5]]
            )
        )
    print(_others(found))
    return 0


def _verify(parsed: argparse.Namespace) -> int:
    from penstock._native import kv_verify

    with _Meter("verified", size) as meter:
        found = _call(kv_verify, parsed.path, parsed.quarantine, meter.show)
    if parsed.json:
        print(json.dumps(found, indent=2))
    else:
        for file in found["damaged"]:
            print(f"{file['path']}: {file['what']}")
        aside = ", put aside" if parsed.quarantine and found["damaged"] else ""
        damaged = len(found["damaged"])
        print(f"{found['files']} files, {size(found['bytes'])} read, {damaged} damaged{aside}")
    return 1 if found["damaged"] else 0


def _gc(parsed: argparse.Namespace) -> int:
    from penstock._native import kv_collect

    limit = None if parsed.limit is None else _size("--limit", parsed.limit)
    age = None if parsed.older_than is None else _age("--older-than", parsed.older_than)
    with _Meter("removed", lambda chunks: f"{chunks} chunks") as meter:
        gone = _call(kv_collect, parsed.path, limit, age, parsed.identity, meter.show)
    if parsed.json:
        print(json.dumps(gone, indent=2))
    else:
        print(
            f"{gone['chunks']} chunks and {gone['other_files']} other files removed, "
            f"{size(gone['bytes'])}; {size(gone['bytes_left'])} left"
        )
        if gone["failed"]:
            print(f"{gone['failed']} chunks could not be removed: they belong to another user?")
    return 1 if gone["failed"] else 0


def _call(function: Callable[..., str], *arguments: object) -> Report:
    try:
        report: Report = json.loads(function(*arguments))
    except ValueError as error:
        raise PenstockError(str(error)) from error
    return report


class _Meter:
    """Progress of a long task on one line of a terminal. Prints nothing if there is no terminal, or
    if the task is short.
    """

    def __init__(self, what: str, amount: Callable[[int], str]) -> None:
        self._what = what
        self._amount = amount
        self._begin = time.monotonic()
        self._shown = False

    def __enter__(self) -> _Meter:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, done: int, total: int) -> None:
        passed = time.monotonic() - self._begin
        if not sys.stderr.isatty() or passed < 1:
            return
        left = passed / max(done, 1) * (total - done)
        text = f"{self._what} {self._amount(done)} of {self._amount(total)}, {left:.0f} s left"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        self._shown = True


def _others(found: Report) -> str:
    text = f"{size(found['bytes'])} in all"
    if found["temporary_files"]:
        text += f", {found['temporary_files']} files being written or left behind"
    if found["quarantined_files"]:
        quarantined = size(found["quarantined_bytes"])
        text += f", {found['quarantined_files']} damaged files put aside ({quarantined})"
    return text


def size(count: int) -> str:
    """Format bytes, for example 1.50 GiB."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.2f} {unit}"


def _time(seconds: int | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _size(name: str, text: str) -> int:
    try:
        return _SIZE.parse(text)
    except ValueError as error:
        raise InvalidValueError(name, text, _SIZE.expected()) from error


def _age(name: str, text: str) -> int:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise InvalidValueError(name, text, "a number with s, m, h, d or w, such as 30d")
    return int(match[1]) * _SECONDS[match[2]]
