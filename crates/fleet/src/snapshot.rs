//! The snapshot: what is known of all replicas at one moment. Never changed, only replaced.

use std::sync::Arc;
use std::time::Duration;

use penstock_routing::{Pace, ReplicaId};

use crate::backend::Target;
use crate::live::Live;
use crate::load::Polled;

/// A replica's place in the snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub id: ReplicaId,
    pub target: Arc<Target>,
    /// The only part that changes in place.
    pub live: Arc<Live>,
    pub polled: Option<Arc<Polled>>,
    /// Names of its models; `None`: unknown.
    pub models: Option<Arc<[Arc<str>]>>,
    pub pace: Pace,
}

impl Entry {
    pub(crate) fn new(id: ReplicaId, target: Target) -> Self {
        Self {
            id,
            target: Arc::new(target),
            live: Arc::default(),
            polled: None,
            models: None,
            pace: Pace::default(),
        }
    }

    /// The report, while it is not older than `stale`.
    pub(crate) fn fresh(&self, now: Duration, stale: Duration) -> Option<&Polled> {
        let polled = self.polled.as_deref();
        polled.filter(|polled| now.saturating_sub(polled.at) <= stale)
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
}
