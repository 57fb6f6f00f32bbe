//! Counters of one engine's timeline, for the engine's metrics page.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use penstock_http::Page;
use tracing::warn;

/// Number of steps, and of slips: moments at which the host was too slow for the model, so that the
/// timeline was moved to the present.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    steps: AtomicU64,
    slips: AtomicU64,
    slipped_us: AtomicU64,
    reported: bool,
}

impl Counters {
    /// Counters of an engine without a metrics page: its slips are logged.
    pub(crate) fn reported() -> Self {
        Self {
            reported: true,
            ..Self::default()
        }
    }

    /// Whether slips are logged.
    pub(crate) fn reports(&self) -> bool {
        self.reported
    }

    pub(crate) fn step(&self, number: u64) {
        self.steps.store(number, Relaxed);
    }

    pub(crate) fn slipped(&self, by: Duration) {
        self.slips.fetch_add(1, Relaxed);
        self.slipped_us.fetch_add(by.as_micros() as u64, Relaxed);
        if self.reported {
            warn!("the host is {by:?} behind the model; the timeline was moved");
        }
    }

    #[cfg(test)]
    pub(crate) fn slips(&self) -> u64 {
        self.slips.load(Relaxed)
    }

    /// Sum of all slips in seconds.
    pub(crate) fn slipped_seconds(&self) -> f64 {
        self.slipped_us.load(Relaxed) as f64 / 1e6
    }

    /// Lines that are added to the server's metrics page.
    pub(crate) fn page(&self, labels: &str) -> String {
        let mut page = Page::new(labels);
        let (steps, slips) = (self.steps.load(Relaxed), self.slips.load(Relaxed));
        page.counter(
            "penstock:sim_steps_total",
            "Steps of the simulated engine.",
            steps,
        );
        page.counter(
            "penstock:sim_slips_total",
            "Times that the host was too slow for the model.",
            slips,
        );
        page.counter(
            "penstock:sim_slipped_seconds_total",
            "Time that the timeline was moved by.",
            self.slipped_seconds(),
        );
        page.out
    }
}
