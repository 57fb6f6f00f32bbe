"""Questions for AIConfigurator as JSON on stdin, its answers as JSON on stdout.

Runs in AIConfigurator's Python environment, for `benchmarks/plan_beside_aiconfigurator.py`. A
question is `{"ask": "estimate" | "recommend", ...}` with the arguments of the function of this
name.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any


def estimate(question: dict[str, Any]) -> dict[str, Any]:
    """AIConfigurator's estimate: milliseconds, GiB for each device, and the reason if the model
    does not fit. Experts are split by columns, or if AIConfigurator has no data for that, each is
    on one device as a whole.
    """
    from aiconfigurator.cli.api import cli_estimate

    ranks = question["tp_size"]
    forms = ({}, {"moe_tp_size": ranks, "moe_ep_size": 1}, {"moe_tp_size": 1, "moe_ep_size": ranks})
    failed = ""
    for form in forms:
        try:
            found = cli_estimate(**question, **form)
        except Exception as error:  # noqa: BLE001 - the next form may work
            failed = f"{type(error).__name__}: {error}"[:200]
        else:
            return {
                "ttft": found.ttft,
                "tpot": found.tpot,
                "memory_gib": found.memory,
                "oom": found.get().get("oom") or found.kv_cache_warning,
                "experts": form,
            }
    return {"error": failed}


def recommend(question: dict[str, Any]) -> dict[str, Any]:
    """AIConfigurator's recommendation: the chosen experiment, and the first row of each."""
    from aiconfigurator.cli.api import cli_recommend

    found = cli_recommend(**question)
    rows = {
        name: json.loads(each.iloc[0].to_json())
        for name, each in found.best_configs.items()
        if len(each)
    }
    return {"experiment": found.chosen_exp, "rows": rows}


ASK: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "estimate": estimate,
    "recommend": recommend,
}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The answer to one question, or the error, with the seconds that it took."""
    ask = ASK[question.pop("ask")]
    start = time.perf_counter()
    try:
        found = ask(question)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - its errors are answers
        found = {"error": f"{type(error).__name__}: {error}"[:300]}
    return {**found, "seconds": round(time.perf_counter() - start, 2)}


def main() -> None:
    questions = json.load(sys.stdin)
    out = os.dup(1)
    os.dup2(2, 1)  # AIConfigurator prints tables to stdout.
    answers = [answer(question) for question in questions]
    names = ("aiconfigurator", "aiconfigurator-core")
    versions = {name: version(name) for name in names}
    os.write(out, json.dumps({"versions": versions, "answers": answers}).encode())


if __name__ == "__main__":
    main()
