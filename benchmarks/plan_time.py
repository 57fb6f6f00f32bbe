"""Time of a plan: DeepSeek-R1 (671B, fp8) on 64 H100, for each engine.

    python benchmarks/plan_time.py [--runs 3]

Prints the seconds from the model's config.json to the choice (median and maximum of the runs), and
the number of simulated deployments. The search caches nothing between runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from penstock_lab.bench.slo import parse_slo
from penstock_ops.plan.arrivals import poisson
from penstock_ops.plan.calibration import shipped
from penstock_ops.plan.catalogue import entries
from penstock_ops.plan.engines import ENGINES, Load, engine
from penstock_ops.plan.hardware import parse_target
from penstock_ops.plan.search import Goal, Question, SearchResult, Speed, search
from penstock_ops.plan.subject import read_subject

MODEL, ON = "deepseek-ai/DeepSeek-R1", "dell-xe9680-h100:8"
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
LOADS = {
    "moderate": (2.0, ("p99_ttft_ms:2000", "p99_tpot_ms:50")),
    "heavy": (8.0, ("p99_ttft_ms:2000", "p99_tpot_ms:50")),
    "nothing holds": (2.0, ("p99_tpot_ms:5",)),
}
"""(requests per second, latency bounds) by name of the load."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        directory = written(Path(folder))
        for name in ENGINES:
            for load in LOADS:
                timed = [once(directory, name, load) for _ in range(runs)]
                seconds, used = (sorted(each[at] for each in timed) for at in (0, 1))
                found = timed[0][2]
                print(
                    f"{name:9}{load:15}{median(seconds):6.2f} s, slowest {seconds[-1]:.2f} s, "
                    f"{median(used):.2f} s of a processor; "
                    f"{found.simulated} simulated, {chosen(found)}",
                    flush=True,
                )


def written(folder: Path) -> Path:
    config = entries()[MODEL].config
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": FP8}))
    return folder


def once(directory: Path, name: str, load: str) -> tuple[float, float, SearchResult]:
    """Plan once; returns wall seconds, CPU seconds, and the result of the search."""
    rate, bounds = LOADS[load]
    began, used = time.perf_counter(), time.process_time()
    subject = read_subject(str(directory))
    goal = Goal(
        tuple(poisson(rate, 500, 2000, 500)), tuple(parse_slo("--slo", text) for text in bounds)
    )
    question = Question(
        subject, parse_target(ON), engine(name), Load(chunk=0, sequences=0), goal, Speed(*shipped())
    )
    found = search(question)
    return time.perf_counter() - began, time.process_time() - used, found


def chosen(found: SearchResult) -> str:
    choice = found.choice
    return f"{choice.replicas} x {choice.candidate.cut}" if choice else "nothing holds"


if __name__ == "__main__":
    sys.exit(main())
