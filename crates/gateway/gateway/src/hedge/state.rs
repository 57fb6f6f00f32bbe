//! State and counters of a pool's hedging.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::hedge::HedgeSettings;

/// Number of recent streams that are kept, and the minimum number for a percentile.
const RECENT: usize = 256;
const ENOUGH: usize = 32;
/// Capacity of the budget, a token bucket: maximum number of second attempts in a burst.
const MOST_SAVED: f64 = 10.0;

/// Outcome of a request with two attempts, or the reason why there was no second one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hedge {
    /// The second replica responded first.
    Won,
    /// The first replica responded first, or the second one failed.
    Lost,
    Budget,
    Saturated,
    NoReplica,
    /// The request is not a stream, is too large, or has side effects.
    Request,
}

pub(crate) const WORDS: [&str; 6] = [
    "won",
    "lost",
    "budget",
    "saturated",
    "no_replica",
    "request",
];

/// The hedging of one pool.
#[derive(Debug, Default)]
pub(crate) struct Hedging {
    settings: ArcSwapOption<HedgeSettings>,
    state: Mutex<HedgeState>,
    counts: [AtomicU64; WORDS.len()],
}

#[derive(Debug, Default)]
struct HedgeState {
    /// Tokens in the bucket: number of second attempts that are possible now.
    saved: f64,
    /// Times in seconds from the request to the start of the response, for recent streams, oldest
    /// first.
    recent: VecDeque<f32>,
}

impl Hedging {
    pub(crate) fn new(settings: Option<HedgeSettings>) -> Self {
        let hedging = Self::default();
        hedging.set(settings);
        hedging
    }

    /// Replaces the settings for new requests.
    pub(crate) fn set(&self, settings: Option<HedgeSettings>) {
        self.settings.store(settings.map(std::sync::Arc::new));
    }

    pub(crate) fn settings(&self) -> Option<HedgeSettings> {
        self.settings.load().as_deref().copied()
    }

    /// Counts one more request, which adds its share to the budget. Returns the delay before the
    /// second attempt; `None`: no second attempt.
    pub(crate) fn patience(&self, settings: &HedgeSettings) -> Option<Duration> {
        let mut state = self.state();
        state.saved = (state.saved + settings.share).min(MOST_SAVED);
        let seconds = match (settings.after_ms, settings.percentile) {
            (Some(ms), _) => ms / 1000.0,
            (_, Some(share)) => f64::from(state.percentile(share)?),
            _ => return None,
        };
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Takes a token for one second attempt; returns false if the budget is empty.
    pub(crate) fn take(&self) -> bool {
        let mut state = self.state();
        // tolerates rounding errors in the sum of shares
        let has = state.saved >= 1.0 - 1e-9;
        state.saved -= f64::from(u8::from(has));
        has
    }

    /// Records the time from a request to the start of its stream.
    pub(crate) fn began(&self, after: Duration) {
        let mut state = self.state();
        if state.recent.len() >= RECENT {
            state.recent.pop_front();
        }
        state.recent.push_back(after.as_secs_f32());
    }

    pub(crate) fn count(&self, hedge: Hedge) {
        self.counts[hedge as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts in the order of [`WORDS`].
    pub(crate) fn counts(&self) -> [u64; WORDS.len()] {
        std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed))
    }

    fn state(&self) -> MutexGuard<'_, HedgeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HedgeState {
    /// The percentile `share` of the recent times to the start of a stream; `None` if there are too
    /// few samples.
    fn percentile(&self, share: f64) -> Option<f32> {
        if self.recent.len() < ENOUGH {
            return None;
        }
        let mut recent: Vec<f32> = self.recent.iter().copied().collect();
        let at = ((recent.len() - 1) as f64 * share).round() as usize;
        let (_, found, _) = recent.select_nth_unstable_by(at, f32::total_cmp);
        Some(*found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> HedgeSettings {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn second_attempts_are_a_share_of_the_requests_and_few_are_saved_up() {
        let hedging = Hedging::default();
        let settings = settings(r#"{"after_ms":5,"share":0.1}"#);
        let mut taken = 0;
        for request in 1..=1000 {
            let patience = hedging.patience(&settings);
            assert_eq!(patience, Some(Duration::from_millis(5)));
            taken += u32::from(hedging.take());
            assert!(taken <= request / 10);
        }
        assert_eq!(taken, 100);
        for _ in 0..1000 {
            hedging.patience(&settings);
        }
        let saved = std::iter::from_fn(|| hedging.take().then_some(())).count();
        assert_eq!(saved, MOST_SAVED as usize);
    }

    #[test]
    fn a_percentile_is_that_of_recent_streams() {
        let hedging = Hedging::default();
        let settings = settings(r#"{"percentile":0.9}"#);
        for ms in 0..ENOUGH {
            assert_eq!(hedging.patience(&settings), None);
            hedging.began(Duration::from_millis(ms as u64));
        }
        for ms in 0..=100 {
            hedging.began(Duration::from_millis(1000 + ms));
        }
        // 133 streams, numbered from 0: the 0.9 percentile is number 119
        let found = hedging.patience(&settings).unwrap();
        assert!(
            found.abs_diff(Duration::from_millis(1087)) < Duration::from_millis(1),
            "{found:?}"
        );
        for _ in 0..RECENT {
            hedging.began(Duration::from_secs(2));
        }
        assert_eq!(hedging.patience(&settings), Some(Duration::from_secs(2)));
    }

    #[test]
    fn wrong_settings_are_named() {
        for (text, wanted) in [
            ("{}", Some("one of after_ms and percentile")),
            (
                r#"{"after_ms":5,"percentile":0.9}"#,
                Some("one of after_ms and percentile"),
            ),
            (
                r#"{"percentile":0.1}"#,
                Some("hedge.percentile is 0.1; 0.5 to 0.999"),
            ),
            (r#"{"after_ms":0}"#, Some("hedge.after_ms is 0; 1 to")),
            (
                r#"{"after_ms":9,"share":2}"#,
                Some("hedge.share is 2; 0 to 1"),
            ),
            (r#"{"after_ms":9}"#, None),
        ] {
            let found = settings(text).complaint();
            assert_eq!(found.is_some(), wanted.is_some(), "{text}");
            assert!(
                found
                    .unwrap_or_default()
                    .contains(wanted.unwrap_or_default()),
                "{text}"
            );
        }
    }
}
