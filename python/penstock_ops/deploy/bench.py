"""`penstock deploy bench`: a load as a Job of the cluster that has the servers."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from penstock.core import InvalidValueError, PenstockError
from penstock_ops.deploy.kinds.bench_job import PLAN, Bench, bench_job, bench_plan
from penstock_ops.deploy.kubernetes import write
from penstock_ops.deploy.names import check_names
from penstock_ops.deploy.plan_file import read_plan
from penstock_ops.deploy.settings import MODELS, PORT, checked_name, name_of


def add_bench(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a Job that runs the plan's load against the servers of `deploy k8s`, from inside "
        "the cluster, or what --bench says. Its log has the result. Nothing is applied."
    )
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.yaml of `penstock plan -o`")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="where the files go"
    )
    parser.add_argument("--image", required=True, help="of Penstock, best with its digest")
    parser.add_argument("--name", help="of the deployment; default: from the model's")
    parser.add_argument(
        "--bench",
        default="",
        metavar="WORDS",
        help="behind `penstock bench`, quoted as for a shell; default: plan PLAN",
    )
    parser.add_argument(
        "--base-url", metavar="URL", help=f"of the servers; default: http://NAME:{PORT}"
    )
    parser.add_argument(
        "--claim", default="", metavar="NAME", help="that has the model, for its tokenizer"
    )
    parser.add_argument("--model-path", default="", metavar="PATH", help="below the claim")
    parser.add_argument("--api-key-secret", default="", metavar="SECRET", help="with key api-key")
    parser.add_argument(
        "--image-pull-secret", action="append", default=[], metavar="SECRET", help="repeatable"
    )
    parser.set_defaults(command=run_bench)


def run_bench(parsed: argparse.Namespace) -> int:
    """Write the Job and its plan; print their file names, and how to get the result."""
    check_names(parsed)
    plan = read_plan(parsed.plan)
    name = checked_name("--name", parsed.name or name_of(plan["model"]["name"]))
    if parsed.bench and parsed.base_url:
        raise PenstockError("--base-url: the words of --bench name the server")
    bench = Bench(
        name,
        parsed.image,
        parsed.plan.read_text(encoding="utf-8"),
        _given_words(parsed.bench) or _plan_words(parsed, name, str(plan["model"]["name"])),
        parsed.claim,
        parsed.api_key_secret,
        parsed.image_pull_secret,
    )
    files = {"bench-plan.yaml": bench_plan(bench), "bench-job.yaml": bench_job(bench)}
    for path in write(files, parsed.output):
        print(path)
    print(f"note: penstock deploy apply {parsed.output}; kubectl logs -f job/{bench.job}")
    return 0


def _given_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidValueError("--bench", text, f"words as for a shell ({error})") from error


def _plan_words(parsed: argparse.Namespace, name: str, model: str) -> list[str]:
    words = ["plan", str(PLAN), f"--base-url={parsed.base_url or f'http://{name}:{PORT}'}"]
    words += [f"--model={model}", "--disable-tqdm"]
    if parsed.claim:
        words.append(f"--tokenizer={f'{MODELS}/{parsed.model_path}'.rstrip('/')}")
    return words
