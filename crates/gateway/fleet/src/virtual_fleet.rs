//! A fleet in virtual time, for replays of traces, without tasks or connections. Its owner advances
//! the clock and supplies the reports. Decisions and estimates are the same as in [`Fleet`].

use std::sync::Arc;
use std::time::Duration;

use penstock_routing::{Condition, ReplicaId};

use crate::backend::Target;
use crate::checks::Check;
use crate::load::{Polled, Reported};
use crate::member::Record;
use crate::shared::{Clock, FleetState};
use crate::tasks::{LEARN, TICK};
use crate::{Fleet, Settings};

/// A fleet whose replicas are ready from the start and have ids from 0.
#[derive(Debug)]
pub struct VirtualFleet {
    fleet: Fleet,
    tick: Duration,
    learn: Duration,
}

impl VirtualFleet {
    /// A fleet at time 0.
    pub fn new(replicas: usize, settings: Settings) -> Self {
        let shared = FleetState::new(settings, Clock::set());
        let target = |at: usize| Target {
            base: format!("replica-{at}").into(),
            address: format!("replica-{at}").into(),
            name: format!("replica-{at}").into(),
            labels: Arc::default(),
        };
        for entry in shared.replace_members((0..replicas).map(target).collect()) {
            let healthy = |record: &mut Record| {
                record.standing.saw_check(&Check::Healthy, &shared.settings);
            };
            entry.member.with(healthy);
            // set directly, because an update would be logged
            entry.member.live.set_condition(Condition::Ready);
        }
        Self {
            fleet: Fleet::without_tasks(shared),
            tick: TICK,
            learn: LEARN,
        }
    }

    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Advances the clock to `now`, and runs the periodic work that is due by then. An earlier time
    /// has no effect.
    pub fn advance(&mut self, now: Duration) {
        let shared = self.fleet.shared();
        while self.tick.min(self.learn) <= now {
            if self.tick <= self.learn {
                shared.clock.advance(self.tick);
                shared.tick();
                self.tick += TICK;
            } else {
                shared.clock.advance(self.learn);
                shared.learn();
                self.learn += LEARN;
            }
        }
        shared.clock.advance(now);
    }

    /// Adds a replica's report. A report for an unknown replica is dropped.
    pub fn report(&self, id: ReplicaId, reported: Reported) {
        let shared = self.fleet.shared();
        let Some(member) = shared
            .snapshot()
            .entry(id)
            .map(|entry| entry.member.clone())
        else {
            return;
        };
        let polled = Polled {
            at: shared.now(),
            reported,
            own: member.live.own(),
        };
        shared.saw_report(id, polled);
        member.live.polled();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    #[test]
    fn reports_and_requests_are_in_the_view_and_the_pace_is_learned() {
        let mut fleet = VirtualFleet::new(2, Settings::default());
        let id = ReplicaId(1);
        let running = Reported {
            running: 3.0,
            ..Reported::default()
        };
        fleet.report(id, running);
        let before = fleet.fleet().view();
        assert!(
            before
                .replicas
                .iter()
                .all(|one| one.condition.takes_requests())
        );
        assert_eq!(before.replicas[1].running, 3.0);
        for n in 1..40u32 {
            let tokens = (100 * n) as f32;
            let mut request = fleet.fleet().begin(id, tokens, tokens);
            assert_eq!(fleet.fleet().view().replicas[1].backlog_tokens, tokens);
            let sent = fleet.fleet().shared().now();
            fleet.advance(sent + Duration::from_secs_f32(tokens / 1000.0));
            request.first_token();
            request.end(Outcome::Served);
        }
        let rate = |at: usize| fleet.fleet().view().replicas[at].pace.prefill_tokens_per_s;
        assert!((rate(1) / 1000.0 - 1.0).abs() < 0.02, "{}", rate(1));
        assert_eq!(rate(0), rate(1), "one class");
    }

    #[test]
    fn requests_of_others_are_those_that_replicas_have_beside_own_ones() {
        let fleet = VirtualFleet::new(2, Settings::default());
        let others = || fleet.fleet().others();
        let running = |running| Reported {
            running,
            ..Reported::default()
        };
        let own: Vec<_> = (0..3)
            .map(|_| fleet.fleet().begin(ReplicaId(0), 10.0, 10.0))
            .collect();
        fleet.report(ReplicaId(0), running(3.0));
        assert_eq!(others(), 0.25, "as if one more were theirs");
        fleet.report(ReplicaId(1), running(9.0));
        assert!((others() - 10.0 / 13.0).abs() < 0.01, "{}", others());
        own.into_iter().for_each(|one| one.end(Outcome::Served));
        (0..99).for_each(|_| fleet.report(ReplicaId(1), running(9.0)));
        assert!(others() > 0.95, "{}", others());
    }

    #[test]
    fn reports_grow_old() {
        let mut fleet = VirtualFleet::new(1, Settings::default());
        let waiting = Reported {
            waiting: 7.0,
            ..Reported::default()
        };
        fleet.report(ReplicaId(0), waiting.clone());
        fleet.report(ReplicaId(9), waiting);
        assert_eq!(fleet.fleet().view().replicas[0].waiting, 7.0);
        fleet.advance(Duration::from_secs(3600));
        assert_eq!(fleet.fleet().view().replicas[0].waiting, 0.0);
    }
}
