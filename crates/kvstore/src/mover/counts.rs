//! Counters of a tier since the start.

use std::time::Duration;

use serde::Serialize;

use super::queue::WorkKind;

/// Movements of one kind that were done.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Done {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// Time of the movements alone.
    pub(crate) seconds: f64,
    /// Time in the queue.
    pub(crate) waited: f64,
}

impl Done {
    pub(crate) fn add(&mut self, bytes: u64, took: Duration, waited: Duration) {
        self.count += 1;
        self.bytes += bytes;
        self.seconds += took.as_secs_f64();
        self.waited += waited.as_secs_f64();
    }
}

/// Counters of a tier; names are those of the report.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Counts {
    pub(crate) loads: Done,
    pub(crate) stores: Done,
    pub(crate) probes: Done,
    pub(crate) removals: Done,
    /// Loads of missing parts.
    pub(crate) missing: u64,
    /// Loads of damaged parts.
    pub(crate) damaged: u64,
    /// Stores for which there was no room.
    pub(crate) full: u64,
    /// Calls that failed otherwise.
    pub(crate) failed: u64,
    /// Calls that took too long.
    pub(crate) stalled: u64,
    /// Transfers that were refused because every thread hangs in a call.
    pub(crate) refused: u64,
    /// Transfers that were cancelled before they began.
    pub(crate) cancelled: u64,
    /// The last failure.
    pub(crate) last_error: String,
}

impl Counts {
    pub(crate) fn done(&mut self, kind: WorkKind) -> &mut Done {
        match kind {
            WorkKind::Load => &mut self.loads,
            WorkKind::Store => &mut self.stores,
            WorkKind::Probe => &mut self.probes,
            WorkKind::Remove => &mut self.removals,
        }
    }
}
