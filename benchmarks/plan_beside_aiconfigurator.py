"""`penstock plan` beside AIConfigurator 0.12: what fits, what to choose, speed, and planning time.

    benchmarks/peers/install_aiconfigurator.sh
    python benchmarks/plan_beside_aiconfigurator.py [--out benchmarks/results]

Neither runs a model. The choices of both are replayed on the same Poisson arrivals in virtual time,
with step times of our model, and with step times scaled to AIConfigurator's prediction for its
choice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

from plan_fit import fitted

from penstock_lab.bench.slo import parse_slo
from penstock_ops.plan.arrivals import poisson
from penstock_ops.plan.calibration import Row, read_rows, shipped
from penstock_ops.plan.catalogue import entries
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Load, engine
from penstock_ops.plan.hardware import parse_target
from penstock_ops.plan.search import (
    Candidate,
    Goal,
    Question,
    Speed,
    candidates,
    search,
    simulate,
    statistic,
)
from penstock_ops.plan.speed import StepModel
from penstock_ops.plan.subject import Subject, read_subject

PEERS = Path(os.environ.get("PEERS_DIR", Path.home() / ".cache/peers"))
ASK = Path(__file__).parent / "peers/aiconfigurator_ask.py"
SYSTEMS = {
    "h100-sxm-80gb": "h100_sxm",
    "h200-sxm-141gb": "h200_sxm",
    "b200-sxm-180gb": "b200_sxm",
    "b300-sxm-268gb": "b300_sxm",
}
CHECKPOINTS = {
    ("DeepSeek-R1", "fp8"): "deepseek-ai/DeepSeek-R1",
    ("DeepSeek-R1", "nvfp4"): "nvidia/DeepSeek-V3.1-NVFP4",
    ("Kimi-K2.5", "nvfp4"): "nvidia/Kimi-K2.5-NVFP4",
    ("MiniMax-M2.5", "fp8"): "MiniMaxAI/MiniMax-M2.5",
    ("Qwen3.5-397B-A17B", "fp8"): "Qwen/Qwen3.5-397B-A17B",
    ("Qwen3-235B-A22B", "fp8"): "Qwen/Qwen3-235B-A22B-FP8",
    ("Qwen3-32B", "fp8"): "Qwen/Qwen3-32B-FP8",
    ("Qwen3-32B", "bf16"): "Qwen/Qwen3-32B",
}
"""Checkpoints that AIConfigurator's wheel describes, by the model and the weights' number type in
the measured rows.
"""
UNQUANTISED = ("Qwen/Qwen3.5-397B-A17B",)
"""Checkpoints that the wheel describes only in bf16. Flags request fp8 for them."""
MODE = "HYBRID"
"""AIConfigurator's mode for estimates, which it recommends for models that are newer than its
tables.
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """A load for which both tools choose a deployment. Latency bounds apply to the P99 here, and to
    the mean in AIConfigurator.
    """

    model: str
    weights: str | None
    on: str
    engine: str
    rate: float
    isl: int = 2000
    osl: int = 500
    ttft: int = 2000
    tpot: int = 50


