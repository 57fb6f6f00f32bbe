//! Current load of a replica, from its last report and the requests that this gateway has sent
//! since. Pure.

use std::sync::Arc;
use std::time::Duration;

use penstock_routing::TIERS;

use crate::live::Own;

/// A replica's report of its own state.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reported {
    /// Prefix of its metric names, which identifies the kind of engine.
    pub engine: &'static str,
    pub waiting: f32,
    pub running: f32,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_use: Option<f32>,
    /// KV cache capacity in tokens.
    pub kv_tokens: Option<f32>,
    pub adapters: Arc<[Arc<str>]>,
    pub max_adapters: u32,
    /// Start time of the replica's process, in Unix seconds.
    pub process_start: Option<f64>,
    /// Sum of counters that never decrease while the engine runs: a lower sum reveals a restart.
    pub work: Option<f64>,
    /// Seconds to load one token's KV from each tier behind the KV pool.
    pub load_s: [Option<f32>; TIERS],
    /// Path of the stream on which the replica pushes its load.
    pub load_stream: Option<Arc<str>>,
}

/// A report, with this gateway's counts of its own requests at that time.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Polled {
    pub at: Duration,
    pub reported: Reported,
    pub own: Own,
}

/// Load of a replica, with the meanings and units of `penstock_routing::Replica`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Load {
    pub waiting: f32,
    pub running: f32,
    pub kv_use: f32,
    pub backlog_tokens: f32,
}

/// Current load. Requests in the report beyond this gateway's own belong to other gateways.
///
/// An own request without a first token counts as waiting. If the report showed fewer waiting
/// requests than that, the difference counts as running. `foreign_tokens` is the estimated prompt
/// length of another gateway's request.
pub(crate) fn load(polled: Option<&Polled>, own: Own, foreign_tokens: f32) -> Load {
    let (in_flight, prefilling) = (own.in_flight as f32, own.prefilling as f32);
    let Some(Polled {
        reported,
        own: then,
        ..
    }) = polled
    else {
        return Load {
            waiting: prefilling,
            running: in_flight - prefilling,
            kv_use: 0.0,
            backlog_tokens: own.backlog as f32,
        };
    };
    let then_prefilling = then.prefilling as f32;
    let foreign = (reported.waiting + reported.running - then.in_flight as f32).max(0.0);
    let foreign_waiting = (reported.waiting - then_prefilling).clamp(0.0, foreign);
    let began_running = then_prefilling - reported.waiting.min(then_prefilling);
    let own_waiting = (prefilling - began_running).max(0.0);
    let waiting = foreign_waiting + own_waiting;
    Load {
        waiting,
        running: foreign + in_flight - waiting,
        kv_use: kv_use(reported, *then, own),
        backlog_tokens: own.backlog as f32 + foreign_waiting * foreign_tokens,
    }
}

/// The reported share of KV in use, plus the prompts sent since the report.
fn kv_use(reported: &Reported, then: Own, own: Own) -> f32 {
    let begun = own.begun.saturating_sub(then.begun);
    let reserved = begun.saturating_sub(own.ended.saturating_sub(then.ended)) as f32;
    let more = reported
        .kv_tokens
        .map_or(0.0, |all| reserved / all.max(1.0));
    (reported.kv_use.unwrap_or(0.0) + more).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(in_flight: u32, prefilling: u32) -> Own {
        Own {
            in_flight,
            prefilling,
            backlog: 100 * u64::from(prefilling),
            ..Own::default()
        }
    }

    fn polled(waiting: f32, running: f32, own: Own) -> Polled {
        Polled {
            reported: Reported {
                waiting,
                running,
                ..Reported::default()
            },
            own,
            ..Polled::default()
        }
    }

    fn requests(polled: &Polled, own: Own) -> (f32, f32) {
        let load = load(Some(polled), own, 1000.0);
        (load.waiting, load.running)
    }

    #[test]
    fn without_a_report_only_own_requests_count() {
        let load = load(None, own(5, 2), 1000.0);
        assert_eq!((load.waiting, load.running), (2.0, 3.0));
        assert_eq!((load.backlog_tokens, load.kv_use), (200.0, 0.0));
    }

    #[test]
    fn requests_of_others_stay_and_own_ones_follow_their_count() {
        let report = polled(0.0, 10.0, own(4, 0));
        assert_eq!(requests(&report, own(4, 0)), (0.0, 10.0));
        assert_eq!(requests(&report, own(0, 0)), (0.0, 6.0));
        assert_eq!(requests(&report, own(9, 5)), (5.0, 10.0));
    }

    #[test]
    fn own_requests_that_had_not_arrived_are_no_negative_load() {
        let report = polled(0.0, 1.0, own(4, 4));
        assert_eq!(requests(&report, own(4, 4)), (0.0, 4.0));
    }

    #[test]
    fn waiting_requests_are_split_between_own_and_foreign_ones() {
        let report = polled(5.0, 8.0, own(2, 2));
        assert_eq!(requests(&report, own(2, 2)), (5.0, 8.0));
        assert_eq!(requests(&report, own(2, 0)), (3.0, 10.0));
        let load = load(Some(&report), own(2, 2), 1000.0);
        assert_eq!(load.backlog_tokens, 3_200.0);
    }

    #[test]
    fn prompts_sent_since_the_report_use_kv() {
        let mut report = polled(0.0, 0.0, Own::default());
        report.reported.kv_use = Some(0.5);
        let sent = Own {
            begun: 400,
            ended: 100,
            ..Own::default()
        };
        assert_eq!(load(Some(&report), sent, 0.0).kv_use, 0.5);
        report.reported.kv_tokens = Some(1000.0);
        assert_eq!(load(Some(&report), sent, 0.0).kv_use, 0.8);
        let full = Own {
            begun: 4000,
            ..sent
        };
        assert_eq!(load(Some(&report), full, 0.0).kv_use, 1.0);
    }
}
