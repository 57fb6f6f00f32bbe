"""All GPU measurements in one command of at most ten minutes.

Needs torch with Triton, NumPy and PyYAML, and no network; runs from the source tree. Parts with the
product's server also need the compiled extension: from a wheel, built in the tree, or installed.

    python benchmarks/gpu/run.py --out build/gpu --wheel penstock-*.whl

A run of less than SHORT_MINUTES (--minutes 5) has only the most significant parts and items.

Each part is a separate process with a time limit, and writes its results as it runs, so that one
failure loses nothing: PART.json and PART.log, results.json with all parts, report.md. `--dry` runs
all parts on the CPU with tiny shapes and the reference implementations.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu.items import problems, write  # noqa: E402
from benchmarks.gpu.product import unpack  # noqa: E402
from benchmarks.gpu.report import report  # noqa: E402
from benchmarks.gpu.room import sweep  # noqa: E402
from benchmarks.gpu.server import PREFIX  # noqa: E402


@dataclass(frozen=True)
class Part:
    """A part of the measurements, with its time limit in seconds in a full and in a short run; 0 if
    a short run does not have it.
    """

    name: str
    seconds: int
    short: int = 0


# Parts that validate the others come first, then those that users notice most. All limits together
# fit into a run, even if every part is killed at its limit; later parts get the time that earlier
# ones do not use.
PARTS = (
    Part("correctness", 70, 42),
    Part("machine", 10, 10),
    Part("serve-Qwen3-0.6B", 38, 32),
    Part("Qwen3-0.6B", 32, 26),
    Part("serve-Qwen3-8B", 62, 56),
    Part("Qwen3-8B", 62, 52),
    Part("kernels", 35, 25),
    Part("tiers", 12),
    Part("serve-Qwen3-30B-A3B", 50),
    Part("Qwen3-30B-A3B", 50),
    Part("Qwen3-14B", 22),
    Part("several", 32),
    Part("tiles", 10),
    Part("flashinfer", 10),
)
MINUTES = 10.0
SHORT_MINUTES = 8.0
MARGIN = 0.95
"""Fraction of `--minutes` that the parts may use. The rest is for start-up and for fetching the
results.
"""
KILL_SECONDS = 5
LEAST_SECONDS = 10
ERROR_LINES = 15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory of the results")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts together")
    names = [part.name for part in PARTS]
    parser.add_argument("--parts", nargs="*", choices=names, help="only these, with all items")
    parser.add_argument("--wheel", type=Path, help="of the product, to be served")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        words = ["--dry"] * options.dry
        if options.wheel:
            unpack(options.wheel, Path(directory))
            words += ["--wheel", directory]
        return run(options, words)


def run(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Run all requested parts and write the report. Returns 1 if a part failed."""
    short = options.minutes < SHORT_MINUTES and not options.parts
    limits = {part.name: part.short if short else part.seconds for part in PARTS}
    names = [name for name in limits if limits[name] and name in (options.parts or limits)]
    end, found = time.monotonic() + options.minutes * 60 * MARGIN, {}
    for at, name in enumerate(names):
        later = sum(limits[each] + KILL_SECONDS for each in names[at + 1 :])
        left = end - KILL_SECONDS - time.monotonic()
        limit = max(min(limits[name], left), left - later)
        found[name] = run_part(name, limit, options.out, [*words, *["--short"] * short])
        everything = {"dry": options.dry, "minutes": options.minutes, "parts": found}
        write(options.out / "results.json", json.dumps(everything, indent=1))
        write(options.out / "report.md", reported(found, options.dry))
        print(f"{name}: {found[name]['state']}, {found[name]['seconds']:.0f} s", flush=True)
    return 0 if all(part["state"] == "done" for part in found.values()) else 1


def reported(found: dict[str, Any], dry: bool) -> str:
    """The report as Markdown. If it cannot be written, a text with the error, so that remaining
    parts still run.
    """
    try:
        return report(found, dry)
    except Exception:  # noqa: BLE001 - of any kind: what was found is in results.json
        return f"The report failed; see results.json.\n\n```\n{traceback.format_exc()}```\n"


def run_part(name: str, limit: float, out: Path, words: Sequence[str]) -> dict[str, Any]:
    """Run a part in a process; returns its results, even if it failed or reached its time limit.
    `words`: flags for the process.
    """
    path, log = (out.resolve() / f"{name}.{kind}" for kind in ("json", "log"))
    began = time.monotonic()
    path.unlink(missing_ok=True)
    if limit < LEAST_SECONDS:
        return {"state": "no time left", "seconds": 0.0, "error": "", "results": {}}
    given = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "python"), *([given] if given else [])])
    # The part's time limit includes its imports.
    module = f"benchmarks.gpu.{'server' if name.startswith(PREFIX) else 'parts'}"
    command = [sys.executable, "-m", module, name, str(path), str(began + limit), *words]
    with log.open("w") as written:
        process = subprocess.Popen(
            command,
            stdout=written,
            stderr=written,
            # cuFile (GPUDirect Storage) writes its log to the working directory.
            cwd=out,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
        try:
            state = ended(process, limit)
        finally:
            sweep(os.getpid())
    results = json.loads(path.read_text()) if path.exists() else {}
    if state == "done":
        state = problems(results) or state
    error = "" if state == "done" else tail(log)
    seconds = time.monotonic() - began
    return {"state": state, "seconds": seconds, "error": error, "results": results}


def ended(process: subprocess.Popen[bytes], limit: float) -> str:
    """Wait for the process of a part, for at most `limit` seconds, and return its state as text.
    Then kill its whole session, including ranks that it started. A process that survives SIGKILL,
    because it hangs in the driver, is left behind.
    """
    try:
        status = process.wait(limit)
        return "done" if status == 0 else f"failed with {status}"
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"hung after {limit:.0f} s, and was left behind"
    return f"stopped after {limit:.0f} s"


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-ERROR_LINES:])


if __name__ == "__main__":
    sys.exit(main())
