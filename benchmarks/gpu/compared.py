"""Compares the parts of a GPU run with each other and with published results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu.server import PREFIX, RUNS

Parts = dict[str, dict[str, Any]]
PUBLISHED = Path(__file__).with_name("published.yaml")
LESS_IS_MORE = ("ms", "us")


def beside_loops(found: Parts) -> Iterator[dict[str, Any]]:
    """A row for each load: the output rate of Penstock's server compared with the benchmark's loop
    over the same backend.
    """
    for name, part in found.items():
        if not name.startswith(PREFIX):
            continue
        model = name.removeprefix(PREFIX)
        rows = found.get(model, {}).get("results", {}).get("closed loops", [])
        loops = {row["workload"]: row for row in rows}
        for row in part["results"].get(RUNS, []):
            yield _beside(model, row, loops.get(row["workload"], {}))


def _beside(model: str, row: dict[str, Any], loop: dict[str, Any]) -> dict[str, Any]:
    rate = loop.get("output_tokens_per_s")
    return {
        "model": model,
        "load": row["workload"],
        "loop tok/s": rate,
        "server tok/s": row["output_tokens_per_s"],
        "ratio": row["output_tokens_per_s"] / rate if rate else None,
        "loop TTFT ms": loop.get("ttft_ms"),
        "server TTFT ms": row["ttft_ms"],
        "loop TPOT ms": loop.get("tpot_ms"),
        "server TPOT ms": row["tpot_ms"],
        "ITL P99 ms": row["p99_itl_ms"],
    }


def beside_published(found: Parts) -> Iterator[dict[str, Any]]:
    """Rows with Penstock's result beside a published one for the same chip. Penstock is better if
    `better` is above 1.
    """
    device = str(found.get("machine", {}).get("results", {}).get("device", ""))
    for entry in yaml.safe_load(PUBLISHED.read_text()):
        if entry["chip"] not in device:
            continue
        rows = found.get(entry["part"], {}).get("results", {}).get(entry["table"], [])
        for row in rows:
            if all(row.get(key) == value for key, value in entry["where"].items()):
                ours, theirs = row[entry["column"]], entry["value"]
                better = ours / theirs
                yield {
                    "what": f"{entry['part']}: {', '.join(map(_named, entry['where'].items()))}",
                    "unit": entry["column"],
                    "ours": ours,
                    "published": theirs,
                    "better": 1 / better if entry["column"] in LESS_IS_MORE else better,
                    "by": entry["by"],
                    "their load": entry["load"],
                    "source": entry["source"],
                }


def _named(pair: tuple[str, Any]) -> str:
    key, value = pair
    return str(value) if key == "case" else f"{value} {key}"
