//! Thread counts, sizes and times of the mover.

use std::time::Duration;

use super::queue::Lane;

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Threads that load and store.
    pub(crate) io_threads: usize,
    /// Threads of a lane that may hang in calls before no more replace them.
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
    pub(crate) fn new(io_threads: usize, stall: Duration) -> Self {
        Self {
            io_threads: io_threads.max(1),
            abandoned: 16,
            stall,
            tick: Duration::from_secs(1),
            copy_threads: 2,
            piece: 16 << 20,
            watch: (stall / 10).clamp(Duration::from_millis(10), Duration::from_millis(500)),
        }
    }

    /// Stores that may run at once: a load that comes finds a thread.
    pub(crate) fn stores(&self) -> usize {
        (self.io_threads - 1).max(1)
    }

    pub(crate) fn threads(&self, lane: Lane) -> usize {
        match lane {
            Lane::Io => self.io_threads,
            Lane::Probe => 1,
        }
    }
}
