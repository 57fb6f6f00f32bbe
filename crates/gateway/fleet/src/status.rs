//! State of each replica for operators: load and health, with reasons.

use std::sync::Arc;
use std::time::Duration;

use penstock_routing::{Condition, Pace};

use crate::breaker::BreakerState;
use crate::load::Polled;
use crate::shared::FleetState;
use crate::snapshot::Entry;

/// Source of the figures of a replica's load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadSource {
    /// Lines that the replica sends at each step.
    Pushed,
    /// The replica's metrics page.
    Polled,
    /// No fresh report: only the requests of this gateway count.
    None,
}

impl LoadSource {
    /// The source as one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pushed => "pushed",
            Self::Polled => "polled",
            Self::None => "none",
        }
    }
}

/// The last failure at a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastError {
    pub ago: Duration,
    /// One line, truncated.
    pub message: Arc<str>,
}

/// The load of a replica, in requests, tokens and shares of 1.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadStatus {
    pub source: LoadSource,
    /// Age of the last report, however old; `None` before the first.
    pub age: Option<Duration>,
    /// Kind of engine, such as `vllm`, by the names of its metrics.
    pub engine: Option<&'static str>,
    pub running: f32,
    pub waiting: f32,
    pub backlog_tokens: f32,
    /// Share of its KV blocks in use; `None`: not reported.
    pub kv_use: Option<f32>,
    pub kv_tokens: Option<f32>,
}

/// One replica.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaStatus {
    pub name: Arc<str>,
    pub address: Arc<str>,
    /// `None` while unknown.
    pub models: Option<Arc<[Arc<str>]>>,
    pub condition: Condition,
    /// Reason why the replica gets no requests, or fewer; `None` if it is ready.
    pub reason: Option<String>,
    pub breaker: BreakerState,
    pub load: LoadStatus,
    /// `None` until enough responses have been measured.
    pub pace: Option<Pace>,
    /// This gateway's requests in flight at the replica.
    pub in_flight: u32,
    pub picks: u64,
    pub errors: u64,
    /// Output tokens of streams through this gateway in the last ten seconds, per second.
    pub output_tokens_per_s: f64,
    /// Number of times that the replica's process ended or was replaced.
    pub restarts: u32,
    pub last_error: Option<LastError>,
}

/// The replicas of a fleet, in the order of their ids.
pub(crate) fn statuses(shared: &FleetState) -> Vec<ReplicaStatus> {
    let snapshot = shared.snapshot();
    snapshot
        .entries
        .iter()
        .map(|one| status(shared, one))
        .collect()
}

fn status(shared: &FleetState, entry: &Entry) -> ReplicaStatus {
    let (now, member) = (shared.now(), &entry.member);
    let live = &member.live;
    let condition = live.condition();
    let (tokens, own) = (live.output_tokens(), live.own());
    member.with(|record| ReplicaStatus {
        name: entry.target.name.clone(),
        address: entry.target.address.clone(),
        models: entry.models.clone(),
        condition,
        reason: record.standing.why(condition, now, &record.reason),
        breaker: record.standing.breaker(now),
        load: load_of(shared, entry, now),
        pace: (entry.pace != Pace::default()).then_some(entry.pace),
        in_flight: own.in_flight,
        picks: live.picks(),
        errors: live.errors(),
        output_tokens_per_s: record.output.per_second(now, tokens),
        restarts: member.restarts(),
        last_error: record.last_error.as_ref().map(|(at, message)| LastError {
            ago: now.saturating_sub(*at),
            message: message.clone(),
        }),
    })
}

fn load_of(shared: &FleetState, entry: &Entry, now: Duration) -> LoadStatus {
    let (load, stale) = (shared.load(entry), shared.stale());
    let fresh = |report: &Polled| now.saturating_sub(report.at) <= stale;
    let pushed = entry.member.pushed.load();
    let source = match (pushed.as_deref(), entry.polled.as_deref()) {
        (Some(pushed), _) if fresh(pushed) => LoadSource::Pushed,
        (_, Some(polled)) if fresh(polled) => LoadSource::Polled,
        _ => LoadSource::None,
    };
    entry.with_latest(|latest| {
        let is_known = source != LoadSource::None;
        let reported = latest.map(|latest| &latest.reported);
        LoadStatus {
            source,
            age: latest.map(|latest| now.saturating_sub(latest.at)),
            engine: reported.map(|one| one.engine.trim_end_matches([':', '_'])),
            running: load.running,
            waiting: load.waiting,
            backlog_tokens: load.backlog_tokens,
            kv_use: reported
                .and_then(|one| one.kv_use)
                .filter(|_| is_known)
                .map(|_| load.kv_use),
            kv_tokens: reported.and_then(|one| one.kv_tokens),
        }
    })
}
