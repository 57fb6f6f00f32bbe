//! A view of the replicas and their load at one moment, the input of a routing decision.

use std::sync::Arc;
use std::time::Duration;

use penstock_routing::{Condition, Replica, TIERS};

use crate::load::{Load, Polled, Reported, load};
use crate::snapshot::{Entry, Snapshot};

/// The replicas at one moment.
#[derive(Debug, Clone)]
pub struct View {
    /// In the order of their ids.
    pub replicas: Vec<Replica>,
    snapshot: Arc<Snapshot>,
    now: Duration,
    stale: Duration,
}

impl View {
    pub(crate) fn new(
        snapshot: Arc<Snapshot>,
        now: Duration,
        stale: Duration,
        foreign_tokens: f32,
    ) -> Self {
        let one = |entry: &Entry| replica(entry, now, stale, foreign_tokens);
        Self {
            replicas: snapshot.entries.iter().map(one).collect(),
            snapshot,
            now,
            stale,
        }
    }

    /// URL of the replica at index `place` of `replicas`: `http://host:port`.
    ///
    /// # Panics
    /// `place` is out of range.
    pub fn url(&self, place: usize) -> &Arc<str> {
        &self.snapshot.entries[place].target.base
    }

    /// Short name of the replica at index `place`: its label `name`, else a hash of its address.
    ///
    /// # Panics
    /// `place` is out of range.
    pub fn name(&self, place: usize) -> &Arc<str> {
        &self.snapshot.entries[place].target.name
    }

    /// Whether any replica accepts requests.
    pub fn one_takes_requests(&self) -> bool {
        let mut conditions = self.replicas.iter().map(|one| one.condition);
        conditions.any(Condition::takes_requests)
    }

    /// Whether the replica at `place` recently refused a request, and has at least as many of this
    /// gateway's requests in flight as at the time of the refusal.
    ///
    /// # Panics
    /// `place` is out of range.
    pub fn is_full(&self, place: usize) -> bool {
        self.snapshot.entries[place].member.live.is_full(self.now)
    }

    /// Number of waiting requests in the last report of the replica at `place`; `None` if there is
    /// no report or it is stale.
    ///
    /// # Panics
    /// `place` is out of range.
    pub fn reported_waiting(&self, place: usize) -> Option<f32> {
        let entry = &self.snapshot.entries[place];
        let waiting = |report: &Polled| report.reported.waiting;
        entry.with_fresh(self.now, self.stale, |report| report.map(waiting))
    }

    /// Age of the last report of the replica at `place`; `None` before the first report.
    ///
    /// # Panics
    /// `place` is out of range.
    pub fn report_age(&self, place: usize) -> Option<Duration> {
        let age = |report: &Polled| self.now.saturating_sub(report.at);
        self.snapshot.entries[place].with_latest(|report| report.map(age))
    }

    /// KV cache capacity in tokens that the replica at `place` last reported.
    ///
    /// # Panics
    /// `place` is out of range.
    pub fn kv_tokens(&self, place: usize) -> Option<f32> {
        let polled = self.snapshot.entries[place].polled.as_ref();
        polled.and_then(|polled| polled.reported.kv_tokens)
    }

    /// Number of times the process of the replica at `place` ended or was replaced; each time its
    /// cache is lost.
    ///
    /// # Panics
    /// `place` is out of range.
    pub fn restarts(&self, place: usize) -> u32 {
        self.snapshot.entries[place].member.restarts()
    }

    /// Names of the models of the replica at `place`; `None` while unknown.
    ///
    /// # Panics
    /// `place` is out of range.
    pub fn models(&self, place: usize) -> Option<&[Arc<str>]> {
        self.snapshot.entries[place].models.as_deref()
    }
}

fn replica(entry: &Entry, now: Duration, stale: Duration, foreign_tokens: f32) -> Replica {
    entry.with_fresh(now, stale, |report| {
        let load = load(report, entry.member.live.own(), foreign_tokens);
        joined(entry, report.map(|report| &report.reported), load)
    })
}

fn joined(entry: &Entry, reported: Option<&Reported>, load: Load) -> Replica {
    let adapters = reported.map(|reported| &reported.adapters);
    Replica {
        id: entry.id,
        address: entry.target.address.clone(),
        condition: entry.member.live.condition(),
        waiting: load.waiting,
        running: load.running,
        kv_use: load.kv_use,
        backlog_tokens: load.backlog_tokens,
        pace: entry.pace,
        adapters: adapters.cloned().unwrap_or_default(),
        max_adapters: reported.map_or(0, |reported| reported.max_adapters),
        load_s: reported.map_or([None; TIERS], |reported| reported.load_s),
        labels: entry.target.labels.clone(),
    }
}
