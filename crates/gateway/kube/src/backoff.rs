//! Exponential backoff with a maximum and jitter. The jitter keeps gateways that lost the same
//! server from retrying at the same time.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
        }
    }

    /// Resets the backoff after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    /// The next pause: random between half of the current maximum and the maximum. The maximum
    /// doubles with each call.
    pub(crate) fn pause(&mut self) -> Duration {
        let bound = self.next;
        self.next = (bound * 2).min(self.most);
        bound.mul_f64(0.5 + 0.5 * chance())
    }

    /// The longest possible pause; jitter subtracts up to half of it.
    pub(crate) fn long_pause(&self) -> Duration {
        self.most.mul_f64(0.5 + 0.5 * chance())
    }
}

/// Random number in [0, 1).
pub(crate) fn chance() -> f64 {
    (RandomState::new().hash_one(0) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_with_jitter() {
        let second = Duration::from_secs(1);
        for _ in 0..50 {
            let mut backoff = Backoff::new(second, second * 5);
            for bound in [1, 2, 4, 5, 5] {
                let pause = backoff.pause();
                assert!(pause >= second * bound / 2 && pause <= second * bound);
            }
            backoff.reset();
            assert!(backoff.pause() <= second);
        }
        let mut backoff = Backoff::new(second, second);
        assert_ne!(backoff.pause(), backoff.pause());
    }
}
