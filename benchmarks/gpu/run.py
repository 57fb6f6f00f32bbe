"""Everything that there is to measure on a GPU, in one command of ten minutes at most.

Needs torch and Triton, no network, and nothing built: it runs from the source tree.

    python benchmarks/gpu/run.py --out build/gpu

Each part is a process of its own with a time limit, and what it found is written when it ends, so
that one failure loses nothing: PART.json, PART.log, report.md. `--dry` runs all parts on the CPU
with tiny shapes and the references of the kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Name and seconds; those first that the later ones are compared with.
PARTS = (
    ("machine", 60),
    ("correctness", 120),
    ("kernels", 120),
    ("Qwen3-0.6B", 90),
    ("Qwen3-8B", 120),
    ("Qwen3-30B-A3B", 150),
    ("Qwen3-14B", 150),
)
KILL_SECONDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory of the results")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--seconds", type=float, default=570, help="for all parts together")
    parser.add_argument("--parts", nargs="*", help="only these")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    end, found = time.monotonic() + options.seconds, {}
    for name, limit in PARTS:
        if options.parts and name not in options.parts:
            continue
        left = end - time.monotonic()
        found[name] = run_part(name, min(limit, left), options.out, options.dry)
        (options.out / "report.md").write_text(report(found, options.dry))
        print(f"{name}: {found[name]['state']}, {found[name]['seconds']:.0f} s", flush=True)
    return 0 if all(part["state"] == "done" for part in found.values()) else 1


def run_part(name: str, limit: float, out: Path, dry: bool) -> dict[str, Any]:
    """What the part wrote, also where it failed or ran out of time."""
    path, began = out / f"{name}.json", time.monotonic()
    path.unlink(missing_ok=True)
    if limit < 5:
        return {"state": "no time left", "seconds": 0.0, "results": {}}
    given = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "python"), *([given] if given else [])])
    command = [sys.executable, "-m", "benchmarks.gpu.parts", name, str(path)]
    with (out / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--dry"] if dry else command,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths},
        )
        state = ended(process, limit)
    results = json.loads(path.read_text()) if path.exists() else {}
    return {"state": state, "seconds": time.monotonic() - began, "results": results}


def ended(process: subprocess.Popen[bytes], limit: float) -> str:
    """State of a part after at most `limit` seconds. One that SIGKILL does not end, such as a
    process that hangs in the driver, is left behind.
    """
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            return f"hung after {limit:.0f} s, and was left behind"
        return f"stopped after {limit:.0f} s"
    return "done" if status == 0 else f"failed with {status}"


def report(found: dict[str, dict[str, Any]], dry: bool) -> str:
    lines = ["# The torch backend on a GPU", ""]
    if dry:
        lines += ["A dry run: tiny shapes on a CPU. No number here says anything.", ""]
    for name, part in found.items():
        lines += [f"## {name}", "", f"{part['state']} in {part['seconds']:.0f} s", ""]
        for title, value in part["results"].items():
            lines += [*table(title, value), ""]
    return "\n".join(lines)


def table(title: str, value: Any) -> list[str]:
    """A list of rows as a table, anything else as a line."""
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return [f"* {title}: {shown(value)}"]
    columns = list(value[0])
    rows = ["|" + "|".join(shown(row.get(c)) for c in columns) + "|" for row in value]
    return [f"### {title}", "", f"|{'|'.join(columns)}|", "|-" * len(columns) + "|", *rows]


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2e}" if value and abs(value) < 0.01 else f"{value:,.2f}"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
