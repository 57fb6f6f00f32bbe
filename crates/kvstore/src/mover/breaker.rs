//! A tier that fails is left alone for a while (Nygard 2007, "Release It!": circuit breaker).
//!
//! Closed, everything passes. After some failures in a row, or one stall, it opens: nothing passes
//! for a wait. Then one load or store is let through as a trial; it closes the breaker, or opens it
//! again for twice the wait. The wait starts anew only after as many good calls in a row as there
//! were failures, so that a tier that works now and then is not hammered.

use std::time::Duration;

/// When a breaker opens, and for how long.
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
    /// Yes, and it decides.
    Trial,
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
    /// One call is under way.
    Trying,
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

    /// `closed`, `open`, or `trying` while a trial is under way or due.
    pub(crate) fn state(&self, now: Duration) -> &'static str {
        match self.state {
            State::Closed => "closed",
            State::Open { until } if now < until => "open",
            State::Open { .. } | State::Trying => "trying",
        }
    }

    /// How often it opened.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }

    /// Whether a call may be made now. A trial must be ended: by `good`, `bad`, or `withdrawn`.
    pub(crate) fn admit(&mut self, now: Duration) -> Admit {
        match self.state {
            State::Closed => Admit::Pass,
            State::Open { until } if now >= until => {
                self.state = State::Trying;
                Admit::Trial
            }
            State::Open { .. } | State::Trying => Admit::Refuse(self.refusal(now)),
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
    pub(crate) fn good(&mut self, trial: bool) {
        self.bad = 0;
        self.good = self.good.saturating_add(1);
        if trial {
            self.state = State::Closed;
            self.good = 1;
        } else if self.good >= self.rule.failures && self.state == State::Closed {
            self.wait = self.rule.shortest;
        }
    }

    /// A call that was not made, or that says nothing about the tier.
    pub(crate) fn withdrawn(&mut self, now: Duration, trial: bool) {
        if trial && self.state == State::Trying {
            self.state = State::Open { until: now };
        }
    }

    /// A call that failed; `true` when this opens the breaker.
    pub(crate) fn bad(&mut self, now: Duration, trial: bool, why: &str) -> bool {
        self.good = 0;
        self.bad = self.bad.saturating_add(1);
        let enough = self.state == State::Closed && self.bad >= self.rule.failures;
        if trial {
            self.open(now, format!("a trial that failed: {why}"));
        } else if enough {
            self.open(now, format!("{} failures, the last: {why}", self.bad));
        }
        trial || enough
    }

    /// A call that takes too long; `true` when this opens the breaker.
    pub(crate) fn stalled(&mut self, now: Duration, trial: bool, limit: Duration) -> bool {
        self.good = 0;
        let opens = trial || self.state == State::Closed;
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
    fn one_trial_at_a_time_heals_it() {
        let mut b = breaker();
        assert!(b.stalled(Duration::ZERO, false, SECOND));
        assert!(refused(&mut b, SECOND / 2).contains("longer than 1 s"));
        assert_eq!(b.admit(SECOND), Admit::Trial);
        refused(&mut b, 100 * SECOND);
        b.withdrawn(101 * SECOND, true);
        assert_eq!(b.admit(101 * SECOND), Admit::Trial);
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
            assert_eq!(b.admit(now), Admit::Trial);
            assert!(b.bad(now, true, "still dead"));
        }
        now += 4 * SECOND;
        assert_eq!(b.admit(now), Admit::Trial);
        b.good(true);
        // It fails again at once: the wait is still long.
        assert!(b.stalled(now, false, SECOND));
        refused(&mut b, now + 3 * SECOND);
        assert_eq!(b.admit(now + 4 * SECOND), Admit::Trial);
        (0..3).for_each(|i| b.good(i == 0));
        assert!(b.stalled(now, false, SECOND));
        assert_eq!(b.admit(now + SECOND), Admit::Trial);
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
                        Admit::Trial => { prop_assert!(!trial); trial = true; }
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
