//! Eligibility of a replica for requests, from health checks, circuit breaker, outlier ejection,
//! slow start and discovery. Pure.

use std::time::Duration;

use penstock_routing::Condition;

use crate::Settings;
use crate::breaker::{Breaker, BreakerState, Passage};
use crate::checks::{Check, Checks, Health};
use crate::outcome::Outcome;
use crate::outliers::Tally;

/// Share of requests at the start of a slow start. The share then rises to 1.
const LEAST_SHARE: f64 = 0.1;
/// Time for which a replica that refused a request is limited to [`LEAST_SHARE`]. Without the
/// limit, the replica would attract all new requests, because it has few in flight.
pub(crate) const FULL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Standing {
    checks: Checks,
    breaker: Breaker,
    /// The latest list of backends does not contain the replica.
    pub gone: bool,
    /// Successes and failures since the last outlier comparison.
    pub tally: Tally,
    ejected_until: Option<Duration>,
    /// Number of consecutive ejections; each one lengthens the next ejection.
    ejections: u32,
    /// End of the limit to [`LEAST_SHARE`] after a refusal.
    full_until: Option<Duration>,
    /// Whether the replica was available at the last evaluation.
    available: bool,
    /// Start of the slow start; `None` outside of one.
    warming: Option<Duration>,
    /// Whether the replica starts slowly the next time that it becomes available.
    cold: bool,
}

/// Result of an evaluation of [`Standing`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Now {
    pub condition: Condition,
    /// The next request is the trial of a half-open circuit breaker.
    pub trial: bool,
}

impl Standing {
    /// `cold`: the replica joins a running fleet and begins with a slow start.
    pub(crate) fn new(cold: bool) -> Self {
        Self {
            cold,
            ..Self::default()
        }
    }

    pub(crate) fn checked(&self) -> bool {
        self.checks.health != Health::Unknown
    }

    pub(crate) fn saw_check(&mut self, check: &Check, settings: &Settings) {
        self.checks.saw(check, settings.health.failures);
    }

    /// Records the end of a request. Returns whether the breaker opened.
    pub(crate) fn saw_end(
        &mut self,
        outcome: Outcome,
        trial: bool,
        now: Duration,
        settings: &Settings,
    ) -> bool {
        match outcome {
            Outcome::Served => {
                self.tally.served = self.tally.served.saturating_add(1);
                self.served(trial);
                false
            }
            Outcome::ConnectFailed | Outcome::Failed => {
                self.tally.failed = self.tally.failed.saturating_add(1);
                self.breaker.failed(trial, now, &settings.breaker)
            }
            Outcome::ClientGone | Outcome::Refused | Outcome::Unclear => {
                if outcome == Outcome::Refused {
                    self.full_until = Some(now + FULL);
                }
                if trial {
                    self.breaker.trial_void();
                }
                false
            }
        }
    }

    pub(crate) fn trial_began(&mut self) {
        self.breaker.trial_began();
    }

    /// Reports a success to the circuit breaker, but not to outlier detection. A trial request
    /// counts as a success at its first token, because its stream may last for hours.
    pub(crate) fn served(&mut self, trial: bool) {
        self.breaker.served(trial);
    }

    /// Records the result of an outlier comparison, which ejects the replica if it is an outlier.
    pub(crate) fn compared(&mut self, outlier: bool, now: Duration, settings: &Settings) {
        self.tally = Tally::default();
        if outlier {
            self.ejections += 1;
            let seconds = settings.outliers.eject_s * f64::from(self.ejections);
            let seconds = seconds.min(settings.outliers.max_eject_s);
            self.ejected_until = Some(now + Duration::from_secs_f64(seconds));
        } else if self.ejected_until.is_none() {
            self.ejections = 0;
        }
    }

    pub(crate) fn ejected(&self) -> bool {
        self.ejected_until.is_some()
    }

    /// Evaluates the standing at `now` and advances time-dependent state.
    pub(crate) fn now(&mut self, now: Duration, settings: &Settings) -> Now {
        if self.ejected_until.is_some_and(|until| now >= until) {
            self.ejected_until = None;
        }
        let out = match (self.gone, self.checks.health) {
            (true, _) | (_, Health::Draining) => Some(Condition::Draining),
            (_, Health::Unknown | Health::Unhealthy) => Some(Condition::Unhealthy),
            (_, Health::Healthy) => self.ejected_until.map(|_| Condition::Ejected),
        };
        let passage = self.breaker.passage(now);
        let trial = out.is_none() && passage == Passage::Trial;
        let condition = match (out, passage) {
            (Some(condition), _) => condition,
            (None, Passage::None) => Condition::Ejected,
            (None, Passage::Trial) => Condition::Ready,
            (None, Passage::All) => self.share(now, settings),
        };
        self.available = condition.takes_requests() && !trial;
        Now { condition, trial }
    }

