"""Everything that there is to measure on a GPU, in one command of ten minutes at most.

Needs torch with Triton, NumPy and PyYAML, no network, and nothing built: it runs from the source
tree.

    python benchmarks/gpu/run.py --out build/gpu

Each part is a process of its own with a time limit, and what it found is written as it goes, so
that one failure loses nothing: PART.json and PART.log, results.json with all parts, report.md.
`--dry` runs all parts on the CPU with tiny shapes and the references of the kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu.items import problems, write  # noqa: E402
from benchmarks.gpu.report import report  # noqa: E402

# Name and seconds: what says whether the rest means anything first, then what is cheap. All of them
# fit into the time of a run, also where each is killed; what one leaves goes to the next ones.
PARTS = (
    ("correctness", 90),
    ("machine", 25),
    ("tiers", 25),
    ("Qwen3-0.6B", 45),
    ("kernels", 55),
    ("Qwen3-8B", 80),
    ("several", 55),
    ("Qwen3-30B-A3B", 75),
    ("Qwen3-14B", 45),
    ("tiles", 10),
    ("flashinfer", 10),
)
KILL_SECONDS = 5
LEAST_SECONDS = 10
ERROR_LINES = 15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory of the results")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--seconds", type=float, default=570, help="for all parts together")
    names = [name for name, _ in PARTS]
    parser.add_argument("--parts", nargs="*", choices=names, help="only these")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    end, found = time.monotonic() + options.seconds, {}
    parts = [each for each in PARTS if not options.parts or each[0] in options.parts]
    for at, (name, own) in enumerate(parts):
        later = sum(limit + KILL_SECONDS for _, limit in parts[at + 1 :])
        left = end - KILL_SECONDS - time.monotonic()
        limit = max(min(own, left), left - later)
        found[name] = run_part(name, limit, options.out, options.dry)
        everything = {"dry": options.dry, "parts": found}
        write(options.out / "results.json", json.dumps(everything, indent=1))
        write(options.out / "report.md", reported(found, options.dry))
        print(f"{name}: {found[name]['state']}, {found[name]['seconds']:.0f} s", flush=True)
    return 0 if all(part["state"] == "done" for part in found.values()) else 1


def reported(found: dict[str, Any], dry: bool) -> str:
    """The report. An error in it ends no run: the parts to come are measured."""
    try:
        return report(found, dry)
    except Exception:  # noqa: BLE001 - of any kind: what was found is in results.json
        return f"The report failed; see results.json.\n\n```\n{traceback.format_exc()}```\n"


def run_part(name: str, limit: float, out: Path, dry: bool) -> dict[str, Any]:
    """What the part wrote, also where it failed or ran out of time."""
    path, log = (out.resolve() / f"{name}.{kind}" for kind in ("json", "log"))
    began = time.monotonic()
    path.unlink(missing_ok=True)
    if limit < LEAST_SECONDS:
        return {"state": "no time left", "seconds": 0.0, "error": "", "results": {}}
    given = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "python"), *([given] if given else [])])
    # The time of its imports counts.
    command = [sys.executable, "-m", "benchmarks.gpu.parts", name, str(path), str(began + limit)]
    with log.open("w") as written:
        process = subprocess.Popen(
            [*command, "--dry"] if dry else command,
            stdout=written,
            stderr=written,
            # cuFile writes its log where it is.
            cwd=out,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
        state = ended(process, limit)
    results = json.loads(path.read_text()) if path.exists() else {}
    if state == "done":
        state = problems(results) or state
    error = "" if state == "done" else tail(log)
    seconds = time.monotonic() - began
    return {"state": state, "seconds": seconds, "error": error, "results": results}


def ended(process: subprocess.Popen[bytes], limit: float) -> str:
    """State of a part after at most `limit` seconds. Its session is killed with it: the ranks that
    it started. A process that SIGKILL does not end, as it hangs in the driver, is left behind.
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
