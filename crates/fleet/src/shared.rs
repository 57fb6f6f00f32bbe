//! What handles, requests and tasks of a fleet share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use penstock_routing::{Condition, ReplicaId};
use tokio::time::Instant;

use crate::Settings;
use crate::backend::Target;
use crate::snapshot::{Entry, Snapshot};

/// Uncached tokens of a prompt, before the first one was seen.
const USUAL_TOKENS: f32 = 512.0;
/// Weight of one more prompt in their mean.
const MEAN_WEIGHT: f32 = 1.0 / 64.0;

/// What handles, requests and tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub settings: Settings,
    start: Instant,
    snapshot: ArcSwap<Snapshot>,
    /// Held while a snapshot is made from its predecessor.
    writer: Mutex<Next>,
    /// Mean of the uncached tokens of own prompts: bits of an f32.
    mean_uncached: AtomicU32,
}

/// Source of ids.
#[derive(Debug, Default)]
struct Next {
    id: u32,
}

impl Shared {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            start: Instant::now(),
            snapshot: ArcSwap::default(),
            writer: Mutex::default(),
            mean_uncached: AtomicU32::new(USUAL_TOKENS.to_bits()),
        }
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Time since the fleet started.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Replaces the snapshot by a changed copy.
    fn change<T>(&self, change: impl FnOnce(&mut Snapshot, &mut Next) -> T) -> T {
        let mut next = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut snapshot = Snapshot::clone(&self.snapshot.load());
        let result = change(&mut snapshot, &mut next);
        self.snapshot.store(Arc::new(snapshot));
        result
    }

    pub(crate) fn replace_members(&self, targets: Vec<Target>) {
        self.change(|snapshot, next| {
            for target in targets {
                let entry = Entry::new(ReplicaId(next.id), target);
                entry.live.set_condition(Condition::Ready);
                snapshot.entries.push(entry);
                next.id += 1;
            }
        });
    }

    /// Mean of the uncached tokens of own prompts.
    pub(crate) fn usual_tokens(&self) -> f32 {
        f32::from_bits(self.mean_uncached.load(Ordering::Relaxed))
    }

    /// Two at once may lose one: it is a mean.
    pub(crate) fn saw_prompt(&self, uncached: f32) {
        let mean = self.usual_tokens();
        let mean = mean + MEAN_WEIGHT * (uncached.clamp(0.0, 1e6) - mean);
        self.mean_uncached.store(mean.to_bits(), Ordering::Relaxed);
    }
}
