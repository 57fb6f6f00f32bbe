//! Circuit breaker of a tier (Nygard 2007, "Release It!").
//!
//! Closed, everything passes. After some failures in a row, or one stall, it opens: nothing passes
//! for a wait. Then it is half open: one load or store passes as a probe, which closes the breaker
//! or opens it again for twice the wait. The wait starts anew only after as many good calls in a
//! row as failures open it, so that a tier that works intermittently is not hammered.

use std::time::Duration;

/// Thresholds of a breaker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// Failures in a row that open it.
    pub(crate) failures: u32,
    /// The first wait.
    pub(crate) shortest: Duration,
    /// The last.
    pub(crate) longest: Duration,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            failures: 5,
            shortest: Duration::from_secs(1),
            longest: Duration::from_secs(60),
        }
    }
}

/// Whether a call may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admit {
    /// Yes.
    Pass,
    /// Yes, as the half-open probe, which decides.
    HalfOpen,
    /// No, because.
    Refuse(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// Nothing passes before `until`, then one call does.
    Open {
        until: Duration,
    },
    /// The probe is in flight.
    HalfOpen,
}

/// See the module's text. Times are of one clock that never goes back.
pub(crate) struct Breaker {
    rule: Rule,
    state: State,
    wait: Duration,
    /// Failures, or good calls, in a row.
    bad: u32,
    good: u32,
    cause: String,
    opened: u64,
}

impl Breaker {
    pub(crate) fn new(rule: Rule) -> Self {
        Self {
            rule,
            state: State::Closed,
            wait: rule.shortest,
            bad: 0,
            good: 0,
            cause: String::new(),
            opened: 0,
        }
    }

