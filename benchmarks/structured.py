"""Cost of structured output: step time with and without a JSON schema, mask times and waits.

    python benchmarks/structured.py [--model smollm2] [--tokens 160] [--repeats 5]
        [--concurrency 1 4 16]

Requests with and without a schema alternate on one server. They have the same prompt and length;
those without a schema ignore end tokens. All requests of a batch run at once and get a token in
each step, so a stream's time per token is the time of a step. Mask times come from replaying the
same outputs without a model; wait times come from the server.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from support import facts
from support.servers import Server

from penstock._native import Tokenizer
from penstock.model.locate import locate

PATIENCE_S = 300.0
RECORD = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string", "maxLength": 40},
        "email": {"type": "string", "format": "email"},
        "kind": {"enum": ["customer", "supplier", "partner"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
    },
    "required": ["id", "name", "email", "kind", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": RECORD, "minItems": 400}
PROMPT = "A list of records of customers, suppliers and partners in JSON:\n"


def complete(url: str, tokens: int, seed: int, schema: bool) -> tuple[float, list[int]]:
    """Seconds per token after the first, and the tokens."""
    kind: dict[str, Any] = {"guided_json": SCHEMA} if schema else {"ignore_eos": True}
    body = {
        "prompt": PROMPT,
        "max_tokens": tokens,
        "temperature": 0.8,
        "seed": seed,
        "stream": True,
        "return_token_ids": True,
        **kind,
    }
    ids: list[int] = []
    began = ended = 0.0
    with (
        httpx.Client(timeout=PATIENCE_S, trust_env=False) as client,
        client.stream("POST", f"{url}/v1/completions", json=body) as answer,
    ):
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(answer.read().decode())
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                got = json.loads(line[6:])["choices"][0].get("token_ids") or []
                ended = time.perf_counter()
                began = began or ended
                ids += got
    if len(ids) != tokens:
        raise RuntimeError(f"{len(ids)} tokens instead of {tokens}")
    return (ended - began) / (len(ids) - 1), ids


def measure(url: str, concurrency: int, tokens: int, seed: int, schema: bool) -> Any:
    with ThreadPoolExecutor(concurrency) as pool:
        seeds = range(seed, seed + concurrency)
        return list(pool.map(lambda each: complete(url, tokens, each, schema), seeds))


def counted(url: str) -> dict[str, float]:
    """The server's grammar counters."""
    page = httpx.get(f"{url}/metrics", timeout=PATIENCE_S, trust_env=False).text
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if ":grammar_mask" in line)
    return {name.split("{")[0]: float(value) for name, value in lines if name[0] != "#"}


def points(url: str, parsed: Any) -> Iterator[dict[str, Any]]:
    """Both kinds of requests, alternating. The first round is a warm-up."""
    for concurrency in parsed.concurrency:
        kept: dict[bool, list[float]] = {False: [], True: []}
        outputs: list[list[int]] = []
        for repeat in range(parsed.repeats + 1):
            for schema in (False, True) if repeat % 2 else (True, False):
                found = measure(url, concurrency, parsed.tokens, 100 * repeat, schema)
                if repeat:
                    kept[schema].append(statistics.median(each[0] for each in found))
                if schema and repeat:
                    outputs += [ids for _, ids in found]
        yield {
            "concurrency": concurrency,
            "plain_ms": [1e3 * each for each in kept[False]],
            "schema_ms": [1e3 * each for each in kept[True]],
            "outputs": outputs,
        }


def masks(model: Path, outputs: list[list[int]]) -> dict[str, float]:
    """Microseconds of masks; milliseconds to compile the schema, and the vocabulary."""
    tokenizer = Tokenizer(str(model))
    began = time.perf_counter()
    tokenizer.grammar("regex", "a")
    built = time.perf_counter()
    grammar = tokenizer.grammar("json", json.dumps(SCHEMA))
    compiled = time.perf_counter()
    seconds = sorted(each for ids in outputs for each in grammar.follow(ids)[2])
    return {
        "vocabulary_ms": 1e3 * (built - began),
        "compile_ms": 1e3 * (compiled - built),
        "masks": len(seconds),
        "mask_us_mean": 1e6 * statistics.fmean(seconds),
        "mask_us_p50": 1e6 * seconds[len(seconds) // 2],
        "mask_us_p99": 1e6 * seconds[len(seconds) * 99 // 100],
        "mask_us_max": 1e6 * seconds[-1],
    }


def report(result: dict[str, Any]) -> str:
    lines = [
        "# Structured output: time per token with and without a JSON schema",
        "",
        f"{result['date']}, commit {result['commit']}. `{result['command']}`",
        f"{result['processor']}.",
        "",
        "| at once | step without, ms | with, ms | difference |",
        "|--:|--:|--:|--:|",
    ]
    for point in result["points"]:
        plain, schema = (statistics.median(point[f"{kind}_ms"]) for kind in ("plain", "schema"))
        lines.append(
            f"| {point['concurrency']} | {plain:.2f} | {schema:.2f} "
            f"| {100 * (schema / plain - 1):+.1f}% |"
        )
    found, rounds = result["masks"], len(result["points"][0]["plain_ms"])
    masks, computing, waiting = (
        result["counters"][f"penstock:grammar_mask{name}_total"]
        for name in ("s", "_seconds", "_wait_seconds")
    )
    lines += [
        "",
        (
            f"Medians of {rounds} rounds in turns. Of {found['masks']} masks: mean "
            f"{found['mask_us_mean']:.0f} us, median {found['mask_us_p50']:.0f}, p99 "
            f"{found['mask_us_p99']:.0f}, largest {found['mask_us_max']:.0f}."
        ),
        (
            f"The schema compiles in {found['compile_ms']:.1f} ms, the vocabulary, once, in "
            f"{found['vocabulary_ms']:.0f} ms."
        ),
    ]
    lines.append(
        f"The server computed {masks:.0f} masks, beside the steps, in {1e6 * computing / masks:.0f}"
        f" us each; a row waited {1e6 * waiting / masks:.0f} us on average, compiling included."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parsed = parser.parse_args()
    model = locate(parsed.model).path
    with TemporaryDirectory() as directory:
        words = ["serve", str(model), "--max-num-seqs", str(max(parsed.concurrency))]
        with Server(words, (), Path(directory) / "log") as server:
            found = list(points(server.url, parsed))
            counters = counted(server.url)
    outputs = [ids for point in found for ids in point.pop("outputs")]
    result = {**facts.gather(parsed.peers, (), sys.argv), "points": found}
    result["counters"] = counters
    result["masks"] = masks(model, outputs)
    text = report(result)
    print(text)
    stem = parsed.results / f"structured-{result['date'][:10]}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
