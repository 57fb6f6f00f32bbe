"""Findings as gauges in Prometheus' text format, in a file for node_exporter's textfile collector.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.core import PenstockError
from penstock_ops.verify.finding import SEVERITY, Finding, Status
from penstock_ops.verify.reports.escaping import escaped

SUFFIX = ".prom"
"""The collector reads no other files."""
VALUES = {Status.PASS: 0, Status.WARN: 1, Status.UNKNOWN: 2, Status.FAIL: 3}
"""A check that does not apply has no sample."""
Samples = dict[str, float]
"""Values by labels."""


def exposition(findings: Sequence[Finding], *, ended: float, interval: float) -> str:
    """`ended` is the time of the pass in seconds since 1970, `interval` the pause between passes in
    seconds. Of findings with equal labels, the most severe has the sample.
    """
    applied = [each for each in findings if each.status in VALUES]
    worst_first = sorted(applied, key=lambda each: -SEVERITY.index(each.status))
    status: Samples = {}
    measured: Samples = {}
    for finding in worst_first:
        labels = {"check": finding.check, "device": finding.device}
        key = _labels({**labels, "layer": finding.layer.value})
        status.setdefault(key, VALUES[finding.status])
        if finding.measured is not None and finding.bound is not None:
            key = _labels({**labels, "unit": finding.bound.unit})
            measured.setdefault(key, finding.measured)
    return "".join(
        [
            *_gauge("status", "Result: 0 pass, 1 warn, 2 unknown, 3 fail.", status),
            *_gauge("measured", "Value that the check measured, in its unit.", measured),
            *_gauge("last_run_timestamp_seconds", "End of the last pass.", {"": ended}),
            *_gauge("interval_seconds", "Pause between passes.", {"": interval}),
        ]
    )


def _gauge(name: str, description: str, samples: Samples) -> Iterable[str]:
    full = f"penstock_verify_{name}"
    yield f"# HELP {full} {description}\n# TYPE {full} gauge\n"
    for labels in sorted(samples):
        yield f"{full}{labels} {_number(samples[labels])}\n"


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_value(text)}"' for name, text in labels.items()) + "}"


def _value(text: str) -> str:
    """Control characters are escaped as in reports; the format's own escapes come on top."""
    return escaped(text).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def replace_file(path: Path, text: str) -> None:
    """Write a file beside `path` and rename it, so that a reader finds a whole one. PenstockError
    names the file.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise PenstockError(f"cannot write {path}: {error.strerror}") from error
    finally:
        _remove(part)


def _remove(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:  # the directory is gone, or is none: nothing is left in it
        return
