//! Whether a replica, or a whole pool, is saturated. Pure, except for [`Load`] of a fleet.
//!
//! A replica's last report does not include requests sent since then. Whether the replica queues
//! them is unknown. Such requests have a separate, larger limit than requests that the report shows
//! as waiting. With the same limit, only five requests could be sent per report, and a replica
//! reports every 200 ms.

use penstock_fleet::{Fleet, View};
use penstock_routing::Replica;

use crate::flow::FlowSettings;

/// Source of a pool's load.
pub(crate) trait Load: std::fmt::Debug + Send + Sync {
    fn saturated(&self, settings: &FlowSettings) -> bool;
}

impl Load for Fleet {
    fn saturated(&self, settings: &FlowSettings) -> bool {
        pool_is_saturated(&self.view(), settings)
    }
}

/// Whether there are replicas that may get requests, and all of them are saturated.
fn pool_is_saturated(view: &View, settings: &FlowSettings) -> bool {
    let one_takes = view.one_takes_requests();
    let takes = |place: &usize| view.replicas[*place].condition.takes_beside(one_takes);
    let mut candidates = (0..view.replicas.len()).filter(takes).peekable();
    candidates.peek().is_some()
        && candidates.all(|place| {
            let (replica, reported) = (&view.replicas[place], view.reported_waiting(place));
            view.is_full(place) || saturation(replica, reported, settings) >= 1.0
        })
}

/// Load of a replica relative to its thresholds; 1 or more means saturated. `reported` is the
/// number of waiting requests in its last report. NaN counts as saturated.
fn saturation(replica: &Replica, reported: Option<f32>, settings: &FlowSettings) -> f32 {
    let parts = match reported {
        Some(reported) => {
            let known = replica.waiting.min(reported);
            [
                known / settings.waiting,
                (replica.waiting - known) / settings.unreported,
                replica.kv_use / settings.kv_use,
            ]
        }
        None => {
            let in_flight = replica.waiting + replica.running;
            [in_flight / settings.in_flight, 0.0, 0.0]
        }
    };
    let number = |part: f32| if part.is_nan() { f32::INFINITY } else { part };
    parts.into_iter().map(number).fold(0.0, f32::max)
}

#[cfg(test)]
mod tests {
    use penstock_routing::ReplicaId;

    use super::*;

    fn full(waiting: f32, running: f32, kv_use: f32, reported: Option<f32>) -> bool {
        let replica = Replica {
            waiting,
            running,
            kv_use,
            ..Replica::new(ReplicaId(1), "a:1")
        };
        saturation(&replica, reported, &FlowSettings::default()) >= 1.0
    }

    #[test]
    fn each_threshold_alone_fills_a_replica() {
        assert!(!full(4.0, 200.0, 0.79, Some(4.0)));
        assert!(full(5.0, 0.0, 0.0, Some(5.0)));
        assert!(full(0.0, 1.0, 0.8, Some(0.0)));
    }

    #[test]
    fn what_was_sent_since_the_report_may_be_more() {
        assert!(!full(31.0, 0.0, 0.0, Some(0.0)));
        assert!(full(32.0, 0.0, 0.0, Some(0.0)));
        // its report had five waiting requests, two of which have had their first token since
        assert!(!full(3.0, 0.0, 0.0, Some(5.0)));
    }

    #[test]
    fn a_replica_that_reports_nothing_is_judged_by_what_is_in_flight() {
        assert!(!full(60.0, 39.0, 0.0, None));
        assert!(full(60.0, 40.0, 0.0, None));
    }

    #[test]
    fn nonsense_is_full() {
        assert!(full(0.0, 0.0, f32::NAN, Some(0.0)));
    }
}
