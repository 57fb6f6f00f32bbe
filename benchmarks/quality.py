"""How far the next token's distribution is from float32 of the same weights.

    python benchmarks/quality.py REFERENCE.json [--server llama-q4_0 llama-q4_1 vllm]

REFERENCE.json is from quality_reference.py. Penstock computes in this process (`penstock.LLM`);
servers are started as by `penstock bench compare`, one after the other. Each gets the reference's
token ids; for each position the script reads the log-probability of the text's token and of the ten
tokens that are likeliest in float32. Penstock and vLLM give them for a whole prompt, llama.cpp for
one token after each prefix.

Results: perplexity of the text; Kullback-Leibler divergence from the reference, in nats, of the ten
tokens and all others as one (a lower bound of the whole divergence); how often the likeliest token
is the same. A token that is not among those that a server names has the least of their
log-probabilities, which is too high; their share is in the result.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.facts import fact_lines, gather, parser, shown, stem, table, write
from support.servers import HERE

from penstock import LLM, SamplingParams, __version__
from penstock_lab.bench.compare.recipe import Values, find_recipe
from penstock_lab.bench.compare.server_under_test import ServerUnderTest, port_of
from penstock_lab.bench.compare.servers import Entry, parse_servers
from penstock_lab.bench.target import Address

RECIPES = Path(__file__).resolve().parent / "peers/recipes"
NAMED = 20
"""Alternatives that Penstock and vLLM give for a token of the prompt."""
LLAMA_NAMED = 1000
PATIENCE_S = 600.0
Distribution = Mapping[int, float]
"""Log-probabilities by token id."""


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of text, and its next tokens in float32."""

    ids: Sequence[int]
    actual: Sequence[float]
    """Log-probability of each token but the first."""
    likeliest: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]


@dataclass(slots=True)
class Sums:
    """Results of the positions so far."""

    positions: int = 0
    surprise: float = 0.0
    divergences: list[float] = field(default_factory=list)
    same: int = 0
    wanted: int = 0
    missing: int = 0

    def add(self, window: Window, at: int, found: Distribution) -> None:
        """Add position `at` of `window`: the distribution of token `at` + 1."""
        least = min(found.values())

        def logprob(token: int) -> float:
            self.wanted += 1
            self.missing += token not in found
            return found.get(token, least)

        mine = [logprob(token) for token in window.likeliest[at]]
        self.positions += 1
        self.surprise -= logprob(window.ids[at + 1])
        self.same += max(found, key=lambda token: found[token]) == window.likeliest[at][0]
        self.divergences.append(divergence(window.logprobs[at], mine))


def divergence(reference: Sequence[float], found: Sequence[float]) -> float:
    """Kullback-Leibler divergence in nats of some outcomes, and of all others as one, from their
    log-probabilities.
    """
    p, q = [math.exp(each) for each in reference], [math.exp(each) for each in found]
    named = sum(each * (a - b) for each, a, b in zip(p, reference, found, strict=True))
    rest, other = max(1.0 - sum(p), 1e-12), max(1.0 - sum(q), 1e-12)
    return named + rest * math.log(rest / other)


def fetch(url: str, path: str, body: Mapping[str, object] | None = None) -> Any:
    """The JSON answer of a server, which may compute for minutes."""
    return json.loads(Address(url).ask(path, body, timeout=PATIENCE_S))


def in_process(model: str, windows: Sequence[Window]) -> Iterator[Iterator[Distribution]]:
    """Distributions of Penstock in this process, by window."""
    llm = LLM(model)
    params = SamplingParams(max_tokens=1, prompt_logprobs=NAMED)
    try:
        for window in windows:
            [answer] = llm.generate([list(window.ids)], params, use_tqdm=False)
            found = (answer.prompt_logprobs or [])[1:]
            yield ({token: one.logprob for token, one in (each or {}).items()} for each in found)
    finally:
        llm.close()


def of_prompt(url: str, model: str, window: Window) -> Iterator[Distribution]:
    """Distributions from an echo of the prompt, as Penstock and vLLM give it."""
    body = {
        "model": model,
        "prompt": list(window.ids),
        "max_tokens": 1,
        "echo": True,
        "logprobs": NAMED,
        "return_tokens_as_token_ids": True,
    }
    found = fetch(url, "/v1/completions", body)["choices"][0]["logprobs"]
    each = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
    for token, logprob, top in list(each)[1 : len(window.ids)]:
        named = {**top, token: logprob}
        yield {int(name.removeprefix("token_id:")): value for name, value in named.items()}


def of_prefixes(url: str, window: Window) -> Iterator[Distribution]:
    """Distributions after each prefix, as llama.cpp gives them. Its prefix cache computes each
    token once.
    """
    for end in range(1, len(window.ids)):
        body = {
            "prompt": list(window.ids[:end]),
            "n_predict": 1,
            "n_probs": LLAMA_NAMED,
            "cache_prompt": True,
            "temperature": 0.0,
        }
        first = fetch(url, "/completion", body)["completion_probabilities"][0]
        yield {each["id"]: each["logprob"] for each in first["top_logprobs"]}