    pub(crate) fn breaker(&self, now: Duration) -> BreakerState {
        self.breaker.state(now)
    }

    /// Reason why a replica in this `condition` gets no requests, or fewer; `None` if it is ready.
    /// `failure` is the reason of its last failed health check.
    pub(crate) fn why(&self, condition: Condition, now: Duration, failure: &str) -> Option<String> {
        let full = self.full_until.is_some_and(|until| now < until);
        Some(match (condition, self.breaker.state(now)) {
            (Condition::Ready, BreakerState::Closed) => return None,
            (Condition::Ready, _) => "its circuit breaker lets one request through".to_owned(),
            (Condition::Warming(_), _) if full => {
                "it has just refused a request, so it gets a tenth of them".to_owned()
            }
            (Condition::Warming(share), _) => {
                format!("slow start: {:.0}% of its requests", share * 100.0)
            }
            (Condition::Draining, _) if self.gone => "its source no longer lists it".to_owned(),
            (Condition::Draining, _) => "it drains: it finishes what it has".to_owned(),
            (Condition::Ejected, BreakerState::Open(rest)) => format!(
                "requests failed one after another; a trial in {:.0} s",
                rest.as_secs_f64().ceil()
            ),
            (Condition::Ejected, BreakerState::HalfOpen) => {
                "requests failed one after another; a trial is on its way".to_owned()
            }
            (Condition::Ejected, BreakerState::Closed) => {
                "its requests fail far more often than others'".to_owned()
            }
            (Condition::Unhealthy, _) if self.checks.health == Health::Unknown => {
                "no health check has ended yet".to_owned()
            }
            (Condition::Unhealthy, _) => format!("its health check fails: {failure}"),
        })
    }

    /// `Ready`, or a reduced share during a slow start or after the replica refused a request.
    fn share(&mut self, now: Duration, settings: &Settings) -> Condition {
        let condition = self.warming(now, settings);
        match self.full_until.filter(|until| now < *until) {
            Some(_) => Condition::Warming(LEAST_SHARE as f32),
            None => condition,
        }
    }

