"""A plan with a goal as text: the verdict, memory, latencies, and what else was tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock_ops.plan.bars import bars
from penstock_ops.plan.cut import deployed
from penstock_ops.plan.document import STATISTICS, UNKNOWN, Request
from penstock_ops.plan.fitting import Remedy
from penstock_ops.plan.lines import columns, human
from penstock_ops.plan.memory import Memory
from penstock_ops.plan.offers import Offer
from penstock_ops.plan.search import SPEED, spoken
from penstock_ops.plan.verdict import place, suggestions

MOST_OTHERS = 5


def summary(
    plan: Mapping[str, Any], request: Request, memory: Memory, offered: Sequence[Offer], marks: str
) -> list[str]:
    """Lines about the plan, the verdict first. `memory` is the memory of the chosen deployment,
    `marks` are the characters of bars.
    """
    return [
        _verdict(plan, request),
        "",
        *bars(memory, marks),
        "",
        *_serving(plan, request),
        "",
        *_latencies(plan, request),
        "",
        *_others(plan),
        *suggestions("fewer devices:", as_remedies(offered)),
    ]


def as_remedies(offered: Sequence[Offer]) -> list[Remedy]:
    return [
        Remedy(
            each.change,
            each.trial.candidate.cut,
            each.trial.devices,
            each.caveat,
            each.trial.replicas,
        )
        for each in offered
    ]


def _verdict(plan: Mapping[str, Any], request: Request) -> str:
    choice = plan["choice"]
    how = deployed(_cut(choice), choice["replicas"], choice["devices"])
    at_once = choice["max_num_seqs"] * choice["replicas"]
    predicted = "; ".join(_predicted(plan, key) for key in plan["slo"] or (SPEED,))
    text = f"Fits: {place(request.target, choice['devices'])}{f' ({how})' if how else ''}. "
    text += f"Up to {at_once:,} request{'s' if at_once > 1 else ''} at once, {predicted}."
    if choice["price_per_hour"] is not None:
        text += f" Costs {choice['price_per_hour']:g} an hour on {plan['target']['on']}."
    return text


def _predicted(plan: Mapping[str, Any], key: str) -> str:
    """A prediction with its limit. Means and similar statistics are not in the plan's
    predictions.
    """
    limit = plan["slo"].get(key)
    bound = f", limit {limit:,g}" if limit else ""
    values = plan["predictions"].get(key)
    if values is None:
        return f"{spoken(key)} within its limit of {limit:,g} ms"
    if UNKNOWN in values:
        return f"{spoken(key)} at least {_ms(values['at_least'])} ms{bound}"
    band = f"{_ms(values['low'])} to {_ms(values['high'])}"
    return f"{spoken(key)} {_ms(values['mid'])} ms ({band}){bound}"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _cut(choice: Mapping[str, Any]) -> str:
    stages = choice["pipeline_parallel_size"]
    text = f"TP{choice['tensor_parallel_size']}" + (f" x PP{stages}" if stages > 1 else "")
    text += " EP" if choice["expert_parallel"] else ""
    return text + (" DP" if choice["attention_by_requests"] else "")


def _serving(plan: Mapping[str, Any], request: Request) -> Iterator[str]:
    choice = plan["choice"]
    yield _load(plan["workload"])
    kept = [tier["kind"] for tier in choice["tiers"]]
    each = " in each replica" if choice["replicas"] > 1 else ""
    yield (
        f"steps of up to {choice['max_num_batched_tokens']:,} tokens, {choice['max_num_seqs']:,} "
        f"sequences and {choice['kv_tokens']:,} tokens of {choice['kv_cache_dtype']} KV{each}"
        f"{_behind(kept)}"
    )
    yield _context(choice["max_model_len"], request)
    if choice["memory_fraction"] is not None:
        yield _fraction(choice["memory_fraction"], plan["memory"], request)
    reused = plan["predictions"]["prompt_tokens_reused"]
    if any(reused.values()):
        yield (
            f"prompt tokens not computed: {reused['kv']:.0%} in the KV, {reused['tiers']:.0%} "
            "from tiers"
        )


def _load(workload: Mapping[str, Any]) -> str:
    if "trace" in workload:
        return f"load: {workload['requests']:,} requests of {workload['trace']}"
    return (
        f"load: {workload['rate']:g} requests/s of {workload['isl']:,} tokens in and "
        f"{workload['osl']:,} out (--isl, --osl), {workload['requests']:,} of them"
    )


def _behind(tiers: Sequence[str]) -> str:
    return f", KV in {' and '.join(tiers)} too" if tiers else ""


def _context(tokens: int, request: Request) -> str:
    own = request.subject.spec.max_position
    if request.load.context:
        why = "as --max-model-len says"
    elif tokens == own:
        why = "the model's own length"
    else:
        why = f"what the KV holds; the model's own length is {own:,}"
    return f"sequences of up to {tokens:,} tokens: {why}"


def _fraction(fraction: float, ranks: Sequence[Mapping[str, Any]], request: Request) -> str:
    why = "proposed" if request.load.fraction is None else "as --memory-fraction says"
    free = min(row["free_after_start"] for row in ranks)
    return f"memory fraction {fraction:g}: {why}; {human(free)} free after the start"


def _latencies(plan: Mapping[str, Any], request: Request) -> Iterator[str]:
    """A table in milliseconds, with the band of each prediction."""
    rows = [("ms", *(spoken(f"{kind}_x_ms").split()[0] for kind in STATISTICS))]
    for metric in ("tpot", "ttft", "e2el"):
        values = (plan["predictions"][f"{kind}_{metric}_ms"] for kind in STATISTICS)
        rows.append((metric.upper(), *map(_cell, values)))
    yield from columns(rows, left=(0,))
    if request.speed.waiting is None:
        yield "TTFT and E2EL are lower bounds: real engines are slower (--calibrate predicts them)"
    if request.speed.profile:
        yield request.speed.source


def _cell(values: Mapping[str, Any]) -> str:
    if UNKNOWN in values:
        return f"at least {_ms(values['at_least'])}"
    return f"{_ms(values['mid'])} ({_ms(values['low'])} to {_ms(values['high'])})"


def _others(plan: Mapping[str, Any]) -> Iterator[str]:
    for row in plan["runners_up"][:MOST_OTHERS]:
        head = "also fits" if row["holds"] else "too slow"
        how = f"{row['replicas']} replicas of {row['cut']}" if row["replicas"] > 1 else row["cut"]
        steps = f"{row['max_num_batched_tokens']:,}-token steps{_behind(row['tiers'])}"
        yield f"{head}: {how}, {steps}; {row['why']}"
    for row in plan["other_targets"]:
        yield f"not chosen: {row['on']}: {row['why']}"
