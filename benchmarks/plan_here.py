"""`penstock plan --on here --measure` beside the server that it plans for.

    python benchmarks/plan_here.py [--model smollm2] [--requests 40] [--results DIR]

Measures steps once, predicts six open loads, then sends them to `penstock serve`: five minutes.
Nothing else may run, because it would slow both sides at different times. The median TPOT should be
within 15%, the P99 TTFT within 30%.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from support import facts, servers

from penstock.cli.main import main as penstock
from penstock_lab.bench.slo import parse_slo
from penstock_ops.plan.arrivals import poisson
from penstock_ops.plan.calibration import shipped
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.document import Request, document
from penstock_ops.plan.engines import Load, engine
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.here import here
from penstock_ops.plan.planning import MEASURED, WAITING
from penstock_ops.plan.profile import measure
from penstock_ops.plan.search import Goal, Question, SearchResult, Speed, candidates, judge
from penstock_ops.plan.starting import Rates
from penstock_ops.plan.subject import Subject, read_subject
from penstock_ops.plan.virtual import Arrival

LOADS = (
    (64, 64, 6.0),
    (128, 256, 1.5),
    (256, 128, 1.0),
    (256, 128, 2.5),
    (512, 64, 1.5),
    (1024, 128, 0.5),
)
"""Open loops: (tokens of a prompt, tokens of an answer, requests per second)."""
KEYS = ("median_tpot_ms", "p99_tpot_ms", "median_ttft_ms", "p99_ttft_ms")
BOUNDS = {"median_tpot_ms": 0.15, "p99_ttft_ms": 0.30}
"""Maximum relative error of the prediction of each statistic."""


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("--requests", type=int, default=40, help="default: %(default)s")
    parsed = parser.parse_args()
    known = facts.gather(parsed.peers, (), sys.argv)
    subject = read_subject(parsed.model)
    profile = measure(subject, print)
    print("decode ms", [(n, round(s * 1e3, 2)) for n, s in profile.decodes])
    print("chunk ms", [(n, round(s * 1e3, 2)) for n, s in profile.chunks])
    print("beside ms", [(n, round(s * 1e3, 2)) for n, s in profile.beside])
    print("after ms", [(n, round(s * 1e3, 2)) for n, s in profile.after], profile.remains)
    print("a server's ms", profile.extra)
    speed = Speed(shipped()[0], MEASURED, profile.extent, profile=profile, waiting=WAITING)
    with (
        tempfile.TemporaryDirectory() as scratch,
        servers.Server(
            ["serve", parsed.model, "--no-enable-prefix-caching"], (), Path(scratch) / "log"
        ) as server,
    ):
        rows = []
        for load in LOADS:
            rows.append(run(subject, speed, load, parsed.requests, Path(scratch), server.url))
            print(json.dumps(rows[-1]), flush=True)
    lines = report(rows, known, parsed.model, parsed.requests)
    print("\n".join(lines))
    facts.write(facts.stem("plan-here", parsed.results), lines, {**known, "rows": rows})


def run(
    subject: Subject,
    speed: Speed,
    load: tuple[int, int, float],
    requests: int,
    scratch: Path,
    url: str,
) -> dict[str, Any]:
    """Predicted and measured statistics of one load, in milliseconds."""
    isl, osl, rate = load
    target, rules = Target(here(), 1), engine("penstock")
    arrivals = tuple(poisson(rate, requests, isl, osl))
    goal = Goal(arrivals, (parse_slo("slo", "p99_ttft_ms:100000"),))
    # The prediction and the server get the same arrivals from a trace: among forty, the two closest
    # ones determine the P99.
    trace = scratch / f"trace-{isl}-{osl}-{rate}.jsonl"
    trace.write_text("\n".join(json.dumps(_row(arrival)) for arrival in arrivals))
    workload = {"trace": str(trace), "requests": requests}
    settings = Load(256, 64)
    asked = Request(subject, target, rules, "bf16", goal, speed, settings, workload, Rates())
    question = Question(subject, target, rules, settings, goal, speed, cuts=[Cut(1, 1)])
    trial = judge(candidates(question)[0][0], 1, goal, speed)
    plan = document(asked, SearchResult(trial, (), (), 1))
    path = scratch / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    out = ["--save-result", "--result-dir", str(scratch), "--result-filename", "r.json"]
    penstock(["bench", "plan", str(path), "--base-url", url, "--disable-tqdm", *out])
    measured = json.loads((scratch / "r.json").read_text())
    return {
        "load": list(load),
        **{
            key: {
                "predicted": plan["predictions"][key]["mid"],
                "measured": round(measured[key], 2),
            }
            for key in KEYS
        },
    }


def _row(arrival: Arrival) -> dict[str, float]:
    """An arrival as a row of a trace file in Mooncake's format."""
    return {
        "timestamp": 1e3 * arrival.at,
        "input_length": arrival.isl,
        "output_length": arrival.osl,
    }


def report(
    rows: list[dict[str, Any]], known: Mapping[str, Any], model: str, requests: int
) -> list[str]:
    """Markdown lines with predicted / measured values of each load, and whether both stay within
    BOUNDS.
    """
    columns = ("prompt, answer, rate", *KEYS, "TPOT within 15%", "P99 TTFT within 30%")

    def cells(row: dict[str, Any]) -> list[str]:
        isl, osl, rate = row["load"]
        pairs = [(row[key]["predicted"], row[key]["measured"]) for key in KEYS]
        verdicts = [_verdict(row[key], most) for key, most in BOUNDS.items()]
        numbers = [f"{predicted:g} / {measured:g}" for predicted, measured in pairs]
        return [f"{isl}, {osl}, {rate:g}/s", *numbers, *verdicts]

    return [
        "# penstock plan --on here --measure beside penstock bench",
        "",
        *facts.fact_lines(known),
        "",
        f"{model}, {requests} requests of each load. Predicted / measured ms.",
        "",
        *facts.table(columns, map(cells, rows)),
    ]


def _verdict(pair: dict[str, float], most: float) -> str:
    error = pair["predicted"] / pair["measured"] - 1 if pair["measured"] else float("inf")
    return f"{'yes' if abs(error) <= most else 'no'}, {error:+.0%}"


if __name__ == "__main__":
    main()
