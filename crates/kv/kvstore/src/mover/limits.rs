//! Thread counts, sizes and time-outs of the mover.

use std::time::Duration;

/// Limits of the mover's queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Threads that load and store.
    pub(crate) io_threads: usize,
    /// Maximum number of abandoned calls that may be replaced by new threads. Probes and other
    /// calls are counted separately.
    pub(crate) abandoned: usize,
    /// Time after which a call of a tier is abandoned.
    pub(crate) stall: Duration,
    /// Interval between calls of `Tier::tick`.
    pub(crate) tick: Duration,
    /// Interval at which the watchdog looks for calls that exceed their time-out.
    pub(crate) watch: Duration,
    /// Threads for large copies of the RAM tier. Measured with no other load: 21 GB/s with one
    /// thread, 33 GB/s with two (AMD EPYC, 2 cores).
    pub(crate) copy_threads: usize,
    /// Bytes that a store to RAM copies without interruption; waiting loads run between two such
    /// pieces.
    pub(crate) piece: usize,
}

impl Limits {
    /// Maximum number of concurrent stores; leaves one thread for loads.
    pub(crate) fn stores(&self) -> usize {
        (self.io_threads - 1).max(1)
    }

    /// Maximum number of concurrent calls, of probes or of other kinds.
    pub(crate) fn threads(&self, probes: bool) -> usize {
        if probes { 1 } else { self.io_threads }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            io_threads: 4,
            abandoned: 16,
            stall: Duration::from_secs(5),
            tick: Duration::from_secs(1),
            watch: Duration::from_millis(500),
            copy_threads: 2,
            piece: 16 << 20,
        }
    }
}