    /// `Ready`, or the share of a slow start, which begins when the replica becomes available.
    fn warming(&mut self, now: Duration, settings: &Settings) -> Condition {
        if !self.available {
            self.warming = self.cold.then_some(now);
            self.cold = true;
        }
        let Some(began) = self.warming else {
            return Condition::Ready;
        };
        let share = now.saturating_sub(began).as_secs_f64() / settings.slow_start_s;
        if share < 1.0 {
            return Condition::Warming(share.max(LEAST_SHARE) as f32);
        }
        self.warming = None;
        Condition::Ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    struct Rig {
        standing: Standing,
        settings: Settings,
    }

    impl Rig {
        fn healthy(cold: bool) -> Self {
            let mut rig = Self {
                standing: Standing::new(cold),
                settings: Settings::default(),
            };
            rig.check(Check::Healthy);
            rig
        }

        fn check(&mut self, check: Check) {
            self.standing.saw_check(&check, &self.settings);
        }

        fn end(&mut self, outcome: Outcome, trial: bool, now: Duration) {
            self.standing.saw_end(outcome, trial, now, &self.settings);
        }

        fn at(&mut self, now: Duration) -> Condition {
            self.standing.now(now, &self.settings).condition
        }
    }

    #[test]
    fn the_first_replicas_start_at_once_and_later_ones_slowly() {
        assert_eq!(Rig::healthy(false).at(s(0)), Condition::Ready);
        let mut late = Rig::healthy(true);
        assert_eq!(late.at(s(100)), Condition::Warming(0.1));
        assert_eq!(late.at(s(105)), Condition::Warming(0.5));
        assert_eq!(late.at(s(110)), Condition::Ready);
    }

    #[test]
    fn a_replica_that_comes_back_starts_slowly() {
        let mut rig = Rig::healthy(false);
        assert_eq!(rig.at(s(0)), Condition::Ready);
        rig.check(Check::Failed(String::new()));
        rig.check(Check::Failed(String::new()));
        assert_eq!(rig.at(s(1)), Condition::Unhealthy);
        rig.check(Check::Draining);
        assert_eq!(rig.at(s(2)), Condition::Draining);
        rig.check(Check::Healthy);
        assert_eq!(rig.at(s(3)), Condition::Warming(0.1));
        assert_eq!(rig.at(s(13)), Condition::Ready);
    }

    #[test]
    fn an_open_breaker_lets_one_trial_through_and_then_starts_slowly() {
        let mut rig = Rig::healthy(false);
        assert_eq!(rig.at(s(0)), Condition::Ready);
        (0..5).for_each(|_| rig.end(Outcome::ConnectFailed, false, s(0)));
        assert_eq!(rig.at(s(0)), Condition::Ejected);
        let half_open = rig.standing.now(s(1), &rig.settings);
        assert_eq!(half_open.condition, Condition::Ready);
        assert!(half_open.trial);
        rig.standing.trial_began();
        assert_eq!(rig.at(s(1)), Condition::Ejected);
        rig.end(Outcome::ClientGone, true, s(1));
        assert!(rig.standing.now(s(1), &rig.settings).trial);
        rig.standing.trial_began();
        rig.end(Outcome::Served, true, s(2));
        assert_eq!(rig.at(s(2)), Condition::Warming(0.1));
    }

    #[test]
    fn refusals_and_lost_clients_open_nothing() {
        let mut rig = Rig::healthy(false);
        for outcome in [Outcome::ClientGone, Outcome::Refused] {
            assert_eq!(rig.at(s(0)), Condition::Ready);
            (0..50).for_each(|_| rig.end(outcome, false, s(0)));
        }
        // limited after the refusal: having few requests, it would otherwise win all new ones
        assert_eq!(rig.at(s(0)), Condition::Warming(0.1));
        assert_eq!(rig.at(s(1)), Condition::Ready);
        assert_eq!(rig.standing.tally, Tally::default());
    }

    #[test]
    fn an_outlier_is_ejected_longer_each_time() {
        let mut rig = Rig::healthy(false);
        assert_eq!(rig.at(s(0)), Condition::Ready);
        rig.standing.compared(true, s(0), &rig.settings);
        assert_eq!(rig.at(s(29)), Condition::Ejected);
        assert_eq!(rig.at(s(30)), Condition::Warming(0.1));
        rig.standing.compared(true, s(30), &rig.settings);
        assert_eq!(rig.at(s(89)), Condition::Ejected);
        assert!(rig.at(s(90)).takes_requests());
        rig.standing.compared(false, s(90), &rig.settings);
        rig.standing.compared(true, s(100), &rig.settings);
        assert!(rig.at(s(130)).takes_requests());
    }

    #[test]
    fn every_condition_but_ready_has_a_reason() {
        let why = |rig: &mut Rig, now: Duration| {
            let condition = rig.at(now);
            rig.standing.why(condition, now, "status 500")
        };
        let mut rig = Rig::healthy(false);
        assert_eq!(why(&mut rig, s(0)), None);
        rig.end(Outcome::Refused, false, s(0));
        assert!(why(&mut rig, s(0)).unwrap().contains("refused"));
        (0..5).for_each(|_| rig.end(Outcome::Failed, false, s(2)));
        assert!(why(&mut rig, s(2)).unwrap().ends_with("a trial in 1 s"));
        assert!(why(&mut rig, s(3)).unwrap().contains("one request"));
        rig.standing.trial_began();
        assert!(why(&mut rig, s(3)).unwrap().contains("on its way"));
        rig.end(Outcome::Served, true, s(3));
        assert!(why(&mut rig, s(3)).unwrap().contains("slow start: 10%"));
        rig.standing.compared(true, s(20), &rig.settings);
        assert!(why(&mut rig, s(20)).unwrap().contains("more often"));
        (0..2).for_each(|_| rig.check(Check::Failed(String::new())));
        let unhealthy = why(&mut rig, s(20)).unwrap();
        assert_eq!(unhealthy, "its health check fails: status 500");
        rig.check(Check::Draining);
        assert!(why(&mut rig, s(20)).unwrap().contains("drains"));
        rig.standing.gone = true;
        assert!(why(&mut rig, s(20)).unwrap().contains("source"));
        let mut new = Rig {
            standing: Standing::new(false),
            settings: Settings::default(),
        };
        assert!(why(&mut new, s(0)).unwrap().contains("yet"));
    }

    #[test]
    fn one_that_left_its_source_drains_whatever_its_health() {
        let mut rig = Rig::healthy(false);
        rig.standing.gone = true;
        assert_eq!(rig.at(s(0)), Condition::Draining);
        rig.check(Check::Failed(String::new()));
        rig.check(Check::Failed(String::new()));
        assert_eq!(rig.at(s(0)), Condition::Draining);
    }
}
