"""`penstock bench compare`."""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.body import ENDPOINTS
from penstock_lab.bench.compare.comparison import Comparison, Rules
from penstock_lab.bench.compare.journal import Journal
from penstock_lab.bench.compare.load import Loads
from penstock_lab.bench.compare.machine import machine
from penstock_lab.bench.compare.recipe import Values
from penstock_lab.bench.compare.server_under_test import ServerUnderTest, port_of
from penstock_lab.bench.compare.servers import Entry, parse_servers
from penstock_lab.bench.compare.summary import summarise
from penstock_lab.bench.compare.table import lines
from penstock_lab.bench.compare.workloads import plan, read_lines
from penstock_lab.bench.flags import headers, integer, pair, positive, redacted
from penstock_lab.bench.measure import parse_workload
from penstock_lab.bench.progress import progress
from penstock_lab.bench.runs import INTERRUPTED
from penstock_lab.bench.target import Wanted

RECIPES = Path("benchmarks/peers/recipes")
PEERS = Path("~/.cache/peers")
WARM_UP = (
    "serve --random-input-len 64 --random-output-len 16 --max-concurrency 4 --num-prompts 8",
    "serve --random-input-len 512 --random-output-len 8 --max-concurrency 2 --num-prompts 4",
)
"""Loads sent to each server before it is measured, so that lazy initialisation and first
compilation do not affect the comparison.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_servers(parser.add_argument_group("servers"))
    _add_loads(parser.add_argument_group("loads"))
    _add_requests(parser.add_argument_group("requests of all loads"))
    _add_machine(parser.add_argument_group("machine"))
    _add_output(parser.add_argument_group("output"))


def _add_servers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--server",
        action="append",
        default=[],
        metavar="NAME[=RECIPE|=URL]",
        help="who takes part, repeatable: a recipe by name (penstock and penstock-inprocess are "
        "built in), perhaps under another name, a recipe's .toml file, or http://HOST:PORT of a "
        "server that runs or that --start starts",
    )
    group.add_argument(
        "--start",
        action="append",
        default=[],
        metavar='NAME="COMMAND"',
        help="starts the server that is given by its URL; {port} is the URL's port",
    )
    group.add_argument(
        "--args",
        action="append",
        default=[],
        metavar='NAME="WORDS"',
        help="added to the command of a server that is started",
    )
    group.add_argument(
        "--baseline", metavar="NAME", help="server that ratios refer to; default: the first"
    )
    group.add_argument(
        "--recipes",
        type=Path,
        default=RECIPES,
        metavar="DIR",
        help="files that say how servers start; default: %(default)s",
    )
    group.add_argument(
        "--peers", type=Path, default=PEERS, metavar="DIR", help="{peers}; default: %(default)s"
    )
    group.add_argument(
        "--model", default="smollm2", help="{model} of recipes; default: %(default)s"
    )
    group.add_argument(
        "--penstock",
        type=shlex.split,
        default=[sys.executable, "-P", "-m", "penstock"],
        metavar="PROGRAM",
        help="{penstock} of recipes; default: this one",
    )


def _add_loads(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workload",
        action="append",
        default=[],
        metavar='"NAME: COMMAND"',
        help="a load, repeatable: NAME: and what follows `penstock bench`, for example "
        '"W1: serve --random-input-len 128 --num-prompts 10" or "azure: trace FILE --time-scale '
        '0.4" or "O: offline --num-prompts 100", which sends all requests at once; '
        "loads that share a name and differ in rate, concurrency or time scale are points of one "
        "curve",
    )
    group.add_argument("--workloads", type=Path, metavar="FILE", help="the same, one on each line")
    group.add_argument(
        "--only", type=_names, default=[], metavar="NAME,...", help="only these workloads"
    )
    group.add_argument(
        "--repeats", type=integer(1), default=3, help="runs of each workload; default: %(default)s"
    )
    group.add_argument(
        "--order",
        choices=("interleaved", "sequential"),
        default="interleaved",
        help="interleaved: all are started, and run by turns while the others are stopped with "
        "SIGSTOP; sequential: one at a time is started, measured and ended; default: %(default)s",
    )
    group.add_argument(
        "--seed", type=int, default=0, help="of the seeds of all runs; default: %(default)s"
    )
    group.add_argument(
        "--warm-up",
        action="append",
        metavar='"COMMAND"',
        help="load after the start of each server that is not recorded, repeatable; default: two "
        "short ones",
    )


def _add_requests(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="makes the prompts of loads that name none, so that all servers get the same text; "
        "default: each server's own",
    )
    group.add_argument(
        "--backend",
        choices=tuple(ENDPOINTS),
        default="openai",
        help="API of the requests; default: %(default)s",
    )
    group.add_argument(
        "--header",
        type=pair,
        nargs="*",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="of all requests",
    )
    group.add_argument(
        "--idle-timeout",
        type=positive,
        default=600.0,
        metavar="S",
        help="a request without a byte for so long has failed; default: %(default)g",
    )


def _add_machine(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--server-cpus", type=_cpus, metavar="LIST", help="such as 0-2,4; default: all"
    )
    group.add_argument(
        "--client-cpus", type=_cpus, metavar="LIST", help="of this process; default: all"
    )
    group.add_argument(
        "--patience",
        type=float,
        default=400.0,
        metavar="S",
        help="for a server to be ready; default: %(default)g",
    )
    group.add_argument(
        "--quiet-wait",
        type=float,
        default=60.0,
        metavar="S",
        help="wait at most so long before a run until others leave the machine alone; default: "
        "%(default)g",
    )
    group.add_argument(
        "--max-foreign",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="of the machine's CPU time (0 to 1) that others may use during a run; default: "
        "%(default)g",
    )
    group.add_argument(
        "--attempts",
        type=integer(1),
        default=3,
        help="runs of a load, with other seeds, until others used less; the least disturbed one "
        "counts; default: %(default)s",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--title", default="Comparison", help="heading of the report; default: %(default)s"
    )
    group.add_argument(
        "--result-dir",
        type=Path,
        metavar="DIR",
        help="new directory of result files; default: compare-TIME",
    )
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def run(parsed: argparse.Namespace) -> int:
    """Run the comparison. Exit status: 0; 1 if a server failed; 130 after Ctrl-C, when the results
    so far are written and printed.

    Raises:
        PenstockError: wrong arguments, or no server is left.
    """
    if not sys.platform.startswith("linux"):
        raise PenstockError(
            "bench compare reads /proc to stop, measure and end servers: run it on Linux"
        )
    signal.signal(signal.SIGTERM, _as_interrupt)
    signal.signal(signal.SIGHUP, _as_interrupt)
    comparison, journal = _prepare(parsed)
    if parsed.client_cpus:
        os.sched_setaffinity(0, parsed.client_cpus)
    interrupted = False
    try:
        comparison.run()
    except KeyboardInterrupt:
        interrupted = True
    if journal.results:
        _print_summary(journal)
    elif not interrupted:
        raise PenstockError(f"no server could be measured: {'; '.join(journal.troubles)}")
    if interrupted:
        return INTERRUPTED
    return 1 if journal.troubles else 0


def _as_interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _prepare(parsed: argparse.Namespace) -> tuple[Comparison, Journal]:
    """Validate all arguments before the first server is started."""
    entries = parse_servers(parsed.server, parsed.start, parsed.args, parsed.recipes)
    if not entries:
        raise InvalidValueError("--server", "", "at least one server")
    if parsed.baseline not in (None, *(entry.name for entry in entries)):
        raise InvalidValueError("--baseline", parsed.baseline, "the name of a --server")
    texts = [*(read_lines(parsed.workloads) if parsed.workloads else ()), *parsed.workload]
    workloads = plan(texts, parsed.only, parse_workload)
    warm_up = [parse_workload(shlex.split(words)) for words in parsed.warm_up or WARM_UP]
    rules = Rules(
        order=parsed.order,
        repeats=parsed.repeats,
        seed=parsed.seed,
        warm_up=warm_up,
        patience=parsed.patience,
        quiet_wait=parsed.quiet_wait,
        max_foreign=parsed.max_foreign,
        attempts=parsed.attempts,
    )
    servers = _servers(parsed, entries)
    loads = _loads(parsed)
    journal = _journal(parsed, entries)
    return Comparison(servers, workloads, rules, loads, journal, _say), journal


def _loads(parsed: argparse.Namespace) -> Loads:
    wanted = Wanted(parsed.backend, ENDPOINTS[parsed.backend], None, None, parsed.idle_timeout)
    return Loads(wanted, headers(parsed.header), parsed.tokenizer, progress(parsed.disable_tqdm))


def _servers(parsed: argparse.Namespace, entries: Sequence[Entry]) -> list[ServerUnderTest]:
    cpus = sorted(parsed.server_cpus or os.sched_getaffinity(0))
    logs = Path(tempfile.mkdtemp(prefix="penstock-compare-"))
    _say(f"logs of the servers in {logs}")
    made = []
    for entry in entries:
        here = entry.recipe.here if entry.recipe else Path()
        peers = parsed.peers.expanduser()
        values = Values(port_of(entry), cpus, parsed.model, peers, parsed.penstock, here)
        made.append(ServerUnderTest(entry, values, logs))
    return made


def _journal(parsed: argparse.Namespace, entries: Sequence[Entry]) -> Journal:
    now = datetime.datetime.now(datetime.UTC)
    names = [entry.name for entry in entries]
    facts = {
        "title": parsed.title,
        "started": now.strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["penstock", "bench", *redacted(parsed.argv)]),
        "baseline": parsed.baseline or names[0],
        "order": names,
        "machine": machine(),
    }
    directory = parsed.result_dir or Path(f"compare-{now:%Y%m%d-%H%M%S}")
    hidden = {
        str(parsed.peers.expanduser()): "$PEERS_DIR",
        f"{Path.cwd()}/": "",
        str(Path.home()): "~",
        tempfile.gettempdir(): "$TMPDIR",
    }
    return Journal(directory, facts, hidden)


def _print_summary(journal: Journal) -> None:
    facts = journal.comparison()
    names = {result["penstock"]["server"] for result in journal.results}
    baseline = facts["baseline"] if facts["baseline"] in names else None
    print()
    for line in lines(summarise(journal.results, baseline, facts["order"]), facts):
        print(line)
    print(
        f"\n{len(journal.results)} result files in {journal.directory}; `penstock bench report` "
        "draws them"
    )


def _say(line: str) -> None:
    print(line, flush=True)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _cpus(text: str) -> set[int]:
    """CPUs of a list such as 0-2,4. This process must be allowed to use all of them."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    if not cpus or not cpus <= os.sched_getaffinity(0):
        raise argparse.ArgumentTypeError(f"expected CPUs among {sorted(os.sched_getaffinity(0))}")
    return cpus
