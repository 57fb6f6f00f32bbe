"""The verdict of a run: findings of `penstock verify`, of the start and of the load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock_ops.plan.search import spoken
from penstock_ops.up import predictions
from penstock_ops.up.causes import BUSY, Cause, cause_of
from penstock_ops.up.measures import Measures
from penstock_ops.up.predictions import METRICS, Plan, predicted
from penstock_ops.verify.finding import SEVERITY, Bound, Finding, Layer, Status, shown
from penstock_ops.verify.verdict import Verdict, verdict

SPOKEN = {
    "tpot": "time per token",
    "itl": "gap between tokens",
    "ttft": "first token",
    "e2el": "whole request",
}
MISSED = (Status.WARN, Status.FAIL)


def verdict_of(plan: Plan, findings: Sequence[Finding], measures: Measures) -> Verdict:
    """The verdict of a plan that was served: `findings` come from `penstock verify`. The
    first layer at fault explains it. A worse measurement never gives a better verdict.
    """
    return verdict([*findings, *run_findings(plan, findings, measures)])


def run_findings(plan: Plan, findings: Sequence[Finding], measures: Measures) -> Iterator[Finding]:
    yield _start(plan, findings, measures)
    if measures.start_seconds is None:
        return
    yield _requests(measures)
    yield from _circumstances(plan, measures)
    cause = cause_of(plan, findings, measures)
    for metric in METRICS:
        yield from _latency(plan, measures, metric, cause)
    yield from _throughput(plan, measures, cause)


def _start(plan: Plan, findings: Sequence[Finding], measures: Measures) -> Finding:
    slow = [each for each in findings if each.check == "storage" and each.status in MISSED]
    layer = Layer.STORAGE if slow else Layer.ENGINE
    if measures.start_seconds is None:
        return Finding(
            "start",
            layer,
            measures.node,
            "",
            Status.FAIL,
            f"the server did not start: {measures.failure}",
            cause=slow[0].summary if slow else "the last lines of its log name it",
            remedy="penstock deploy systemd, or slurm for several hosts, prints the command, to be "
            "run by hand",
        )
    return _measured(
        "start",
        measures.node,
        measures.start_seconds,
        predictions.start(plan),
        "server ready",
        Cause(
            layer,
            slow[0].summary if slow else "loading and start-up take longer than planned",
            "a faster volume for the weights, or penstock plan --storage-rate as it is",
        ),
    )


def _requests(measures: Measures) -> Finding:
    failed = sum(measures.failed.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(measures.failed.items()))
    text = f"{measures.completed} requests succeeded, {failed} failed"
    is_kept = measures.completed > 0 and failed == 0
    return Finding(
        "requests",
        Layer.ENGINE,
        measures.node,
        "",
        Status.PASS if is_kept else Status.FAIL,
        f"{text} ({kinds})" if kinds else text,
        float(failed),
        Bound(0.0, None, "failed requests", is_ceiling=True),
        cause="" if is_kept else "the server refuses or breaks off requests of the planned load",
        remedy="" if is_kept else "look at the server's log, which is kept",
    )


def _circumstances(plan: Plan, measures: Measures) -> Iterator[Finding]:
    """Findings that explain misses. Alone they only warn: a plan holds if its limits do."""
    yield from _optional(
        "preemptions",
        measures.node,
        measures.preemptions,
        Bound(None, 0.0, "preemptions", is_ceiling=True),
        "sequences that lost their KV",
        Cause(Layer.MEMORY, "the KV memory was full", "fewer sequences (--max-num-seqs), fp8 KV"),
    )
    yield from _optional(
        "queue",
        measures.node,
        measures.waiting,
        predictions.waiting(plan),
        "requests waiting, on average",
        Cause(Layer.LOAD, "requests come faster than they are served", "another replica"),
    )
    if not plan["target"]["resource"]:
        yield from _optional(
            "other-programs",
            measures.foreign_node or measures.node,
            measures.foreign_share,
            Bound(None, BUSY, "of 1", is_ceiling=True),
            "processor time of other programs",
            Cause(Layer.HOST, "the machine was shared", "stop them, or use taskset or a cpuset"),
        )


def _latency(plan: Plan, measures: Measures, metric: str, cause: Cause) -> Iterator[Finding]:
    """The statistic of a metric that is worst against its bound."""
    worst: Finding | None = None
    for key, bound in predictions.bounds(plan, metric):
        found = _statistic(plan, measures, key, bound, cause)
        if found and (worst is None or _rank(found) > _rank(worst)):
            worst = found
    if worst:
        yield worst


def _rank(finding: Finding) -> tuple[int, float]:
    return SEVERITY.index(finding.status), over(finding)


def over(finding: Finding) -> float:
    """The measured value divided by its limit, else by the expected value; 0 without either."""
    bound, value = finding.bound, finding.measured
    if bound is None or value is None:
        return 0.0
    limit = bound.expected if bound.needed is None else bound.needed
    return value / limit if limit else 0.0


def _statistic(
    plan: Plan, measures: Measures, key: str, bound: Bound, cause: Cause
) -> Finding | None:
    """None for a statistic that was not measured and has no limit."""
    metric = key.split("_")[1]
    value = measures.statistics.get(key)
    if value is None:
        if bound.needed is None:
            return None
        return Finding(
            metric,
            Layer.ENGINE,
            measures.node,
            "",
            Status.UNKNOWN,
            f"{spoken(key)} was not measured",
            remedy="a load with answers of several tokens that succeed",
        )
    band = predicted(plan, key)
    text = f"{SPOKEN[metric]}, {spoken(key)}"
    if band:
        text = f"{text}, predicted {shown(band.mid)} ms"
    return _measured(metric, measures.node, value, bound, text, cause, Layer.ENGINE)


def _throughput(plan: Plan, measures: Measures, cause: Cause) -> Iterator[Finding]:
    bound = predictions.throughput(plan)
    if measures.output_tokens_per_s is None:
        return
    predicted_rate = plan["predictions"].get("output_tokens_per_s")
    text = "output"
    if predicted_rate is not None:
        text = f"{text}, predicted {shown(float(predicted_rate))} tokens/s"
    rate = measures.output_tokens_per_s
    yield _measured("throughput", measures.node, rate, bound, text, cause, Layer.ENGINE)


def _optional(
    check: str, node: str, value: float | None, bound: Bound, what: str, cause: Cause
) -> Iterator[Finding]:
    if value is None:
        summary = "the server has no metric of it"
        yield Finding(check, cause.layer, node, "", Status.SKIPPED, summary)
    else:
        yield _measured(check, node, value, bound, what, cause)


def _measured(
    check: str,
    node: str,
    value: float,
    bound: Bound,
    what: str,
    cause: Cause,
    layer: Layer | None = None,
) -> Finding:
    """A finding whose status follows from the bound, with the factor by which the value misses it.
    `layer`: layer of a value without fault, if it differs from the cause's.
    """
    status = bound.status(value)
    is_missed = status in MISSED
    return Finding(
        check,
        cause.layer if is_missed else layer or cause.layer,
        node,
        "",
        status,
        f"{what}: {shown(value)} {bound.unit}{_by_how_much(value, bound, status)}",
        value,
        bound,
        cause.text if is_missed else "",
        cause.remedy if is_missed else "",
    )


def _by_how_much(value: float, bound: Bound, status: Status) -> str:
    name, limit = ("limit", bound.needed) if status is Status.FAIL else ("band", bound.expected)
    if status not in MISSED or not limit:
        return ""
    return f", {value / limit:.2f} times the {name}"
