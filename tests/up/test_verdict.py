"""The verdict of a run: its outcome beside a plain restatement, its cause, and that worse
measurements never better it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ops.up.causes import SPEED
from penstock_ops.up.measures import Measures
from penstock_ops.up.verdict import verdict_of
from penstock_ops.verify.checks.registry import CHECKS
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.verdict import Outcome, Verdict
from tests.up.plans import AS_PREDICTED, STATISTICS, plan, slower, verified

BEST_FIRST = (Outcome.HOLDS, Outcome.NOT_PROVEN, Outcome.DOES_NOT_HOLD)
LIMITS = ("p99_tpot_ms:40", "p99_ttft_ms:200")
GOOD = (verified("limits", Layer.HOST, Status.PASS),)


def judged(
    measures: Measures, *slo: str, findings: tuple[Finding, ...] = GOOD, **changes: object
) -> Verdict:
    return verdict_of(plan(*(slo or LIMITS), **changes), findings, measures)


def test_a_run_as_predicted_holds() -> None:
    found = judged(AS_PREDICTED)
    assert (found.outcome, found.cause, found.exit_status) == (Outcome.HOLDS, None, 0)
    assert {each.status for each in found.findings} == {Status.PASS}


def test_above_the_band_warns_and_above_the_limit_fails_with_the_factor() -> None:
    near = judged(slower(1.5, "tpot"))
    assert near.outcome is Outcome.HOLDS
    assert near.count(Status.WARN) == 1
    far = judged(slower(3.0, "tpot"))
    assert far.exit_status == 1
    assert far.cause is not None
    assert "P99 TPOT" in far.cause.summary
    assert "60 ms, 1.50 times the limit" in far.cause.summary


def test_a_plan_without_limits_is_held_to_its_band() -> None:
    def outcome(measures: Measures) -> Outcome:
        return verdict_of(plan(), GOOD, measures).outcome

    assert outcome(slower(1.19, "tpot", "ttft", "e2el")) is Outcome.HOLDS
    assert outcome(slower(1.21, "ttft")) is Outcome.DOES_NOT_HOLD
    assert outcome(replace(AS_PREDICTED, output_tokens_per_s=99.0)) is Outcome.DOES_NOT_HOLD


def test_an_unknown_first_token_is_held_to_its_limit_alone() -> None:
    unknown = {f"{kind}_ttft_ms": {"unknown": True, "at_least": 9.0} for kind in ("median", "p99")}
    predictions = {**plan()["predictions"], **unknown}
    assert judged(slower(1.9, "ttft"), predictions=predictions).count(Status.WARN) == 1  # P90
    assert judged(slower(2.1, "ttft"), predictions=predictions).exit_status == 1


def test_what_was_not_measured_is_not_proven() -> None:
    without = {k: v for k, v in AS_PREDICTED.statistics.items() if k != "p99_tpot_ms"}
    found = judged(replace(AS_PREDICTED, statistics=without))
    assert found.exit_status == 3
    assert found.cause is not None
    assert found.cause.summary == "P99 TPOT was not measured"
    assert judged(replace(AS_PREDICTED, completed=0, statistics={})).exit_status == 1


MEMORY_WARNS = verified("memory-rate", Layer.MEMORY, Status.WARN, 90.0)
SLOW_STEPS = {"step_seconds": 0.060}
CAUSES = [
    (slower(3, "tpot", **SLOW_STEPS), (MEMORY_WARNS,), Layer.MEMORY, "memory-rate is so"),
    (
        slower(3, "tpot", **SLOW_STEPS),
        (verified("nvlink", Layer.FABRIC, Status.WARN, 90.0),),
        Layer.FABRIC,
        "nvlink is so",
    ),
    (
        slower(3, "tpot", preemptions=7.0, waiting=9.0, **SLOW_STEPS),
        (),
        Layer.MEMORY,
        "7 sequences were computed again",
    ),
    (slower(3, "tpot", foreign_share=0.5), (), Layer.HOST, "other programs used 50%"),
    (slower(3, "tpot"), (), Layer.ENGINE, "40 of 60 ms between tokens pass outside"),
    (slower(3, "tpot", **SLOW_STEPS), (), Layer.MODEL, "an engine step takes 60 ms"),
    (slower(3, "tpot", step_seconds=None), (), Layer.ENGINE, "or the plan's model of its steps"),
    (slower(3, "tpot", "ttft", waiting=9.0, **SLOW_STEPS), (), Layer.MODEL, "an engine step"),
    (slower(3, "ttft", waiting=9.0), (), Layer.LOAD, "9 requests wait on average"),
    (slower(3, "ttft"), (), Layer.ENGINE, "prompts, or the API server, are slow"),
    (replace(AS_PREDICTED, failed={"http_status": 2}), (), Layer.ENGINE, "refuses or breaks off"),
    (replace(AS_PREDICTED, start_seconds=130.0), (), Layer.ENGINE, "longer than planned"),
    (
        replace(AS_PREDICTED, start_seconds=130.0),
        (verified("storage", Layer.STORAGE, Status.WARN, 90.0),),
        Layer.STORAGE,
        "storage is so",
    ),
    (Measures("n", None, "it ended with status 1"), (), Layer.ENGINE, "the last lines of its log"),
]


@pytest.mark.parametrize(("measures", "findings", "layer", "said"), CAUSES)
def test_the_cause_is_what_was_measured(
    measures: Measures, findings: tuple[Finding, ...], layer: Layer, said: str
) -> None:
    found = judged(measures, findings=findings)
    assert found.outcome is Outcome.DOES_NOT_HOLD
    assert found.cause is not None
    assert found.cause.layer is layer
    assert said in found.cause.cause
    assert found.cause.remedy


def test_a_warning_that_slows_nothing_is_no_cause() -> None:
    descriptors = verified("limits", Layer.HOST, Status.WARN, 90.0)
    found = judged(slower(3, "tpot", **SLOW_STEPS), findings=(descriptors,))
    assert found.cause is not None
    assert found.cause.layer is Layer.MODEL


def test_a_failure_of_verify_comes_first() -> None:
    lost = verified("memory-rate", Layer.MEMORY, Status.FAIL, 70.0)
    assert judged(AS_PREDICTED, findings=(lost,)).cause is lost
    assert judged(slower(9, "tpot"), findings=(lost,)).cause is lost


def test_other_programs_do_not_explain_devices() -> None:
    found = judged(slower(3, "tpot", foreign_share=0.9), target={"resource": "nvidia.com/gpu"})
    assert found.cause is not None
    assert found.cause.layer is Layer.ENGINE


def test_checks_that_explain_speed_exist() -> None:
    assert set(SPEED) <= {check.name for check in CHECKS}


POSITIVE = st.floats(0.01, 1e6)
SHARES = st.none() | st.floats(0, 1)
MEASURES = st.builds(
    Measures,
    st.just("n"),
    st.none() | st.floats(0, 500),
    completed=st.integers(0, 100),
    failed=st.dictionaries(st.sampled_from(["connect", "http_status"]), st.integers(1, 9)),
    statistics=st.dictionaries(
        st.sampled_from([*STATISTICS, "mean_tpot_ms", "p99_itl_ms"]), POSITIVE
    ),
    output_tokens_per_s=st.none() | POSITIVE,
    waiting=st.none() | st.floats(0, 50),
    preemptions=st.none() | st.floats(0, 50),
    step_seconds=st.none() | st.floats(1e-4, 10),
    foreign_share=SHARES,
)
SLOS = st.lists(
    st.sampled_from([*LIMITS, "median_e2el_ms:550", "mean_tpot_ms:30", "p99_itl_ms:90"]),
    unique=True,
)
STATUSES = st.lists(
    st.builds(
        verified,
        st.sampled_from(["memory-rate", "storage", "limits"]),
        st.sampled_from([Layer.MEMORY, Layer.STORAGE, Layer.HOST]),
        st.sampled_from(list(Status)),
    ),
    max_size=3,
)


def restated(slo: list[str], findings: list[Finding], measures: Measures) -> Outcome:
    """The outcome by its definition in docs/verify.md, from the raw numbers."""
    statuses = {each.status for each in findings}
    limits = {text.split(":")[0]: float(text.split(":")[1]) for text in slo}
    if not slo:
        limits = {"median_tpot_ms": 24.0, "median_ttft_ms": 120.0, "median_e2el_ms": 600.0}
    rate = measures.output_tokens_per_s
    failed = (
        measures.start_seconds is None
        or measures.start_seconds > 120
        or not measures.completed
        or bool(measures.failed)
        or any(measures.statistics.get(key, 0.0) > limit for key, limit in limits.items())
        or (not slo and rate is not None and rate < 120.0 / 1.2)
    )
    if failed or Status.FAIL in statuses:
        return Outcome.DOES_NOT_HOLD
    if Status.UNKNOWN in statuses or not limits.keys() <= measures.statistics.keys():
        return Outcome.NOT_PROVEN
    return Outcome.HOLDS


@given(SLOS, STATUSES, MEASURES)
def test_the_outcome_is_that_of_its_definition(
    slo: list[str], findings: list[Finding], measures: Measures
) -> None:
    found = verdict_of(plan(*slo), findings, measures)
    assert found.outcome is restated(slo, findings, measures)
    assert (found.cause is None) == (found.outcome is Outcome.HOLDS)
    for each in found.findings:
        missed = each.status in (Status.WARN, Status.UNKNOWN, Status.FAIL)
        assert not missed or each.remedy


@st.composite
def worse(draw: st.DrawFn) -> tuple[Measures, Measures]:
    """Two measurements, of which the second is nowhere better, and somewhere may be worse."""
    first = draw(MEASURES)

    def more(value: float | None, most: float = math.inf) -> float | None:
        return None if value is None else min(value * draw(st.floats(1, 10)), most)

    return first, replace(
        first,
        start_seconds=draw(st.sampled_from([more(first.start_seconds), None])),
        completed=draw(st.integers(0, first.completed)),
        failed={**first.failed, **draw(st.sampled_from([{}, {"connect": 10}]))},
        statistics={key: more(value) for key, value in first.statistics.items()},
        output_tokens_per_s=first.output_tokens_per_s
        and first.output_tokens_per_s / draw(st.floats(1, 10)),
        waiting=more(first.waiting),
        preemptions=more(first.preemptions),
        step_seconds=more(first.step_seconds),
        foreign_share=more(first.foreign_share, 1.0),
    )


@given(SLOS, STATUSES, worse())
def test_a_worse_measurement_never_betters_the_verdict(
    slo: list[str], findings: list[Finding], pair: tuple[Measures, Measures]
) -> None:
    better, poorer = (
        BEST_FIRST.index(verdict_of(plan(*slo), findings, each).outcome) for each in pair
    )
    assert poorer >= better


@given(SLOS, st.sampled_from(STATISTICS), st.sampled_from([math.nan, math.inf]))
def test_a_value_that_is_no_number_never_passes(slo: list[str], key: str, value: float) -> None:
    measures = replace(AS_PREDICTED, statistics={**AS_PREDICTED.statistics, key: value})
    found = verdict_of(plan(*slo), GOOD, measures)
    assert found.count(Status.WARN) + found.count(Status.FAIL) >= 1
