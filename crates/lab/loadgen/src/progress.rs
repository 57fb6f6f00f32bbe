//! Counters of a running load, for its progress display.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Numbers of requests and of what they received; `added` = `open` + `completed` + `failed` +
/// waiting requests.
#[derive(Debug, Default)]
pub struct Progress {
    pub added: AtomicU64,
    pub sent: AtomicU64,
    pub open: AtomicU64,
    pub completed: AtomicU64,
    pub failed: AtomicU64,
    /// Number of events received; those of a response count from its first one with output.
    pub events: AtomicU64,
    /// Number of bytes received in response bodies.
    pub bytes: AtomicU64,
}

impl Progress {
    pub(crate) fn note(&self, events: usize, bytes: usize) {
        self.events.fetch_add(events as u64, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}
