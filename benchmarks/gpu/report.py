"""Writes the results of a GPU run as Markdown: goals first, then the tables and errors of each
part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.gpu.compared import Parts, beside_loops, beside_published
from benchmarks.gpu.loads import ALONE
from benchmarks.gpu.server import COLD, NOT_SERVED, PREFIX, RUNS, SAME_SOURCES, STARTS, WARM

DRY = (
    "A dry run: tiny shapes and the references of the kernels on a CPU. **These are no numbers of "
    "a GPU**, and none of them says how fast anything is."
)
SEQUENCES = 64
"""Number of sequences in the decode steps for which there is a goal."""
SAME_AS_LOOP = ("W2", "W3")
"""Loads in which the server must reach 90% of the rate of the loop over the same backend."""
START_S = {
    "Qwen3-0.6B": {COLD: 8.0, WARM: 5.0},
    "Qwen3-8B": {COLD: 8.0, WARM: 5.0},
    "Qwen3-30B-A3B": {WARM: 9.0},
}
"""Goals in seconds for the start of a server, by model and by whether Triton's cache has the
kernels.
"""
FIRST_TOKEN_MS = {"Qwen3-0.6B": 4.0, "Qwen3-8B": 10.0, "Qwen3-30B-A3B": 12.0}


def report(found: Parts, dry: bool) -> str:
    lines = ["# The torch backend on a GPU", ""]
    lines += [line for reason in _warnings(found) for line in (f"**{reason}**", "")]
    if dry:
        lines += [DRY, ""]
    else:
        lines += _first("goals", goals(found))
    lines += _first("the product's server beside the loop", beside_loops(found))
    lines += _first("beside what others have published", beside_published(found))
    lines += [*table("parts", [_state(name, part) for name, part in found.items()]), ""]
    for name, part in found.items():
        lines += [f"## {name}", ""]
        for title, value in part["results"].items():
            lines += [*table(title, value), ""]
        if part["error"]:
            lines += ["The end of its log:", "", "```", part["error"], "```", ""]
    return "\n".join(lines)


def _first(title: str, rows: Iterable[dict[str, Any]]) -> list[str]:
    """Lines of a table with `rows`; nothing without rows."""
    listed = list(rows)
    return [*table(title, listed), ""] if listed else []


def _warnings(found: Parts) -> Iterator[str]:
    """Lines with warnings to read before the numbers."""
    reasons: dict[str, list[str]] = {}
    for name, part in found.items():
        if (reason := part["results"].get(NOT_SERVED)) is not None:
            reasons.setdefault(f"{NOT_SERVED}: {reason}", []).append(name)
        if part["results"].get(SAME_SOURCES) is False:
            reasons.setdefault("what was served is not this source tree", []).append(name)
    for reason, names in reasons.items():
        yield f"{reason[0].upper()}{reason[1:]} ({', '.join(names)})."


def _state(name: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"part": name, "state": part["state"], "seconds": part["seconds"]}


def goals(found: Parts) -> Iterator[dict[str, Any]]:
    """Rows with each goal and its result. Goals without a result are left out."""
    for row in beside_loops(found):
        if row["load"] in SAME_AS_LOOP and row["ratio"] is not None:
            title = f"{row['model']}: server, {row['load']}, share of the loop's rate"
            yield from _goal(title, 0.9, max, [row["ratio"]])
    for name, part in found.items():
        if name.startswith(PREFIX):
            yield from _goals_of_server(name.removeprefix(PREFIX), part["results"])
        else:
            yield from _goals_of_backend(name, part["results"])


def _goals_of_server(model: str, results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for row in results.get(STARTS, []):
        seconds = START_S.get(model, {}).get(row["compiled_kernels"])
        after = row.get("first_token_s")
        if seconds is not None and after is not None:
            title = f"{model}: server, seconds from its start to the first token"
            yield _within(
                f"{title}, kernels in the cache: {row['compiled_kernels']}", seconds, after
            )
    for row in results.get(RUNS, []):
        if row["workload"] == ALONE.name and model in FIRST_TOKEN_MS:
            title = f"{model}: server, ms to the first token of {ALONE.prompt}"
            yield _within(title, FIRST_TOKEN_MS[model], row["median_ttft_ms"])


def _goals_of_backend(name: str, results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if name == "kernels":
        shares = [
            row["of_memory"]
            for row in results.get("speeds", [])
            if row["case"].startswith("decode 256")
            and row["of_memory"] is not None
            # Only cases with the default number of splits count.
            and row["case"].endswith("splits None")
        ]
        title = "decode attention, least share of the memory bandwidth"
        yield from _goal(title, 0.8, min, shares)
    own = [
        row["of_memory"]
        for row in results.get("decode steps", [])
        if row["rows"] == SEQUENCES and row.get("of_memory") is not None
    ]
    title = f"{name}: decode steps of {SEQUENCES}, share of the memory bandwidth"
    yield from _goal(title, 0.7, max, own)
    own = [row["of_gemm"] for row in results.get("prefill steps", []) if row["of_gemm"]]
    yield from _goal(f"{name}: prefill, share of the rate of a product", 0.6, max, own)
    own = [row["of_ceiling"] for row in results.get("offline", []) if row["of_ceiling"]]
    yield from _goal(f"{name}: offline, share of its ceiling", 0.6, max, own)
    after = results.get("first token after s")
    if after is not None:
        yield _within(f"{name}: seconds to the first token", 10.0, after)


def _within(title: str, wanted: float, found: float) -> dict[str, Any]:
    return {"goal": title, "wanted": wanted, "found": found, "reached": found <= wanted}


def _goal(title: str, wanted: float, best: Any, found: list[float]) -> Iterator[dict[str, Any]]:
    if found:
        value = best(found)
        yield {"goal": title, "wanted": wanted, "found": value, "reached": value >= wanted}


def table(title: str, value: Any) -> list[str]:
    """Markdown lines of a result: a list of rows as a table, anything else as a line."""
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return [f"* {title}: {shown(value)}"]
    columns = list(dict.fromkeys(name for row in value for name in row))
    rows = ["|" + "|".join(shown(row.get(c, "")) for c in columns) + "|" for row in value]
    return [f"### {title}", "", f"|{'|'.join(columns)}|", "|-" * len(columns) + "|", *rows]


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2e}" if value and abs(value) < 0.01 else f"{value:,.2f}"
    return str(value).replace("|", "\\|")
