//! Immutable snapshot of all replicas and their polled state. It is replaced as a whole.

use std::sync::Arc;
use std::time::Duration;

use penstock_routing::{Pace, ReplicaId};

use crate::backend::Target;
use crate::load::{Load, Polled, load};
use crate::member::Member;

/// A replica in the snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub id: ReplicaId,
    pub target: Arc<Target>,
    /// The replica's mutable state, shared by all snapshots.
    pub member: Arc<Member>,
    pub polled: Option<Arc<Polled>>,
    /// Names of its models; `None`: unknown.
    pub models: Option<Arc<[Arc<str>]>>,
    pub pace: Pace,
}

impl Entry {
    /// `cold`: whether the replica joins a running fleet.
    pub(crate) fn new(id: ReplicaId, target: Target, cold: bool) -> Self {
        Self {
            id,
            member: Arc::new(Member::new(target.base.clone(), cold)),
            target: Arc::new(target),
            polled: None,
            models: None,
            pace: Pace::default(),
        }
    }

    /// Placeholder for a replica that is no longer in the current snapshot.
    pub(crate) fn gone(id: ReplicaId) -> Self {
        let target = Target {
            base: Arc::from(""),
            address: Arc::from(""),
            name: Arc::from(""),
            labels: Arc::default(),
        };
        Self::new(id, target, false)
    }

    /// Class of the replica: the label `class`, else the engine. A replica uses the throughput
    /// estimate of its class until it has its own.
    pub(crate) fn class(&self) -> &str {
        let label = self.target.labels.iter().find(|(key, _)| &**key == "class");
        let engine = self
            .polled
            .as_ref()
            .map_or("", |polled| polled.reported.engine);
        label.map_or(engine, |(_, value)| value)
    }

    /// Current load. A report older than `stale` is ignored.
    pub(crate) fn load(&self, now: Duration, stale: Duration, foreign_tokens: f32) -> Load {
        self.with_fresh(now, stale, |report| {
            load(report, self.member.live.own(), foreign_tokens)
        })
    }

    /// Calls `with` with the latest report, or `None` if it is older than `stale`.
    pub(crate) fn with_fresh<T>(
        &self,
        now: Duration,
        stale: Duration,
        with: impl FnOnce(Option<&Polled>) -> T,
    ) -> T {
        self.with_latest(|report| {
            with(report.filter(|report| now.saturating_sub(report.at) <= stale))
        })
    }

    /// Calls `with` with the latest report, whether polled or pushed.
    pub(crate) fn with_latest<T>(&self, with: impl FnOnce(Option<&Polled>) -> T) -> T {
        let pushed = self.member.pushed.load();
        let both = [self.polled.as_deref(), pushed.as_deref()];
        with(both.into_iter().flatten().max_by_key(|report| report.at))
    }
}

/// All replicas, by id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub entries: Vec<Entry>,
}

impl Snapshot {
    pub(crate) fn entry(&self, id: ReplicaId) -> Option<&Entry> {
        let place = self.entries.binary_search_by_key(&id, |entry| entry.id);
        place.ok().map(|place| &self.entries[place])
    }

    pub(crate) fn entry_mut(&mut self, id: ReplicaId) -> Option<&mut Entry> {
        let place = self.entries.binary_search_by_key(&id, |entry| entry.id);
        place.ok().map(|place| &mut self.entries[place])
    }
}
