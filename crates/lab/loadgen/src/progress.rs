//! Counts of a running load.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Counts of a running load; `added` = `open` + `completed` + `failed` + waiting requests.
#[derive(Debug, Default)]
pub struct Progress {
    pub added: AtomicU64,
    pub sent: AtomicU64,
    pub open: AtomicU64,
    pub completed: AtomicU64,
    pub failed: AtomicU64,
    /// Events from the first one with output on.
    pub events: AtomicU64,
    /// Body bytes received.
    pub bytes: AtomicU64,
}

impl Progress {
    pub(crate) fn note(&self, events: usize, bytes: usize) {
        self.events.fetch_add(events as u64, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}
