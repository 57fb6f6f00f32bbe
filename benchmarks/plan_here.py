"""`penstock plan --on here --measure` beside the server that it plans for.

    python benchmarks/plan_here.py [--model smollm2] [--requests 40]

Measures steps once, predicts six open loads, then sends them to `penstock serve`. Nothing else may
run: both sides are slowed by what does, at different moments.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import yaml
from penstock.bench.slo import parse_slo
from penstock.cli.main import main as penstock
from penstock.plan.calibration import shipped
from penstock.plan.cut import Cut
from penstock.plan.document import Request, document
from penstock.plan.engines import Load, engine
from penstock.plan.hardware import Target
from penstock.plan.here import here
from penstock.plan.planning import MEASURED, WAITING
from penstock.plan.profile import measure
from penstock.plan.search import Goal, Question, Speed, search
from penstock.plan.subject import read_subject
from penstock.plan.virtual import poisson
from support import servers

LOADS = (
    (64, 64, 6.0),
    (128, 256, 1.5),
    (256, 128, 1.0),
    (256, 128, 2.5),
    (512, 64, 1.5),
    (1024, 128, 0.5),
)
"""Tokens of prompts and answers, requests a second."""
KEYS = ("median_tpot_ms", "p99_tpot_ms", "median_ttft_ms", "p99_ttft_ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=40)
    parsed = parser.parse_args()
    subject, target, rules = read_subject(parsed.model), Target(here(), 1), engine("penstock")
    profile = measure(subject)
    print("decode ms", [(n, round(s * 1e3, 2)) for n, s in profile.decodes])
    print("chunk ms", [(n, round(s * 1e3, 2)) for n, s in profile.chunks])
    speed = Speed(shipped()[0], MEASURED, "measured here", profile=profile, waiting=WAITING)
    with (
        tempfile.TemporaryDirectory() as scratch,
        servers.Server(
            ["serve", parsed.model, "--no-enable-prefix-caching"], (), Path(scratch) / "log"
        ) as server,
    ):
        for isl, osl, rate in LOADS:
            arrivals = tuple(poisson(rate, parsed.requests, isl, osl))
            goal = Goal(arrivals, (parse_slo("slo", "p99_ttft_ms:100000"),))
            workload = {"isl": isl, "osl": osl, "rate": rate, "requests": parsed.requests}
            asked = Request(
                subject, target, "here", rules, "bf16", goal, speed, None, {**workload, "seed": 0}
            )
            load, cuts = Load(256, 64), [Cut(1, 1)]
            found = search(Question(subject, target, rules, load, goal, speed, cuts=cuts))
            plan = document(asked, found)
            path = Path(scratch) / "plan.yaml"
            path.write_text(yaml.safe_dump(plan))
            out = ["--save-result", "--result-dir", scratch, "--result-filename", "r.json"]
            penstock(["bench", "plan", str(path), "--base-url", server.url, "--disable-tqdm", *out])
            measured = json.loads((Path(scratch) / "r.json").read_text())
            row = {key: (plan["predictions"][key]["mid"], round(measured[key], 2)) for key in KEYS}
            print(json.dumps({"load": [isl, osl, rate], **row}), flush=True)


if __name__ == "__main__":
    main()