def elsewhere(
    server: ServerUnderTest, windows: Sequence[Window]
) -> Iterator[Iterator[Distribution]]:
    """Distributions of a server, by window."""
    is_llama = server.name.startswith("llama")
    url = server.url
    model = "" if is_llama else str(fetch(url, "/v1/models")["data"][0]["id"])
    for window in windows:
        yield of_prefixes(url, window) if is_llama else of_prompt(url, model, window)


def measured(
    name: str, windows: Sequence[Window], found: Iterator[Iterator[Distribution]]
) -> dict[str, Any]:
    sums = Sums()
    for number, (window, distributions) in enumerate(zip(windows, found, strict=True), 1):
        for at, each in enumerate(distributions):
            sums.add(window, at, each)
        print(f"{name}: window {number} of {len(windows)}", flush=True)
    return {
        "perplexity": math.exp(sums.surprise / sums.positions),
        "divergence_mean": statistics.fmean(sums.divergences),
        "divergence_p99": statistics.quantiles(sums.divergences, n=100)[-1],
        "same_likeliest": sums.same / sums.positions,
        "positions": sums.positions,
        "missing_share": sums.missing / sums.wanted,
    }


def started(entry: Entry, model: str, peers: Path, logs: Path) -> ServerUnderTest:
    here = entry.recipe.here if entry.recipe else Path()
    cpus = sorted(os.sched_getaffinity(0))
    values = Values(port_of(entry), cpus, model, peers, list(HERE), here)
    server = ServerUnderTest(entry, values, logs)
    server.start(PATIENCE_S)
    return server


def main() -> None:
    made = parser(__doc__)
    made.add_argument("reference", type=Path)
    made.add_argument("--server", nargs="+", default=[], help="as of bench compare")
    made.add_argument("--windows", type=int, help="default: all of the reference")
    parsed = made.parse_args()
    peers = parsed.peers.expanduser()
    reference = json.loads(parsed.reference.read_text())
    members = ("ids", "actual", "likeliest", "logprobs")
    windows = [
        Window(**{name: row[name] for name in members})
        for row in reference["windows"][: parsed.windows]
    ]
    exact = math.exp(-statistics.fmean(each for window in windows for each in window.actual))
    own = {"version": __version__, "note": find_recipe("penstock", RECIPES).note}
    found = measured("penstock", windows, in_process(parsed.model, windows))
    results: dict[str, Any] = {"penstock": {**found, **own}}
    with tempfile.TemporaryDirectory() as logs:
        for entry in parse_servers(parsed.server, (), (), RECIPES):
            server = started(entry, parsed.model, peers, Path(logs))
            try:
                found = measured(server.name, windows, elsewhere(server, windows))
                facts = server.facts()
                results[server.name] = {**found, **facts, "command": shown(facts["command"])}
            finally:
                server.end()
    facts = gather(peers, (), sys.argv)
    about = {name: reference[name] for name in ("model", "text", "text_sha256", "versions")}
    write(
        stem("quality", parsed.results),
        report(facts, about, exact, results),
        {"facts": facts, "reference": {**about, "perplexity": exact}, "servers": results},
    )


def report(
    facts: Mapping[str, Any],
    about: Mapping[str, Any],
    exact: float,
    results: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    rows = [("transformers, float32", f"{exact:.3f}", "0", "0", "100 %")]
    rows += [
        (
            f"{name}: {found['note']}",
            f"{'≥ ' if found['missing_share'] else ''}{found['perplexity']:.3f}",
            f"{found['divergence_mean']:.5f}",
            f"{found['divergence_p99']:.4f}",
            f"{found['same_likeliest'] * 100:.1f} %",
        )
        for name, found in results.items()
    ]
    positions = next(iter(results.values()))["positions"]
    versions = ", ".join(f"{name} {found['version']}" for name, found in results.items())
    missing = max(found["missing_share"] for found in results.values())
    reference = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    text = f"{positions:,} positions of {about['text']}, SHA-256 {about['text_sha256'][:12]}..."
    bound = f"at most {missing:.2%} of the values; the perplexity is then a lower bound (≥)"
    columns = ("server", "perplexity", "KL mean, nats", "KL P99", "same likeliest token")
    return [
        "# Quality: the next token's distribution beside float32 of the same weights",
        "",
        *fact_lines(facts),
        f"* servers: {versions}",
        f"* reference: {about['model']} in float32 ({reference}); {text}",
        "* KL: of the ten likeliest tokens and all others as one",
        f"* a token that a server does not name has its least named log-probability: {bound}",
        "",
        *table(columns, rows),
    ]


if __name__ == "__main__":
    main()
