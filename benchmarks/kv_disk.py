"""Read speed of the disk tier, beside fio on the same file system with the same block size.

    python benchmarks/kv_disk.py --program target/release/examples/disk_reads [--directory DIR]
        [--repeats 3]

Build the program with `cargo build --release -p penstock-kvstore --example disk_reads`; fio is a
Debian package. A part is as large as for SmolLM2-135M (1.97 MB). Before a cold read, the files are
dropped from the page cache. Each repeat runs fio, then the program. The program's three rounds also
read the same files without header and checksum, alternating with the tier's reads when the files
are cached.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from support import facts

from penstock_lab.bench.compare.processes import wait_until_quiet
from penstock_lab.bench.compare.server_under_test import first_line_with_digit

THREADS, PARTS, PART_BYTES = 4, 512, 1966080
QUIET_WAIT_S, MAX_FOREIGN = 60.0, 0.05
TITLES = {
    "fio cold": "fio, direct, cold",
    "cold auto": "disk tier, cold",
    "cold plain direct": "one direct read for each file, no checksum, cold",
    "fio cached": "fio, buffered, cached",
    "cached auto": "disk tier, cached",
    "cached plain buffered": "one buffered read for each file, no checksum, cached",
    "cached checksum": "the checksum alone, of what is in memory",
}
BAR, CHECKSUM_BAR = 0.9, 0.1


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--repeats", type=int, default=3)
    parsed = parser.parse_args()
    rates: dict[str, list[float]] = defaultdict(list)
    wait_until_quiet(QUIET_WAIT_S, MAX_FOREIGN)
    for _ in range(parsed.repeats):
        for name, words in (
            ("fio cold", ["--direct=1"]),
            ("fio cached", ["--direct=0", "--pre_read=1"]),
        ):
            rates[name].append(fio(parsed.directory, words))
        for name, rate in tier(parsed):
            rates[name].append(rate)
    about = facts.gather(parsed.peers.expanduser(), (), sys.argv)
    about["versions"]["fio"] = first_line_with_digit(["fio", "--version"])
    facts.write(
        facts.stem("kv-disk", parsed.results),
        lines(rates, about, parsed),
        {**about, "rates": rates},
    )


def fio(directory: Path, words: list[str]) -> float:
    """GB per second at which fio reads files as large as the tier's, one call for each, with as
    many jobs as the tier has threads.
    """
    with tempfile.TemporaryDirectory(dir=directory) as name:
        command = [
            "fio",
            "--name=kv",
            f"--directory={name}",
            "--rw=read",
            f"--bs={PART_BYTES // 4096 * 4096}",
        ]
        command += [
            f"--numjobs={THREADS}",
            f"--size={PARTS * PART_BYTES // THREADS // PART_BYTES * PART_BYTES}",
        ]
        command += ["--group_reporting", "--output-format=json", "--invalidate=1", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"]) / 1e9


def tier(parsed: argparse.Namespace) -> list[tuple[str, float]]:
    with tempfile.TemporaryDirectory(dir=parsed.directory) as name:
        command = [str(parsed.program), name, str(THREADS), str(PARTS)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(r"^(cold|cached)\s+(\w[\w ]*?)\s+([\d.]+)$", done.stdout, re.MULTILINE)
    return [(f"{state} {how}", float(rate)) for state, how, rate in found]


def lines(
    rates: dict[str, list[float]], about: dict[str, object], parsed: argparse.Namespace
) -> list[str]:
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = medians["cold auto"] / medians["fio cold"]
    # Seconds spent on checksums for each second of reading.
    cold = medians["cold auto"] / medians["cached checksum"]
    cached = 1 - medians["cached auto"] / medians["cached plain buffered"]
    rows = [
        [title, f"{medians[name]:.2f}", f"{min(rates[name]):.2f} to {max(rates[name]):.2f}"]
        for name, title in TITLES.items()
    ]
    return [
        "# Reads of the disk tier",
        "",
        *facts.fact_lines(about),
        f"* {PARTS} parts of {PART_BYTES:,} bytes, {THREADS} threads, {parsed.repeats} repeats",
        f"* cold reads are {ratio:.2f} of fio's (bar: {BAR}, {_kept(ratio >= BAR)})",
        f"* the checksum takes {cold:.1%} of a cold read (bar: {CHECKSUM_BAR},",
        f"{_kept(cold < CHECKSUM_BAR)})",
        f"* cached reads are {cached:.0%} slower than without it ({_kept(cached < CHECKSUM_BAR)})",
        "",
        *facts.table(("", "GB/s", "range"), rows),
    ]


def _kept(kept: bool) -> str:
    return "kept" if kept else "MISSED"


if __name__ == "__main__":
    main()
