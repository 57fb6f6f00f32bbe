//! The circuit breaker of a replica: repeated failures stop requests to it for a while. Pure.
//!
//! ```text
//!  closed --failures in a row--> open --time--> half-open --trial served--> closed
//!                                 ^                |
//!                                 +--trial failed--+   (open for twice as long)
//! ```

use std::time::Duration;

use crate::settings::Breaker as Settings;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Circuit {
    Closed { failures: u32 },
    Open { until: Duration },
    HalfOpen { trial: bool },
}

#[derive(Debug)]
pub(crate) struct Breaker {
    state: Circuit,
    /// Number of openings since the breaker was last closed; each doubles the next open period.
    openings: u32,
}

/// The state of a circuit breaker, for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    /// Requests are blocked for this remaining time.
    Open(Duration),
    /// The next request is a trial, or a trial is in flight.
    HalfOpen,
}

impl BreakerState {
    /// The state as one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open(_) => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

/// Which requests the breaker lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passage {
    All,
    /// A single trial request.
    Trial,
    None,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            state: Circuit::Closed { failures: 0 },
            openings: 0,
        }
    }
}

impl Breaker {
    pub(crate) fn state(&self, now: Duration) -> BreakerState {
        match self.state {
            Circuit::Closed { .. } => BreakerState::Closed,
            Circuit::Open { until } if now < until => BreakerState::Open(until - now),
            Circuit::Open { .. } | Circuit::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    pub(crate) fn passage(&mut self, now: Duration) -> Passage {
        if let Circuit::Open { until } = self.state
            && now >= until
        {
            self.state = Circuit::HalfOpen { trial: false };
        }
        match self.state {
            Circuit::Closed { .. } => Passage::All,
            Circuit::HalfOpen { trial: false } => Passage::Trial,
            Circuit::HalfOpen { trial: true } | Circuit::Open { .. } => Passage::None,
        }
    }

    /// Records that the trial request was sent.
    pub(crate) fn trial_began(&mut self) {
        if let Circuit::HalfOpen { trial } = &mut self.state {
            *trial = true;
        }
    }

    /// Records that the trial request ended without a verdict, so that another one may be sent.
    pub(crate) fn trial_void(&mut self) {
        if let Circuit::HalfOpen { trial } = &mut self.state {
            *trial = false;
        }
    }

    /// Records a success. A request other than the trial counts only while the breaker is closed:
    /// otherwise it was sent before the breaker opened.
    pub(crate) fn served(&mut self, trial: bool) {
        match &mut self.state {
            Circuit::Closed { failures } => *failures = 0,
            Circuit::HalfOpen { .. } if trial => *self = Self::default(),
            Circuit::HalfOpen { .. } | Circuit::Open { .. } => {}
        }
    }

    /// Records a failure. Returns whether the breaker opened.
    pub(crate) fn failed(&mut self, trial: bool, now: Duration, settings: &Settings) -> bool {
        let opens = match &mut self.state {
            Circuit::Closed { failures } => {
                *failures += 1;
                *failures >= settings.failures.max(1)
            }
            Circuit::HalfOpen { .. } => trial,
            Circuit::Open { .. } => false,
        };
        if opens {
            let doubled = settings.open_s * f64::from(1 << self.openings.min(20));
            let seconds = doubled.min(settings.max_open_s);
            self.openings += 1;
            let until = now + Duration::from_secs_f64(seconds);
            self.state = Circuit::Open { until };
        }
        opens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn open() -> (Breaker, Settings) {
        let (mut breaker, settings) = (Breaker::default(), Settings::default());
        (0..4).for_each(|_| assert!(!breaker.failed(false, s(0), &settings)));
        assert!(breaker.failed(false, s(0), &settings));
        (breaker, settings)
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_trial_closes_it() {
        let (mut breaker, _) = open();
        assert_eq!(breaker.passage(Duration::from_millis(999)), Passage::None);
        assert_eq!(breaker.state(s(0)), BreakerState::Open(s(1)));
        assert_eq!(breaker.state(s(1)), BreakerState::HalfOpen);
        assert_eq!(breaker.passage(s(1)), Passage::Trial);
        breaker.trial_began();
        assert_eq!(breaker.passage(s(1)), Passage::None);
        assert_eq!(breaker.state(s(1)), BreakerState::HalfOpen);
        breaker.served(true);
        assert_eq!(breaker.state(s(1)), BreakerState::Closed);
        assert_eq!(breaker.passage(s(1)), Passage::All);
    }

    #[test]
    fn an_answer_between_failures_keeps_it_closed() {
        let (mut breaker, settings) = (Breaker::default(), Settings::default());
        for n in 0..50 {
            if n % 4 == 0 {
                breaker.served(false);
            }
            assert!(!breaker.failed(false, s(0), &settings));
        }
    }

    #[test]
    fn each_failed_trial_doubles_the_time_up_to_the_most() {
        let (mut breaker, settings) = open();
        let mut now = s(1);
        for wait in [2, 4, 8, 16, 30, 30] {
            assert_eq!(breaker.passage(now), Passage::Trial);
            breaker.trial_began();
            assert!(breaker.failed(true, now, &settings));
            assert_eq!(
                breaker.passage(now + s(wait) - Duration::from_millis(1)),
                Passage::None
            );
            now += s(wait);
        }
    }

    #[test]
    fn requests_from_before_it_opened_decide_nothing() {
        let (mut breaker, settings) = open();
        breaker.served(false);
        assert!(!breaker.failed(false, s(0), &settings));
        assert_eq!(breaker.passage(s(1)), Passage::Trial);
        breaker.trial_began();
        breaker.served(false);
        assert!(!breaker.failed(false, s(1), &settings));
        assert_eq!(breaker.passage(s(1)), Passage::None);
        breaker.trial_void();
        assert_eq!(breaker.passage(s(1)), Passage::Trial);
    }
}
