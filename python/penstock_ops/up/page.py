"""The report of `penstock up`: one page as text, and one object as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock_lab.bench import planned
from penstock_lab.bench.result import Result
from penstock_ops.up.measures import Measures
from penstock_ops.up.predictions import Plan, limits, predicted
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.reports.document import document
from penstock_ops.verify.reports.escaping import escaped
from penstock_ops.verify.reports.text import text
from penstock_ops.verify.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Run:
    """A server that was started for a plan."""

    command: Sequence[str]
    measures: Measures
    result: Result | None
    """Result of the benchmark; None if the server never became ready."""


def page(plan: Plan, needs: Needs, run: Run | None, found: Verdict, *, is_styled: bool) -> str:
    """Predicted beside measured values, all findings, and the verdict in the last lines."""
    lines = []
    if run and run.result:
        lines = [*map(escaped, planned.lines(plan, run.result)), ""]
    return "\n".join([*lines, text(found, needs, is_styled=is_styled)])


def report(plan: Plan, needs: Needs, run: Run | None, found: Verdict) -> dict[str, Any]:
    """The report of `penstock verify` with the members `run` and `statistics`."""
    return {
        **document(found, needs),
        "run": {"command": list(run.command), **asdict(run.measures)} if run else None,
        "statistics": _statistics(plan, run.measures) if run else {},
    }


def _statistics(plan: Plan, measures: Measures) -> Mapping[str, Any]:
    """For each predicted or limited latency: its prediction, limit and measurement."""
    limit = limits(plan)
    keys = [key for key in dict.fromkeys([*plan["predictions"], *limit]) if key.endswith("_ms")]
    return {
        key: {
            "predicted": asdict(band) if (band := predicted(plan, key)) else None,
            "limit": limit.get(key),
            "measured": measures.statistics.get(key),
        }
        for key in keys
    }