    /// `closed`, `open`, or `half_open` while a probe is in flight or due.
    pub(crate) fn state(&self, now: Duration) -> &'static str {
        match self.state {
            State::Closed => "closed",
            State::Open { until } if now < until => "open",
            State::Open { .. } | State::HalfOpen => "half_open",
        }
    }

    /// How often it opened.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }

    /// Whether a call may be made now. A half-open probe must be ended by `good`, `bad` or
    /// `withdrawn`.
    pub(crate) fn admit(&mut self, now: Duration) -> Admit {
        match self.state {
            State::Closed => Admit::Pass,
            State::Open { until } if now >= until => {
                self.state = State::HalfOpen;
                Admit::HalfOpen
            }
            State::Open { .. } | State::HalfOpen => Admit::Refuse(self.refusal(now)),
        }
    }

    /// Why nothing passes.
    pub(crate) fn refusal(&self, now: Duration) -> String {
        match self.state {
            State::Open { until } if now < until => {
                let left = (until - now).as_secs_f64();
                format!("skipped for {left:.1} s more after {}", self.cause)
            }
            _ => format!("skipped after {}", self.cause),
        }
    }

    /// A load or store that the tier answered.
    pub(crate) fn good(&mut self, half_open: bool) {
        self.bad = 0;
        self.good = self.good.saturating_add(1);
        if half_open {
            self.state = State::Closed;
            self.good = 1;
        } else if self.good >= self.rule.failures && self.state == State::Closed {
            self.wait = self.rule.shortest;
        }
    }

    /// A call that was not made, or that proves nothing about the tier.
    pub(crate) fn withdrawn(&mut self, now: Duration, half_open: bool) {
        if half_open && self.state == State::HalfOpen {
            self.state = State::Open { until: now };
        }
    }

    /// A call that failed; `true` when this opens the breaker.
    pub(crate) fn bad(&mut self, now: Duration, half_open: bool, why: &str) -> bool {
        self.good = 0;
        self.bad = self.bad.saturating_add(1);
        let enough = self.state == State::Closed && self.bad >= self.rule.failures;
        if half_open {
            self.open(now, format!("a half-open probe that failed: {why}"));
        } else if enough {
            self.open(now, format!("{} failures, the last: {why}", self.bad));
        }
        half_open || enough
    }

    /// A call that takes too long; `true` when this opens the breaker.
    pub(crate) fn stalled(&mut self, now: Duration, half_open: bool, limit: Duration) -> bool {
        self.good = 0;
        let opens = half_open || self.state == State::Closed;
        if opens {
            let limit = limit.as_secs_f64();
            self.open(now, format!("a call that took longer than {limit} s"));
        }
        opens
    }

    fn open(&mut self, now: Duration, cause: String) {
        self.state = State::Open {
            until: now + self.wait,
        };
        self.wait = (self.wait * 2).min(self.rule.longest);
        (self.cause, self.bad) = (cause, 0);
        self.opened += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn breaker() -> Breaker {
        Breaker::new(Rule {
            failures: 3,
            shortest: SECOND,
            longest: 4 * SECOND,
        })
    }

    fn refused(breaker: &mut Breaker, now: Duration) -> String {
        match breaker.admit(now) {
            Admit::Refuse(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_opens_after_failures_in_a_row() {
        let mut b = breaker();
        for _ in 0..5 {
            assert!(!b.bad(SECOND, false, "x") && !b.bad(SECOND, false, "x"));
            b.good(false);
            assert_eq!(b.admit(SECOND), Admit::Pass);
        }
        assert!(!b.bad(SECOND, false, "x") && !b.bad(SECOND, false, "y"));
        assert!(b.bad(SECOND, false, "no route to host"));
        let why = refused(&mut b, SECOND + SECOND / 2);
        assert_eq!(
            why,
            "skipped for 0.5 s more after 3 failures, the last: no route to host"
        );
        assert_eq!((b.state(SECOND), b.opened()), ("open", 1));
    }

    #[test]
    fn one_half_open_probe_at_a_time_closes_it() {
        let mut b = breaker();
        assert!(b.stalled(Duration::ZERO, false, SECOND));
        assert!(refused(&mut b, SECOND / 2).contains("longer than 1 s"));
        assert_eq!(b.admit(SECOND), Admit::HalfOpen);
        refused(&mut b, 100 * SECOND);
        b.withdrawn(101 * SECOND, true);
        assert_eq!(b.admit(101 * SECOND), Admit::HalfOpen);
        b.good(true);
        assert_eq!(b.admit(101 * SECOND), Admit::Pass);
    }

    #[test]
    fn the_wait_grows_until_it_was_well_for_a_while() {
        let mut b = breaker();
        let mut now = Duration::ZERO;
        assert!(b.stalled(now, false, SECOND));
        for wait in [1, 2, 4, 4] {
            refused(&mut b, now + wait * SECOND - SECOND / 8);
            now += wait * SECOND;
            assert_eq!(b.admit(now), Admit::HalfOpen);
            assert!(b.bad(now, true, "still dead"));
        }
        now += 4 * SECOND;
        assert_eq!(b.admit(now), Admit::HalfOpen);
        b.good(true);
        // It fails again at once: the wait is still long.
        assert!(b.stalled(now, false, SECOND));
        refused(&mut b, now + 3 * SECOND);
        assert_eq!(b.admit(now + 4 * SECOND), Admit::HalfOpen);
        (0..3).for_each(|i| b.good(i == 0));
        assert!(b.stalled(now, false, SECOND));
        assert_eq!(b.admit(now + SECOND), Admit::HalfOpen);
    }

    #[test]
    fn late_answers_of_calls_from_before_change_nothing() {
        let mut b = breaker();
        assert!(b.stalled(Duration::ZERO, false, SECOND));
        assert!(!b.stalled(Duration::ZERO, false, SECOND));
        b.good(false);
        assert!((0..9).all(|_| !b.bad(SECOND / 2, false, "late")));
        refused(&mut b, SECOND / 2);
        assert_eq!(b.opened(), 1);
    }

    proptest! {
        /// Whatever happens, it passes again after its longest wait, and never lets two trials run.
        #[test]
        fn it_is_never_stuck(events in proptest::collection::vec((0u8..5, 0u64..3000), 0..60)) {
            let (mut b, mut now, mut trial) = (breaker(), Duration::ZERO, false);
            for (event, pause) in events {
                now += Duration::from_millis(pause);
                match event {
                    0 => { b.bad(now, trial, "x"); trial = false; }
                    1 => { b.good(trial); trial = false; }
                    2 => { b.stalled(now, trial, SECOND); trial = false; }
                    3 => { b.withdrawn(now, trial); trial = false; }
                    _ => match b.admit(now) {
                        Admit::HalfOpen => { prop_assert!(!trial); trial = true; }
                        Admit::Pass => prop_assert!(!trial),
                        Admit::Refuse(_) => {}
                    },
                }
            }
            b.withdrawn(now, trial);
            prop_assert!(!matches!(b.admit(now + 4 * SECOND), Admit::Refuse(_)));
        }
    }
}
