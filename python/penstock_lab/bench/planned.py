"""`penstock bench plan PLAN`: sends the load of a deployment plan (`penstock plan`) to a server,
and prints predictions beside measurements.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.config import forms
from penstock.config.forms import count, members, number, rows, table, text
from penstock_lab.bench import flags, result
from penstock_lab.bench.measure import measure, parse_workload
from penstock_lab.bench.progress import progress
from penstock_lab.bench.result import Result
from penstock_lab.bench.runs import INTERRUPTED
from penstock_lab.bench.slo import Slo, parse_slo
from penstock_lab.bench.table import figure, render

ANY = members({})
BAND = members({"low": number(), "mid": number(), "high": number()})
LOAD = {"requests": count(1), "slo": rows(text())}
TRACE = members({"trace": text(), **LOAD})
RANDOM = members({"isl": count(1), "osl": count(1), "rate": number(), "seed": count(), **LOAD})
PLAN = members(
    {"bench": ANY, "predictions": table(text(), lambda _key, _value: None)},
)
HELD = "holds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.yaml of `penstock plan -o`")
    flags.add_target(parser)
    flags.add_prompts(parser)
    flags.add_results(parser)
    flags.add_display(parser)


def run(parsed: argparse.Namespace) -> int:
    """Run the load. Exit status: 0; 1 if a latency bound of the plan is violated or no request
    succeeded; 130 after Ctrl-C.
    """
    plan = read_plan(parsed.plan)
    measured = measure_plan(plan, parsed)
    print("\n".join(lines(plan, measured)))
    if parsed.save_result or parsed.append_result:
        path = Path(parsed.result_dir or "") / (
            parsed.result_filename or result.file_name(measured)
        )
        result.write(result.slim(measured), path, append=parsed.append_result)
        print(f"result: {path}", file=sys.stderr)
    if measured["penstock"]["partial"]:
        return INTERRUPTED
    held = all(not slo.passed([measured]) for slo in bounds(plan))
    return 0 if measured["completed"] and held else 1


def measure_plan(plan: Mapping[str, Any], parsed: argparse.Namespace) -> Result:
    """Send the plan's load to the server of the flags. The result has the plan among its tags, for
    `penstock plan --calibrate`; after Ctrl-C it is partial.
    """
    load = parse_workload(words(plan))
    for name in ("tokenizer", "prompt_ids", "vocab_size"):
        setattr(load, name, getattr(parsed, name))
    return measure(
        load,
        flags.target(parsed),
        seed=load.seed,
        tags={"command": "plan", "plan": plan},
        progress=progress(parsed.disable_tqdm),
    )


def read_plan(path: Path) -> Mapping[str, Any]:
    """A plan with a known schema; raises PenstockError for any other file."""
    return forms.read_plan(path, _form)


def _form(key: str, plan: object) -> None:
    PLAN(key, plan)
    assert isinstance(plan, dict)
    load = plan["bench"]
    (TRACE if "trace" in load else RANDOM)("bench", load)
    for name, predicted in plan["predictions"].items():
        if name.endswith("_ms"):
            (BAND if isinstance(predicted, dict) and "mid" in predicted else ANY)(
                f"predictions.{name}", predicted
            )


def words(plan: Mapping[str, Any]) -> list[str]:
    """The plan's workload as arguments of `bench serve` or `bench trace`."""
    load = plan["bench"]
    percentiles = sorted({float(p) for p in ("50", "90", "99", *_percentiles(plan))})
    kept = ["--metric-percentiles", ",".join(f"{p:g}" for p in percentiles)]
    if "trace" in load:
        return ["trace", str(load["trace"]), "--num-prompts", str(load["requests"]), *kept]
    named = {
        "--random-input-len": load["isl"],
        "--random-output-len": load["osl"],
        "--num-prompts": load["requests"],
        "--request-rate": load["rate"],
        "--seed": load["seed"],
    }
    return ["serve", *(str(word) for pair in named.items() for word in pair), *kept]


def bounds(plan: Mapping[str, Any]) -> list[Slo]:
    return [parse_slo("slo", text) for text in plan["bench"]["slo"]]


def lines(plan: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    """A table with a row for each prediction: its range, the measurement, and whether a bound of
    the plan is met.
    """
    limits = {slo.key: slo for slo in bounds(plan)}
    predicted = plan["predictions"]
    keys = [key for key in predicted if key.endswith("_ms")]
    rows = [_row(key, predicted.get(key), measured, limits.get(key)) for key in (*keys, *limits)]
    rows = [row for at, row in enumerate(rows) if row[0] not in [before[0] for before in rows[:at]]]
    rows.append(
        [
            "output_tokens_per_s",
            figure(predicted.get("output_tokens_per_s"), 1),
            "",
            figure(measured.get("output_throughput"), 1),
            "",
        ]
    )
    return render(["statistic", "predicted", "band", "measured", "verdict"], rows)


def _row(key: str, predicted: object, measured: Mapping[str, Any], slo: Slo | None) -> list[str]:
    value, found = measured.get(key), predicted if isinstance(predicted, dict) else {}
    verdict, band = [], "unknown"
    if "mid" in found:
        low, high = float(found["low"]), float(found["high"])
        band = f"{low:g} to {high:g}"
        if isinstance(value, int | float):
            verdict.append("within the band" if low <= value <= high else "outside the band")
    if slo:
        verdict.append(slo.passed([measured]) or f"bound {slo.limit:g} {HELD}")
    return [key, figure(found.get("mid")), band, figure(value), ", ".join(verdict)]


def _percentiles(plan: Mapping[str, Any]) -> list[str]:
    return [found for slo in bounds(plan) if (found := slo.percentile)]
