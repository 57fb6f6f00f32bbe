//! Time, so that tests can have their own.

use std::time::{Duration, Instant};

/// A clock that never goes back.
pub(crate) trait Clock: Send + Sync {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
}

/// The machine's.
pub(crate) struct Monotonic(Instant);

impl Monotonic {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
