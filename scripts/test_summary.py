"""Add up the results of the Rust and the Python tests and print one closing line.

usage: test_summary.py CARGO_LOG PYTEST_JUNIT_XML... [--group PYTEST_JUNIT_XML]...

CARGO_LOG is the output of `cargo test -- --show-output`; the XML files come from pytest's
`--junitxml`. Rust cannot skip a test at run time, so a test that prints a line `SKIPPED: reason`
counts as skipped. The reasons are repeated here, and so is the end of each failed test's output. A
missing file counts as one failure, because the tests that should have written it did not run.
Groups are tests that cannot run everywhere; a missing report of one counts as one skipped test.
Exits with 1 if anything failed.
"""

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

CARGO_OUTPUT = re.compile(
    r"^---- \S+ stdout ----\n(.*?)(?=^---- |^successes:|^failures:|\Z)", re.MULTILINE | re.DOTALL
)
SKIPPED = re.compile(r"^SKIPPED\b.*", re.MULTILINE)
CARGO_RESULT = re.compile(
    r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE
)
CARGO_FAILURES = re.compile(r"^failures:\n\n(?=----)(.*?)^failures:$", re.MULTILINE | re.DOTALL)
CARGO_FAILURE = re.compile(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |\Z)", re.MULTILINE | re.DOTALL)
LINES_OF_A_FAILURE = 25


class Counts(NamedTuple):
    """Number of tests by outcome."""

    passed: int
    failed: int
    skipped: int


NEVER_RAN = Counts(0, 1, 0)
GROUP_SKIPPED = Counts(0, 0, 1)


def cargo_counts(log: Path) -> Counts:
    """Sum of the `test result:` lines in cargo's log; each test binary prints one."""
    if not log.exists():
        return NEVER_RAN
    text = log.read_text(errors="replace")
    rows = CARGO_RESULT.findall(text)
    if not rows:
        return NEVER_RAN
    passed, failed, ignored = (sum(int(row[column]) for row in rows) for column in range(3))
    skipped = len(cargo_skips(text))
    return Counts(passed - skipped, failed, ignored + skipped)


def cargo_skips(log: str) -> list[str]:
    """The `SKIPPED: reason` lines of tests that cargo counts as passed, one for each test."""
    outputs = (SKIPPED.search(found[1]) for found in CARGO_OUTPUT.finditer(log))
    return [found[0] for found in outputs if found]


def cargo_failures(log: Path) -> dict[str, str]:
    """Output of each failed Rust test, by name."""
    text = log.read_text(errors="replace") if log.exists() else ""
    blocks = (CARGO_FAILURE.finditer(found[1]) for found in CARGO_FAILURES.finditer(text))
    return {found[1]: found[2] for block in blocks for found in block}


def pytest_failures(report: Path) -> dict[str, str]:
    """Traceback of each failed Python test, by name."""
    if not report.exists():
        return {}
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {
        f"{case.get('classname')}::{case.get('name')}": part.text or ""
        for case in cases
        for part in case
        if part.tag in ("failure", "error")
    }


def pytest_counts(report: Path) -> Counts:
    """Counts of a JUnit report. An error in a fixture or an import is a failure."""
    if not report.exists():
        return NEVER_RAN
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in suites:
        for key in totals:
            totals[key] += int(suite.get(key, "0"))
    failed = totals["failures"] + totals["errors"]
    return Counts(totals["tests"] - failed - totals["skipped"], failed, totals["skipped"])


def line(counts: Counts) -> str:
    """One line in the format that CI reads."""
    return f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped"


def summed(*counts: Counts) -> Counts:
    return Counts(*(sum(column) for column in zip(*counts, strict=True)))


def main(cargo_log: Path, reports: list[Path], groups: list[Path]) -> int:
    """Print the counts of Rust, of Python and their sum; returns the exit status."""
    ran = [*reports, *(group for group in groups if group.exists())]
    skipped = [GROUP_SKIPPED] * (len(reports) + len(groups) - len(ran))
    rust = cargo_counts(cargo_log)
    python = summed(*map(pytest_counts, ran), *skipped)
    total = summed(rust, python)
    reasons = cargo_skips(cargo_log.read_text(errors="replace")) if cargo_log.exists() else []
    for reason in sorted(set(reasons)):
        print(reason)
    failures = cargo_failures(cargo_log)
    for report in ran:
        failures |= pytest_failures(report)
    for group in groups:
        if group not in ran:
            print(f"SKIPPED {group.stem}: it did not run, its reason is further above")
    for name, output in failures.items():
        print(f"\nFAILED {name}")
        print("\n".join(output.strip().splitlines()[-LINES_OF_A_FAILURE:]))
    print(f"rust:   {line(rust)}\npython: {line(python)}\n{line(total)}")
    return 1 if total.failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("cargo_log", type=Path)
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--group", dest="groups", type=Path, action="append", default=[])
    sys.exit(main(**vars(parser.parse_args())))
