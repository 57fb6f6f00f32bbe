"""The files that a comparison leaves, as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COMPARISON = "comparison.json"


def load_results(directory: Path) -> list[dict[str, Any]]:
    """In the order in which they were written."""
    paths = sorted(path for path in directory.glob("*.json") if path.name != COMPARISON)
    return sorted((json.loads(path.read_text()) for path in paths), key=_date)


def load_comparison(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / COMPARISON).read_text())
    return found


def _date(result: dict[str, Any]) -> str:
    return str(result.get("date", ""))