CHOICES = (
    Choice("Qwen/Qwen3-32B", None, "h100-sxm-80gb:64", "vllm", 4),
    Choice("Qwen/Qwen3-32B", None, "h100-sxm-80gb:64", "vllm", 8),
    Choice("meta-llama/Meta-Llama-3.1-70B", None, "h100-sxm-80gb:64", "vllm", 4),
    Choice("Qwen/Qwen3-235B-A22B-FP8", "fp8", "h200-sxm-141gb:64", "sglang", 8),
    Choice("openai/gpt-oss-120b", None, "h100-sxm-80gb:64", "vllm", 16),
    Choice("deepseek-ai/DeepSeek-R1", "fp8", "h200-sxm-141gb:64", "sglang", 4),
)
FITS = (
    ("meta-llama/Meta-Llama-3.1-405B", None, 16, 8192),
    ("deepseek-ai/DeepSeek-R1", "fp8", 16, 8192),
    ("deepseek-ai/DeepSeek-R1", "fp8", 8, 8192),
    ("Qwen/Qwen3-235B-A22B", None, 8, 8192),
    ("meta-llama/Meta-Llama-3.1-70B", None, 2, 8192),
    ("openai/gpt-oss-120b", None, 1, 8192),
    ("Qwen/Qwen3-32B", None, 1, 8192),
)
"""Cases to check for fit with vLLM on H100: (model, weights' number type, ranks, context of one
sequence).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parsed = parser.parse_args()
    rows, configs = read_rows(), _configs()
    questions = [_estimate(row) for row in rows]
    questions += [_fits(*each) for each in FITS] + [_recommend(each) for each in CHOICES]
    reply = ask(questions)
    answers = reply["answers"]
    at = len(rows), len(rows) + len(FITS)
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": reply["versions"],
        "commands": [
            "benchmarks/peers/install_aiconfigurator.sh",
            "python benchmarks/plan_beside_aiconfigurator.py",
        ],
        "prediction": _predictions(rows, answers[: at[0]]),
        "fit": [
            _fit(each, reply, configs)
            for each, reply in zip(FITS, answers[at[0] : at[1]], strict=True)
        ],
        "choice": [
            _choice(each, reply, configs)
            for each, reply in zip(CHOICES, answers[at[1] :], strict=True)
        ],
    }
    stem = parsed.out / f"plan-beside-aiconfigurator-{found['date']}"
    stem.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    stem.with_suffix(".md").write_text(report(found))
    print(report(found))


def ask(questions: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask AIConfigurator all questions in one process; returns its output."""
    done = subprocess.run(
        [str(PEERS / "aiconfigurator/bin/python"), str(ASK)],
        input=json.dumps(questions),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=1800,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _estimate(row: Row) -> dict[str, Any]:
    path = CHECKPOINTS[row.model, row.weights]
    forced = {"gemm_quant_mode": "fp8_block", "moe_quant_mode": "fp8_block"}
    return {
        "ask": "estimate",
        "model_path": path,
        "system_name": SYSTEMS[row.accelerator],
        "backend_name": row.engine,
        "database_mode": MODE,
        "isl": row.isl,
        "osl": row.osl,
        "batch_size": row.concurrency,
        "tp_size": row.tp,
        **(forced if path in UNQUANTISED else {}),
    }


def _fits(model: str, weights: str | None, ranks: int, context: int) -> dict[str, Any]:
    return {
        "ask": "estimate",
        "model_path": model,
        "system_name": "h100_sxm",
        "backend_name": "vllm",
        "database_mode": MODE,
        "isl": context - 256,
        "osl": 256,
        "batch_size": 1,
        "tp_size": ranks,
    }


def _recommend(choice: Choice) -> dict[str, Any]:
    return {
        "ask": "recommend",
        "model_path": choice.model,
        "system": SYSTEMS[choice.on.partition(":")[0]],
        "backend": choice.engine,
        "isl": choice.isl,
        "osl": choice.osl,
        "ttft": choice.ttft,
        "tpot": choice.tpot,
        "target_request_rate": choice.rate,
    }


def _configs() -> dict[str, dict[str, Any]]:
    """The keys that sizes depend on, without quantization: a flag sets the type of the weights."""
    return {
        name: {key: value for key, value in entry.config.items() if key != "quantization_config"}
        for name, entry in entries().items()
    }


def _subject(model: str, weights: str | None, configs: dict[str, dict[str, Any]]) -> Subject:
    """The model to plan for, from the keys of its config.json alone."""
    name = model.removesuffix("-FP8")
    directory = Path("build/plan-beside") / name.rpartition("/")[2]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(configs[name]))
    kind = weights or ("mxfp4" if "gpt-oss" in name else None)
    return read_subject(str(directory), kind)


