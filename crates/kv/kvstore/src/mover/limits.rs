//! Thread counts, sizes and times of the mover.

use std::time::Duration;

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Threads that load and store.
    pub(crate) io_threads: usize,
    /// Threads that may hang in calls before no more replace them: of probes, and of the rest.
    pub(crate) abandoned: usize,
    /// How long a call may take.
    pub(crate) stall: Duration,
    /// Time between two rounds of upkeep.
    pub(crate) tick: Duration,
    /// Period of the watchdog.
    pub(crate) watch: Duration,
    /// Threads that copy large transfers of the RAM tier. One reached 21 GB/s where two reached 33,
    /// beside nothing else (AMD EPYC, 2 cores).
    pub(crate) copy_threads: usize,
    /// Bytes of a RAM store between which waiting loads run.
    pub(crate) piece: usize,
}

impl Limits {
    /// Stores that may run at once: a load that comes finds a thread.
    pub(crate) fn stores(&self) -> usize {
        (self.io_threads - 1).max(1)
    }

    /// Calls of probes, or of other kinds, that may run at once.
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
