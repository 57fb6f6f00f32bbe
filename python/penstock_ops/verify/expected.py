"""Expected values of hardware, from the table expected.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from penstock.config.documents import read_document
from penstock_ops.verify.finding import Bound

TABLE = Path(__file__).with_name("expected.yaml")


@dataclass(frozen=True, slots=True)
class Expected:
    value: float
    unit: str
    source: str
    """Who published the value, and when it was read there."""

    def bound(self, *, is_ceiling: bool = False) -> Bound:
        """A bound that warns."""
        return Bound(None, self.value, self.unit, is_ceiling, self.source)

    def limit(self, *, is_ceiling: bool = False) -> Bound:
        """A bound that fails."""
        return Bound(self.value, None, self.unit, is_ceiling, self.source)


@cache
def _table() -> Mapping[str, Any]:
    return read_document(TABLE)


def of_node(name: str) -> Expected:
    return _expected(_table()["node"][name])


def of_accelerator(accelerator: str) -> Mapping[str, Expected]:
    """Expected values by name; empty for an accelerator that the table lacks."""
    row = _table()["accelerators"].get(accelerator, {"values": {}})
    return {name: _expected(value) for name, value in row["values"].items()}


def accelerator_of(product: str) -> str:
    """The accelerator whose driver reports this product name; empty if the table lacks it."""
    rows = _table()["accelerators"].items()
    return next((name for name, row in rows if product in row["products"]), "")


def of_processor(model: str) -> Expected | None:
    """Rate at which all cores of a socket read memory, by the model name of /proc/cpuinfo."""
    rows = _table()["processors"].items()
    found = next((row for pattern, row in rows if re.search(pattern, model)), None)
    return _expected(found) if found else None


def _expected(row: Mapping[str, Any]) -> Expected:
    return Expected(float(row["value"]), row["unit"], f"{row['source']}, {row['date']}")
