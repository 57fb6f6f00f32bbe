"""What a run found, as Markdown: goals first, then each part with its tables and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Parts = dict[str, dict[str, Any]]
DRY = (
    "A dry run: tiny shapes and the references of the kernels on a CPU. **These are no numbers of "
    "a GPU**, and none of them says how fast anything is."
)
SEQUENCES = 64
"""Rows of the decode steps that the goal is about."""


def report(found: Parts, dry: bool) -> str:
    lines = ["# The torch backend on a GPU", ""]
    if dry:
        lines += [DRY, ""]
    elif rows := list(goals(found)):
        lines += [*table("goals", rows), ""]
    lines += [*table("parts", [_state(name, part) for name, part in found.items()]), ""]
    for name, part in found.items():
        lines += [f"## {name}", ""]
        for title, value in part["results"].items():
            lines += [*table(title, value), ""]
        if part["error"]:
            lines += ["The end of its log:", "", "```", part["error"], "```", ""]
    return "\n".join(lines)


def _state(name: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"part": name, "state": part["state"], "seconds": part["seconds"]}


def goals(found: Parts) -> Iterator[dict[str, Any]]:
    """What is to be reached, and what was. Rows without a number are left out."""
    for name, part in found.items():
        results = part["results"]
        if name == "kernels":
            shares = [
                row["of_copy"]
                for row in results.get("speeds", [])
                if row["case"].startswith("decode 256")
                and row["of_copy"] is not None
                # The splits that are served.
                and row["case"].endswith("splits None")
            ]
            title = "decode attention, least share of the copy bandwidth"
            yield from _goal(title, 0.8, min, shares)
        own = [
            row["of_copy"]
            for row in results.get("decode steps", [])
            if row["rows"] == SEQUENCES and row.get("of_copy") is not None
        ]
        title = f"{name}: decode steps of {SEQUENCES}, share of the copy bandwidth"
        yield from _goal(title, 0.7, max, own)
        own = [row["of_gemm"] for row in results.get("prefill steps", []) if row["of_gemm"]]
        yield from _goal(f"{name}: prefill, share of the rate of a product", 0.6, max, own)
        own = [row["of_ceiling"] for row in results.get("offline", []) if row["of_ceiling"]]
        yield from _goal(f"{name}: offline, share of its ceiling", 0.6, max, own)
        after = results.get("first token after s")
        if after is not None:
            goal = f"{name}: seconds to the first token"
            yield {"goal": goal, "wanted": 10.0, "found": after, "reached": after < 10}


def _goal(title: str, wanted: float, best: Any, found: list[float]) -> Iterator[dict[str, Any]]:
    if found:
        value = best(found)
        yield {"goal": title, "wanted": wanted, "found": value, "reached": value >= wanted}


def table(title: str, value: Any) -> list[str]:
    """A list of rows as a table, anything else as a line."""
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return [f"* {title}: {shown(value)}"]
    columns = list(dict.fromkeys(name for row in value for name in row))
    rows = ["|" + "|".join(shown(row.get(c, "")) for c in columns) + "|" for row in value]
    return [f"### {title}", "", f"|{'|'.join(columns)}|", "|-" * len(columns) + "|", *rows]


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2e}" if value and abs(value) < 0.01 else f"{value:,.2f}"
    return str(value).replace("|", "\\|")
