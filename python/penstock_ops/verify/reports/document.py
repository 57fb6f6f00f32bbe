"""The verdict as JSON (docs/verify.md has the schema)."""

from __future__ import annotations

import json
import math
from typing import Any

from penstock import __version__
from penstock_ops.verify.finding import Bound, Finding
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.verdict import Verdict

SCHEMA = 1


def document(verdict: Verdict, needs: Needs) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "penstock": __version__,
        "plan": needs.plan or None,
        "model": needs.model or None,
        "verdict": verdict.outcome.value,
        "cause": row(verdict.cause) if verdict.cause else None,
        "findings": [row(finding) for finding in verdict.findings],
    }


def row(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "layer": finding.layer.value,
        "node": finding.node,
        "device": finding.device,
        "status": finding.status.value,
        "summary": finding.summary,
        "measured": _number(finding.measured),
        "bound": _bound(finding.bound) if finding.bound else None,
        "cause": finding.cause,
        "remedy": finding.remedy,
        "evidence": finding.evidence,
    }


def dump(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=2, allow_nan=False) + "\n"


def _bound(bound: Bound) -> dict[str, Any]:
    return {
        "needed": _number(bound.needed),
        "expected": _number(bound.expected),
        "unit": bound.unit,
        "is_ceiling": bound.is_ceiling,
        "formula": bound.formula,
    }


def _number(value: float | None) -> float | str | None:
    """JSON has no infinity, which stands for unlimited here, and no NaN."""
    if value is None or math.isfinite(value):
        return value
    return "unlimited" if value > 0 else "unknown"
