//! Outcomes of mirrored requests, and their counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock_http::Histogram;

/// Bounds of histogram buckets, in seconds.
const SECONDS: &[f64] = &[
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0,
];
const TOKENS: &[f64] = &[
    0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0,
];
const CHARACTERS: &[f64] = &[
    0.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 20_000.0,
];
/// Minimum interval between log lines.
const LOG_PAUSE: Duration = Duration::from_secs(1);

/// One of the two responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Primary,
    Mirror,
}

/// Length of the equal part of a choice's two texts, before the first difference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) characters: usize,
    /// Number of events of the primary response with equal text. Engines send one event for each
    /// token, or for a few tokens. A response that is not streamed counts as one event.
    pub(crate) tokens: usize,
}

/// Reason why a sampled request was not mirrored to the end, other than a failure of the mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    InFlight,
    HeldBytes,
    /// The gateway is overloaded or is shutting down.
    Load,
    /// The pool to which the request would be mirrored is saturated.
    Saturated,
    /// The request has side effects, so it must not be computed twice.
    Stored,
    /// The client disconnected, or the primary response failed.
    Primary,
}

pub(crate) const REASONS: [&str; 6] = [
    "in_flight",
    "held_bytes",
    "load",
    "saturated",
    "stored",
    "primary",
];

/// Outcome of a mirrored request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Equal,
    Different(Difference),
    /// The request is neither greedy nor seeded, so its two texts may differ. Only latencies are
    /// measured.
    Uncompared,
    Failed(String),
    Dropped(Reason),
}

pub(crate) const OUTCOMES: [&str; 5] = ["equal", "different", "uncompared", "failed", "dropped"];

/// The mirroring counters of a pool.
#[derive(Debug)]
pub(crate) struct Counts {
    outcomes: [AtomicU64; OUTCOMES.len()],
    reasons: [AtomicU64; REASONS.len()],
    pub(crate) characters: Histogram,
    pub(crate) tokens: Histogram,
    /// Time to first token and total time of both sides in seconds, in the order of [`Side`].
    pub(crate) first: [Histogram; 2],
    pub(crate) whole: [Histogram; 2],
    began: Instant,
    /// Earliest time of the next log line, in milliseconds since `began`.
    next_log: AtomicU64,
}

impl Default for Counts {
    fn default() -> Self {
        let seconds = || [Histogram::new(SECONDS), Histogram::new(SECONDS)];
        Self {
            outcomes: Default::default(),
            reasons: Default::default(),
            characters: Histogram::new(CHARACTERS),
            tokens: Histogram::new(TOKENS),
            first: seconds(),
            whole: seconds(),
            began: Instant::now(),
            next_log: AtomicU64::new(0),
        }
    }
}

impl Counts {
    pub(crate) fn ended(&self, outcome: &Outcome) {
        let at = match outcome {
            Outcome::Equal => 0,
            Outcome::Different(at) => {
                self.characters.observe(at.characters as f64);
                self.tokens.observe(at.tokens as f64);
                1
            }
            Outcome::Uncompared => 2,
            Outcome::Failed(_) => 3,
            Outcome::Dropped(reason) => {
                self.reasons[*reason as usize].fetch_add(1, Ordering::Relaxed);
                4
            }
        };
        self.outcomes[at].fetch_add(1, Ordering::Relaxed);
    }

    /// Records the time to first token of one side.
    pub(crate) fn first(&self, side: Side, after: Duration) {
        self.first[side as usize].observe(after.as_secs_f64());
    }

    /// Records the total latency of one side.
    pub(crate) fn whole(&self, side: Side, after: Duration) {
        self.whole[side as usize].observe(after.as_secs_f64());
    }

    /// Number of requests by outcome and by reason, in the order of [`OUTCOMES`] and [`REASONS`].
    pub(crate) fn all(&self) -> ([u64; OUTCOMES.len()], [u64; REASONS.len()]) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (
            std::array::from_fn(|at| read(&self.outcomes[at])),
            std::array::from_fn(|at| read(&self.reasons[at])),
        )
    }

    /// Limits the rate of log lines: returns true at most once a second.
    pub(crate) fn may_log(&self) -> bool {
        let now = self.began.elapsed().as_millis() as u64;
        let next = now + LOG_PAUSE.as_millis() as u64;
        let due = |at: u64| (at <= now).then_some(next);
        let order = Ordering::Relaxed;
        self.next_log.fetch_update(order, order, due).is_ok()
    }
}