def _predictions(rows: list[Row], answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows with the TPOT that both tools predict, beside the measured one. Penstock's constants are
    fitted without the rows of the same model.
    """
    ratios = dict(fitted(rows)[2])
    band = shipped()[1]
    lines = []
    for row, answer in zip(rows, answers, strict=True):
        lines.append(
            {
                "row": f"{row.model} {row.weights} {row.accelerator} {row.engine} TP{row.tp} "
                f"x{row.concurrency} {row.isl}/{row.osl}",
                "measured": {"tpot": row.tpot_ms, "ttft": row.ttft_ms},
                "penstock": {"tpot": round(row.tpot_ms / ratios[row], 2)},
                "within_band": band.low <= ratios[row] <= band.high,
                "aiconfigurator": {
                    key: round(answer[key], 2) for key in ("tpot", "ttft") if answer.get(key)
                },
                "error": answer.get("error", ""),
            }
        )
    both = [line for line in lines if "tpot" in line["aiconfigurator"]]
    return {
        "rows": lines,
        "mean_error": {
            "penstock_tpot": _error(lines, "penstock", "tpot"),
            "penstock_tpot_same_rows": _error(both, "penstock", "tpot"),
            "aiconfigurator_tpot": _error(both, "aiconfigurator", "tpot"),
            "aiconfigurator_ttft": _error(both, "aiconfigurator", "ttft"),
        },
        "answered": {"penstock": len(lines), "aiconfigurator": len(both)},
    }


def _error(lines: list[dict[str, Any]], who: str, key: str) -> float:
    errors = [abs(line[who][key] / line["measured"][key] - 1) for line in lines]
    return round(mean(errors), 3) if errors else 0.0


def _fit(
    asked: tuple[str, str | None, int, int], answer: dict[str, Any], configs: dict[str, Any]
) -> dict[str, Any]:
    model, weights, ranks, context = asked
    start = time.perf_counter()
    goal = Goal(tuple(poisson(1, 2, context - 256, 256)), ())
    subject, target = _subject(model, weights, configs), parse_target(f"h100-sxm-80gb:{ranks}")
    question = Question(subject, target, engine("vllm"), Load(8192, 256), goal, _speed())
    fitting, misfits = candidates(replace(question, cuts=[Cut(ranks, 1)]))
    rank = fitting[0].memory.fullest if fitting else None
    return {
        "question": f"{model.rpartition('/')[2]} {weights or 'as stored'} TP{ranks}, {context:,}",
        "penstock": f"{rank.weights / 2**30:.1f} GiB of weights, "
        f"{fitting[0].memory.kv_tokens:,} tokens of KV"
        if rank
        else f"does not fit: {misfits[0][1]}",
        "aiconfigurator": answer.get("error")
        or f"{answer['memory_gib']:.1f} GiB" + (f", {answer['oom']}" if answer["oom"] else ""),
        "seconds": {
            "penstock": round(time.perf_counter() - start, 3),
            "aiconfigurator": answer["seconds"],
        },
    }


def _speed() -> Speed:
    constants, band, source = shipped()
    return Speed(constants, band, source)


def _choice(choice: Choice, answer: dict[str, Any], configs: dict[str, Any]) -> dict[str, Any]:
    """The deployments that both tools choose for a load, and their simulated latencies."""
    subject = _subject(choice.model, choice.weights, configs)
    row = answer.get("rows", {}).get("agg")
    kv = "fp8" if row and row["kvcache"] == "fp8" else "bf16"
    arrivals = tuple(poisson(choice.rate, 500, choice.isl, choice.osl))
    bounds = (f"p99_ttft_ms:{choice.ttft}", f"p99_tpot_ms:{choice.tpot}")
    goal = Goal(arrivals, tuple(parse_slo("--slo", text) for text in bounds))
    question = Question(
        subject, parse_target(choice.on), engine(choice.engine), Load(0, 0), goal, _speed(), kv
    )
    start = time.perf_counter()
    own = search(question).choice
    seconds = round(time.perf_counter() - start, 2)
    scale = 1.0
    theirs = _theirs(question, row) if row else None
    if theirs and row and isinstance(theirs.model, StepModel):
        closed = theirs.model.tpot(row["bs"], choice.isl, choice.osl) * 1e3
        scale = row["tpot"] / closed
    return {
        "question": f"{choice.model.rpartition('/')[2]}, {choice.on.partition(':')[0]}, "
        f"{choice.engine}, {choice.rate:g}/s of {choice.isl}/{choice.osl}, TTFT {choice.ttft}, "
        f"TPOT {choice.tpot} ms, {kv} KV",
        "scale": round(scale, 3),
        "penstock": own
        and {
            "choice": f"{own.replicas} x {own.candidate.cut}",
            "devices": own.devices,
            "seconds": seconds,
            **_replayed(own.candidate, own.replicas, goal, scale),
        },
        "aiconfigurator": {
            "error": answer.get("error", ""),
            "choice": row and f"{row['replicas_needed']} x {row['parallel']}, batch {row['bs']}",
            "experiment": answer.get("experiment"),
            "all_devices": {
                name: each.get("total_gpus_needed") for name, each in answer.get("rows", {}).items()
            },
            "devices": row and row["total_gpus_needed"],
            "tpot": row and row["tpot"],
            "ttft": row and row["ttft"],
            "seconds": answer["seconds"],
            **(_replayed(theirs, row["replicas_needed"], goal, scale) if theirs and row else {}),
        },
    }


def _theirs(question: Question, row: dict[str, Any]) -> Candidate | None:
    """AIConfigurator's deployment as a candidate of `penstock plan`; None if the plan does not
    support it, or if it does not fit.
    """
    if "tp" not in row or (row["tp"] > 1 and row["dp"] > 1):
        return None
    cut = Cut(row["tp"] * row["dp"], row["pp"], row["moe_ep"] > 1, row["dp"] > 1)
    load = Load(max(int(row["num_tokens"]), 2048), int(row["bs"]) * row["dp"])
    found, _ = candidates(replace(question, cuts=[cut], load=load))
    return found[0] if found else None


def _replayed(candidate: Candidate, replicas: int, goal: Goal, scale: float) -> dict[str, Any]:
    """Simulated P99 latencies, with step times at the middle and at the slow end of Penstock's
    error band, and scaled by `scale` to AIConfigurator's prediction.
    """
    ends = {"mid": 1.0, "high": _speed().band.high, "aiconfigurator": scale}
    outcomes = {name: simulate(candidate, replicas, goal, factor) for name, factor in ends.items()}
    return {
        name: {key: round(statistic(outcome, key)) for key in ("p99_ttft_ms", "p99_tpot_ms")}
        for name, outcome in outcomes.items()
    }


def report(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    replayed = (
        "P99 TTFT / P99 TPOT in ms, with steps in the middle of our band, at its pessimistic end, "
        "and scaled to AIConfigurator's prediction for its choice. TTFT is a lower bound: steps."
    )
    errors, answered = found["prediction"]["mean_error"], found["prediction"]["answered"]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    mean_errors = (
        f"Mean error of TPOT: penstock {errors['penstock_tpot']:.1%} ({answered['penstock']} rows; "
        f"{errors['penstock_tpot_same_rows']:.1%} on the {answered['aiconfigurator']} that both "
        f"answer), AIConfigurator {errors['aiconfigurator_tpot']:.1%}. Of TTFT: AIConfigurator "
        f"{errors['aiconfigurator_ttft']:.1%}; penstock prints it as unknown."
    )
    lines = [
        "# penstock plan beside AIConfigurator",
        "",
        f"{found['date']}, {versions}, mode {MODE}. No model runs: both predict. Commands:",
        "",
        *(f"    {command}" for command in found["commands"]),
        "",
        "## Prediction, against published measurements",
        "",
        "Time per output token in ms; ours with every row of the model left out of the fit.",
        "",
        "| measured row | measured | penstock | AIConfigurator | TTFT measured | AIConfigurator |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for line in found["prediction"]["rows"]:
        theirs = line["aiconfigurator"]
        lines.append(
            f"| {line['row']} | {line['measured']['tpot']} | {line['penstock']['tpot']} | "
            f"{theirs.get('tpot', '-')} | {line['measured']['ttft']} | {theirs.get('ttft', '-')} |"
        )
    lines += [
        "",
        mean_errors,
        "",
        "## What fits on H100, one sequence",
        "",
        "| question | penstock | AIConfigurator | seconds |",
        "|---|---|---|--:|",
        *(
            f"| {each['question']} | {each['penstock']} | {each['aiconfigurator']} | "
            f"{each['seconds']['penstock']:g} / {each['seconds']['aiconfigurator']:g} |"
            for each in found["fit"]
        ),
        "",
        "## Choice, replayed with Poisson arrivals",
        "",
        replayed,
        "",
        "| question | | choice | devices | mid | high | its own steps | seconds |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for each in found["choice"]:
        for name in ("penstock", "aiconfigurator"):
            lines.append(_choice_line(each, name))
    return "\n".join(lines) + "\n"


def _choice_line(each: dict[str, Any], name: str) -> str:
    side = each[name] or {"choice": "nothing holds", "devices": "-", "seconds": "-"}
    cells = [
        f"{side[end]['p99_ttft_ms']} / {side[end]['p99_tpot_ms']}" if end in side else "-"
        for end in ("mid", "high", "aiconfigurator")
    ]
    what = side.get("error") or side["choice"]
    return (
        f"| {each['question'] if name == 'penstock' else ''} | {name} | {what} | "
        f"{side['devices']} | {' | '.join(cells)} | {side['seconds']} |"
    )


if __name__ == "__main__":
    sys.exit(main())
