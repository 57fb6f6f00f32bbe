"""The circuit breaker of a tier, on a clock that the test moves."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kv.tiers import CircuitBreaker
from penstock.kv.tiers.breaker import FAILURES, LONGEST, QUIET, SHORTEST, BreakerState

CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN
JUST_BEFORE = 1e-6


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker("disk:/kv", clock)


def fail(breaker: CircuitBreaker, transfers: Sequence[int], why: str = "no route") -> None:
    for transfer in transfers:
        breaker.began(transfer)
        breaker.failed(transfer, why)


def stall(breaker: CircuitBreaker, transfer: int) -> None:
    breaker.began(transfer)
    breaker.stalled(transfer, 2.0)


def succeed(breaker: CircuitBreaker, transfers: Sequence[int]) -> None:
    for transfer in transfers:
        breaker.began(transfer)
        breaker.succeeded(transfer)


def test_it_opens_after_failures_in_a_row(breaker: CircuitBreaker) -> None:
    for _ in range(3):
        fail(breaker, range(FAILURES - 1))
        assert breaker.state is CLOSED
        succeed(breaker, [10])
    fail(breaker, range(FAILURES - 1))
    breaker.began(20)
    breaker.inconclusive(20)
    assert breaker.admits, "what says nothing of the tier changes nothing"
    fail(breaker, [21])
    assert (breaker.state, breaker.admits) == (OPEN, False)


def test_one_stall_opens_it(breaker: CircuitBreaker) -> None:
    stall(breaker, 1)
    assert breaker.state is OPEN


def test_one_trial_at_a_time_closes_it(breaker: CircuitBreaker, clock: Clock) -> None:
    stall(breaker, 1)
    clock.now += SHORTEST - JUST_BEFORE
    assert not breaker.admits
    clock.now += 2 * JUST_BEFORE
    assert (breaker.state, breaker.admits) == (HALF_OPEN, True)
    breaker.began(2)
    clock.now += 10 * LONGEST
    assert (breaker.state, breaker.admits) == (HALF_OPEN, False)
    breaker.inconclusive(2)
    assert breaker.admits, "a trial that was cancelled is made by another"
    succeed(breaker, [3])
    assert breaker.state is CLOSED


@pytest.mark.parametrize("how", ["failure", "stall"])
def test_the_pause_grows_until_it_was_well_for_a_while(
    breaker: CircuitBreaker, clock: Clock, how: str
) -> None:
    stall(breaker, 0)
    pauses = []
    for trial in range(1, 10):
        before = clock.now
        while not breaker.admits:
            clock.now += 0.5
        pauses.append(clock.now - before)
        if how == "stall":
            stall(breaker, trial)
        else:
            fail(breaker, [trial])
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    clock.now += LONGEST
    succeed(breaker, [10])
    stall(breaker, 11)
    clock.now += LONGEST - JUST_BEFORE
    assert not breaker.admits, "it stopped again at once"
    clock.now += LONGEST
    succeed(breaker, range(12, 12 + FAILURES))
    stall(breaker, 20)
    clock.now += SHORTEST
    assert breaker.admits


def test_what_began_before_it_opened_does_not_decide(breaker: CircuitBreaker, clock: Clock) -> None:
    for transfer in range(2 * FAILURES):
        breaker.began(transfer)
    stall(breaker, 99)
    breaker.succeeded(0)
    breaker.stalled(1, 2.0)
    for transfer in range(2, FAILURES + 2):
        breaker.failed(transfer, "late")
    clock.now += SHORTEST
    assert breaker.admits, "the pause is as long as it was"
    breaker.began(100)
    breaker.failed(FAILURES + 2, "late")
    assert (breaker.state, breaker.admits) == (HALF_OPEN, False)


def test_a_transfer_that_stalled_and_succeeds_after_all_closes_it(breaker: CircuitBreaker) -> None:
    breaker.began(1)
    breaker.began(2)
    breaker.stalled(1, 2.0)
    breaker.stalled(2, 2.0)
    breaker.failed(2, "it was counted when it stalled")
    assert breaker.state is OPEN
    breaker.succeeded(1)
    assert breaker.state is CLOSED


def test_the_log_says_when_a_tier_is_skipped_and_when_it_is_back(
    breaker: CircuitBreaker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "penstock.kv.tiers")
    fail(breaker, range(FAILURES), "connection refused")
    for trial in range(10, 20):
        clock.now += LONGEST
        fail(breaker, [trial])
    clock.now += LONGEST
    succeed(breaker, [20])
    assert caplog.messages == [
        "KV tier disk:/kv is skipped: 5 failures in a row, the last: connection refused",
        "KV tier disk:/kv is back",
    ]
    caplog.clear()
    for transfer in range(100, 200):
        stall(breaker, transfer)
        clock.now += 0.1
        breaker.succeeded(transfer)
    assert caplog.messages == [
        "KV tier disk:/kv is skipped: no answer within 2.0 s",
        "KV tier disk:/kv is back",
    ], "one that stops again and again is not mentioned each time"
    clock.now += QUIET
    stall(breaker, 300)
    assert len(caplog.messages) == 3


class Rules:
    """What opens and closes a breaker, who may begin and for how long, kept in lists."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.breaker = CircuitBreaker("disk:/kv", self.clock)
        self.pending: list[int] = []
        self.stalled: list[int] = []
        self.trials: list[int] = []
        self.failures = 0
        self.opened_at = self.pause = 0.0

    def check(self) -> BreakerState:
        state = self.breaker.state
        if state is not CLOSED:
            assert (state is OPEN) == (self.clock.now < self.opened_at + self.pause)
        may_begin = state is CLOSED or (state is HALF_OPEN and not self.trials)
        assert self.breaker.admits == may_begin
        return state

    def begin(self, transfer: int) -> None:
        if self.breaker.admits:
            if self.breaker.state is HALF_OPEN:
                self.trials.append(transfer)
            self.breaker.began(transfer)
            self.pending.append(transfer)

    def end(self, transfer: int, how: str) -> None:
        before, trial, late = self.check(), transfer in self.trials, transfer in self.stalled
        self._tell(transfer, how)
        self.trials = [each for each in self.trials if each != transfer]
        if before is CLOSED and how == "fail" and not late:
            self.failures += 1
        if before is CLOSED and how == "succeed":
            self.failures = 0
        bad = how in ("stall", "fail")
        if (trial and bad) or (before is CLOSED and (how == "stall" or self.failures == FAILURES)):
            self.failures, self.trials = 0, []
            self.opened_at, self.pause = self.clock.now, self._measured_pause()
        elif before is not CLOSED and how == "succeed" and (trial or late):
            self.failures, self.trials = 0, []
            assert self.breaker.state is CLOSED
        else:
            assert self.breaker.state is before

    def _tell(self, transfer: int, how: str) -> None:
        if how == "stall":
            self.breaker.stalled(transfer, 1.0)
            self.stalled.append(transfer)
            return
        self.pending.remove(transfer)
        if how == "succeed":
            self.breaker.succeeded(transfer)
        elif how == "fail":
            self.breaker.failed(transfer, "why")
        else:
            self.breaker.inconclusive(transfer)

    def _measured_pause(self) -> float:
        """Seconds until it is half open: one of the pauses there are."""
        now = self.clock.now
        for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0):
            self.clock.now = now + pause - JUST_BEFORE
            before = self.breaker.state
            self.clock.now = now + pause
            if (before, self.breaker.state) == (OPEN, HALF_OPEN):
                self.clock.now = now
                return pause
        raise AssertionError("it is not open, or has another pause")


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "succeed", "fail", "fail", "fail", "stall", "cancel"]),
        st.integers(0, 7),
        st.sampled_from([0.0, 0.1, 0.9, 1.0, 3.0, 61.0]),
    ),
    max_size=80,
)


@given(EVENTS)
def test_whatever_happens(events: list[tuple[str, int, float]]) -> None:
    rules = Rules()
    for number, (event, which, seconds) in enumerate(events):
        rules.clock.now += seconds
        rules.check()
        if event == "begin":
            rules.begin(number)
        elif rules.pending:
            transfer = rules.pending[which % len(rules.pending)]
            if event != "stall" or transfer not in rules.stalled:
                rules.end(transfer, event)
    for trial in rules.trials:
        rules.breaker.inconclusive(trial)
    rules.clock.now += LONGEST
    assert rules.breaker.admits, "it is never stuck"
