//! Rate of a counter over the last seconds. Pure.

use std::collections::VecDeque;
use std::time::Duration;

/// Period over which the rate is measured.
const WINDOW: Duration = Duration::from_secs(10);
/// Interval between samples.
const SAMPLE: Duration = Duration::from_secs(1);

/// Samples of a counter that never decreases.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    samples: VecDeque<(Duration, u64)>,
}

impl Rate {
    /// Records the counter's value, at most once per [`SAMPLE`].
    pub(crate) fn sample(&mut self, now: Duration, count: u64) {
        let last = self.samples.back().map(|(at, _)| *at);
        if last.is_some_and(|at| now < at + SAMPLE) {
            return;
        }
        self.samples.push_back((now, count));
        // the oldest one may be as old as the window
        while self.samples.len() > 1 && self.samples[1].0 + WINDOW <= now {
            self.samples.pop_front();
        }
    }

    /// Increase per second since the oldest sample; 0 without one.
    pub(crate) fn per_second(&self, now: Duration, count: u64) -> f64 {
        let Some((at, before)) = self.samples.front() else {
            return 0.0;
        };
        let seconds = now.saturating_sub(*at).as_secs_f64();
        match seconds > 0.0 {
            true => count.saturating_sub(*before) as f64 / seconds,
            false => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_ten_seconds() {
        let mut rate = Rate::default();
        assert_eq!(rate.per_second(Duration::from_secs(1), 5), 0.0);
        for tenth in 0..300 {
            let now = Duration::from_millis(100 * tenth);
            // 50 a second for 15 s, then 200
            let count = if tenth < 150 {
                5 * tenth
            } else {
                750 + 20 * (tenth - 150)
            };
            rate.sample(now, count);
            assert!(rate.samples.len() <= 12);
        }
        let now = Duration::from_secs(30);
        assert_eq!(rate.per_second(now, 3750), 200.0);
        // nothing more comes: it falls to 0 within the window
        for second in 31..=41 {
            rate.sample(Duration::from_secs(second), 3750);
        }
        assert_eq!(rate.per_second(Duration::from_secs(41), 3750), 0.0);
    }
}
