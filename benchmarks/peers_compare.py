#!/usr/bin/env python3
"""Run Penstock beside its peers on one machine, interleaved, with one client, and write a table of ratios.

    PEERS_DIR=~/.cache/peers
    $PEERS_DIR/vllm/bin/python benchmarks/peers_compare.py --only W1,W3 --peers vllm,llama-q4_1 --reps 3

Needs the environments of benchmarks/peers/install_all.sh and Penstock in .venv (`make install`). All
contenders are started once; within each repeat and workload each runs in turn while the others are stopped
with SIGSTOP. A run in which other processes used more than --max-foreign of the machine is repeated.
"""

import argparse
import datetime
import os
import shlex
import signal
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from peers.client import Client
from peers.contenders import Contender
from peers.lineup import BUILDERS, PEERS, Setup, versions
from peers.processes import wait_until_quiet
from peers.report import Report, Run
from peers.workloads import WORKLOADS, Workload

REPOSITORY = Path(__file__).resolve().parents[1]


def arguments() -> argparse.Namespace:
    """The command line."""
    today = datetime.date.today().isoformat()
    parser = argparse.ArgumentParser(description="Penstock beside its peers", allow_abbrev=False)
    names = lambda text: [name for name in text.split(",") if name]  # noqa: E731
    parser.add_argument("--only", type=names, default=list(WORKLOADS), help="workloads, e.g. W1,W3")
    parser.add_argument("--peers", type=names, default=list(PEERS), help=f"any of {','.join(PEERS)}")
    parser.add_argument("--without-penstock", action="store_true", help="peers among themselves")
    parser.add_argument("--reps", type=int, default=3, help="repeats (default 3)")
    parser.add_argument(
        "--penstock", type=Path, default=REPOSITORY / ".venv/bin/penstock", help="the program"
    )
    parser.add_argument(
        "--penstock-args", type=shlex.split, default=[], help="more arguments of `penstock serve`"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of the peers")
    parser.add_argument("--attempts", type=int, default=3, help="runs of a disturbed measurement, at most")
    parser.add_argument(
        "--max-foreign", type=float, default=0.05, help="CPU share of others that disturbs (0 to 1)"
    )
    parser.add_argument(
        "--quiet-wait", type=float, default=60, help="seconds to wait for a quiet machine before a run"
    )
    parser.add_argument(
        "--patience", type=float, default=400, help="seconds that a contender may take to be ready"
    )
    parser.add_argument("--title", default="Penstock and its peers")
    parser.add_argument(
        "--output", type=Path, default=REPOSITORY / f"benchmarks/results/peers-{today}", help="stem"
    )
    options = parser.parse_args()
    for kind, given, known in (("workload", options.only, WORKLOADS), ("peer", options.peers, PEERS)):
        if unknown := set(given).difference(known):
            parser.error(f"unknown {kind} {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return options


class Comparison:
    """The running contenders and the report that grows with them."""

    def __init__(self, options: argparse.Namespace, peers_dir: Path, logs: Path) -> None:
        self._options = options
        self._logs = logs
        names = [*([] if options.without_penstock else ["penstock"]), *options.peers]
        setup = Setup(
            peers_dir, REPOSITORY, options.penstock.absolute(), options.threads, options.penstock_args
        )
        client = Client(peers_dir / "hf-bf16", logs / "client.log")
        self._contenders = [BUILDERS[name](setup, client) for name in names]
        self._report = Report(
            title=options.title,
            started=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            command="benchmarks/peers_compare.py " + shlex.join(sys.argv[1:]),
            versions=versions(setup, names),
            hidden={str(peers_dir): "$PEERS_DIR", str(REPOSITORY) + "/": "", str(Path.home()): "~"},
        )

    def start(self) -> None:
        """Start, warm up and stop the contenders one after another."""
        for contender in list(self._contenders):
            wait_until_quiet(self._options.quiet_wait)
            try:
                contender.start(self._logs, self._options.patience)
                contender.warm_up()
            except (RuntimeError, OSError) as error:
                self._drop(contender, error)
                continue
            contender.tree.stop()
            print(f"{contender.name}: ready after {contender.ready_s:.2f} s", flush=True)
            self._report.contenders[contender.name] = {
                "numerics": contender.numerics,
                "ready_s": contender.ready_s,
                "command": contender.command,
                "environment": contender.environment,
            }

    def run(self) -> None:
        """Every repeat, workload and contender; the files are written after each run."""
        for repeat in range(1, self._options.reps + 1):
            for name in self._options.only:
                shift = (repeat - 1) % max(1, len(self._contenders))
                for contender in self._contenders[shift:] + self._contenders[:shift]:
                    self._turn(contender, WORKLOADS[name], repeat)
                    self._report.write(self._options.output)

    def end(self) -> None:
        """End every process that was started."""
        for contender in self._contenders:
            self._end(contender)

    def _turn(self, contender: Contender, workload: Workload, repeat: int) -> None:
        contender.tree.resume()
        try:
            run = self._undisturbed(contender, workload, repeat)
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            self._drop(contender, error)
            return
        contender.tree.stop()
        self._report.runs.append(run)
        numbers = run.numbers
        print(
            f"{contender.name} {workload.name}.{repeat}: out {numbers['output_throughput']:.1f} tok/s, "
            f"in {numbers['input_throughput']:.0f} tok/s, TTFT {numbers['median_ttft_ms']:.0f} ms, "
            f"TPOT {numbers['median_tpot_ms']:.2f} ms, ITL P99 {numbers['p99_itl_ms']:.0f} ms, "
            f"PSS {numbers['pss_mb']:.0f} MB, foreign {numbers['foreign_share']:.1%}, "
            f"failed {numbers['failed']:.0f}",
            flush=True,
        )

    def _undisturbed(self, contender: Contender, workload: Workload, repeat: int) -> Run:
        """The least disturbed of at most `attempts` runs, the first that is quiet enough if there is one."""
        tried = []
        for attempt in range(self._options.attempts):
            wait_until_quiet(self._options.quiet_wait)
            seed = workload.seed(repeat, attempt)
            numbers = contender.measure(workload, seed)
            tried.append(Run(contender.name, workload.name, repeat, seed, numbers))
            if numbers["foreign_share"] <= self._options.max_foreign:
                break
        return min(tried, key=lambda run: run.numbers["foreign_share"])

    def _drop(self, contender: Contender, error: Exception) -> None:
        """Go on without a contender that failed; the report says so."""
        trouble = f"{contender.name} left the comparison: {error}"
        print(trouble, flush=True)
        self._report.troubles.append(trouble)
        self._contenders.remove(contender)
        self._end(contender)

    def _end(self, contender: Contender) -> None:
        if hasattr(contender, "tree"):
            contender.tree.end()


def main() -> None:
    """Run the comparison; whatever happens, leave no process behind."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    peers_dir = Path(os.environ.get("PEERS_DIR", Path.home() / ".cache/peers"))
    logs = Path(tempfile.mkdtemp(prefix="peers-"))
    print(f"logs in {logs}", flush=True)
    comparison = Comparison(options, peers_dir, logs)
    try:
        comparison.start()
        comparison.run()
    finally:
        comparison.end()
    print(f"wrote {options.output}.md and .json", flush=True)


if __name__ == "__main__":
    main()
