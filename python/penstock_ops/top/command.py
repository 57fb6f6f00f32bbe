"""`penstock top URL...`: its flags, and the loop that polls, handles keys and draws the screen."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from penstock.config import gateway_api_key, openai_api_key
from penstock.config.terminal import has_styles, moves_cursor
from penstock.core import InvalidValueError
from penstock_ops.top.frame import frame, rows_on_a_page
from penstock_ops.top.history import DEAD
from penstock_ops.top.polling import Poller, Snapshot
from penstock_ops.top.reading import PATIENCE, Target, base_of
from penstock_ops.top.rows import Row, rows
from penstock_ops.top.screen import Screen
from penstock_ops.top.table import plain
from penstock_ops.top.view import View, pressed, shown_rows

GROUP = "Look inside"
SUMMARY = "watch servers and gateways: load, speed, KV tiers, errors"
LEAST_INTERVAL, MOST_INTERVAL = 0.2, 60.0
"""Range of --interval in seconds."""
BETWEEN = 1.0
"""Default for --interval, in seconds."""
REDRAWN = 1.0
"""Maximum seconds between two drawings, because the durations on the screen grow."""
EXAMPLES = """\
Examples:
  penstock top localhost:8000
  penstock top gateway:8080 --api-key KEY
  penstock top host1:8000 host2:8000 --once --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show servers of Penstock or vLLM, and gateways with their replicas, as a table that is "
        "renewed: health, load, tokens/s, KV use, hit rate, latencies, errors. Keys: ? for help, "
        "q to quit. Without a terminal it is --once."
    )
    parser.epilog = EXAMPLES
    parser.add_argument(
        "urls", metavar="URL", nargs="+", help="of a server, of its --metrics-port, of a gateway"
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="print one table of two readings, and exit: with 1 if an address does not answer",
    )
    parser.add_argument(
        "--json", action="store_true", help="as --once, the rows as JSON (docs/operating.md)"
    )
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=float,
        default=BETWEEN,
        help=f"between two readings, {LEAST_INTERVAL:g} to {MOST_INTERVAL:g}; default: %(default)g",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="for the addresses given; better in the environment [PENSTOCK_API_KEY, "
        "OPENAI_API_KEY]",
    )
    parser.add_argument("--insecure", action="store_true", help="accept any certificate")
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace) -> int:
    """Show the table until the user quits, or print it once. Returns the exit status."""
    interval = parsed.interval
    if not LEAST_INTERVAL <= interval <= MOST_INTERVAL:
        expected = f"{LEAST_INTERVAL:g} to {MOST_INTERVAL:g} seconds"
        raise InvalidValueError("--interval", interval, expected)
    key = parsed.api_key or gateway_api_key() or openai_api_key()
    if key is not None and not (key.isascii() and key.isprintable()):
        raise InvalidValueError("--api-key", "...", "printable ASCII characters")
    bases = list(dict.fromkeys(map(base_of, parsed.urls)))
    targets = {base: Target(base, key, parsed.insecure) for base in bases}
    poller = Poller(targets, interval)
    poller.start()
    try:
        if parsed.once or parsed.json or not is_terminal():
            return once(poller, bases, interval, as_json=parsed.json)
        return watch(poller, bases, min(interval, REDRAWN))
    finally:
        poller.stop()


def is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and moves_cursor()


def once(poller: Poller, bases: Sequence[str], interval: float, *, as_json: bool) -> int:
    """Print the rows after the second poll; returns 1 if an address is dead."""
    seen = poller.wait(lambda seen: is_read_twice(seen, bases), PATIENCE * 2 + interval)
    found = rows(bases, seen.histories, seen.waiting_since, time.monotonic())
    if as_json:
        print(json.dumps([asdict(row) for row in found], indent=1))
    else:
        width = shutil.get_terminal_size((200, 50)).columns
        text = "\n".join(plain(found, width))
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding))
    return 1 if any(row.kind != "replica" and is_dead(row) for row in found) else 0


def is_read_twice(seen: Snapshot, bases: Sequence[str]) -> bool:
    """Whether the second poll is complete: each address and each replica has rates, or never will
    have any.
    """
    known = [seen.histories.get(base) for base in bases]
    latest = [history.latest for history in known if history and history.latest]
    if len(latest) < len(bases):
        return False
    replicas = {replica.address for reading in latest for replica in reading.replicas}
    followed = [seen.histories[name] for name in replicas if name in seen.histories]
    pending = [name for name in replicas - seen.histories.keys() if name in seen.waiting_since]
    settled = (
        history.previous or (history.latest and history.latest.state == DEAD)
        for history in (*filter(None, known), *followed)
    )
    return not pending and all(settled)


def is_dead(row: Row) -> bool:
    return row.state == DEAD or row.age is None


def watch(poller: Poller, bases: Sequence[str], redrawn: float) -> int:
    view = View()
    encoding = sys.stdout.encoding or "utf-8"
    source, sink = sys.stdin.fileno(), sys.stdout.fileno()
    with Screen(source, sink, coloured=has_styles(), encoding=encoding) as screen:
        found: list[Row] = []
        while not view.is_over:
            if not view.is_paused or not found:
                seen = poller.seen()
                found = rows(bases, seen.histories, seen.waiting_since, time.monotonic())
            size = screen.size()
            screen.draw(frame(found, view, size, time.strftime("%H:%M:%S")))
            try:
                for key in screen.keys(redrawn):
                    shown = len(shown_rows(view, found))
                    view = pressed(view, key, shown, rows_on_a_page(size[1]))
            except EOFError:
                break
    return 0
