//! Rate limits of a key: concurrent requests, and a token bucket.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Deserialize;

/// Limits of a key; `None`: unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RateLimits {
    pub max_concurrent_requests: Option<u32>,
    /// Prompt and output tokens; the burst size is one minute's worth.
    pub tokens_per_minute: Option<u32>,
}

/// Current usage of a key.
#[derive(Debug)]
pub struct KeyUse {
    state: Mutex<BucketState>,
}

#[derive(Debug)]
struct BucketState {
    running: u32,
    /// Token bucket as a debt: tokens used and not yet refilled. A request is admitted while the
    /// debt is below the limit and is charged afterwards, because the length of its response is
    /// unknown at admission.
    debt: f64,
    since: Instant,
}

/// Reason that a request was rate limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimited {
    /// Name of the reached limit; `most` is its value.
    pub limit: &'static str,
    pub most: u32,
    /// Seconds until the next request may be admitted.
    pub retry_after_s: u32,
}

/// Counts one request in flight against its key; dropped when the request has ended.
#[derive(Debug)]
pub struct KeyPermit {
    usage: Arc<KeyUse>,
}

impl KeyUse {
    pub fn new(now: Instant) -> Self {
        Self {
            state: Mutex::new(BucketState {
                running: 0,
                debt: 0.0,
                since: now,
            }),
        }
    }

    /// Admits a request.
    ///
    /// # Errors
    /// The limit that the key has reached.
    pub fn admit(
        self: &Arc<Self>,
        limits: &RateLimits,
        now: Instant,
    ) -> Result<KeyPermit, RateLimited> {
        let mut state = self.state();
        if let Some(rate) = limits.tokens_per_minute {
            state.pay(rate, now);
            let over = state.debt - f64::from(rate);
            if over >= 0.0 {
                let seconds = (over + 1.0) * 60.0 / f64::from(rate.max(1));
                return Err(RateLimited {
                    limit: "tokens_per_minute",
                    most: rate,
                    retry_after_s: seconds.ceil().min(3600.0) as u32,
                });
            }
        }
        match limits.max_concurrent_requests {
            Some(most) if state.running >= most => Err(RateLimited {
                limit: "max_concurrent_requests",
                most,
                retry_after_s: 1,
            }),
            _ => {
                state.running += 1;
                Ok(KeyPermit {
                    usage: self.clone(),
                })
            }
        }
    }

    /// Charges tokens of a prompt or a response.
    pub fn spend(&self, tokens: u32) {
        self.state().debt += f64::from(tokens);
    }

    /// Refunds tokens that an estimate overcharged.
    pub fn give_back(&self, tokens: u32) {
        let mut state = self.state();
        state.debt = (state.debt - f64::from(tokens)).max(0.0);
    }

    fn state(&self) -> MutexGuard<'_, BucketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BucketState {
    fn pay(&mut self, rate: u32, now: Instant) {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        self.debt = (self.debt - seconds * f64::from(rate) / 60.0).max(0.0);
        self.since = now;
    }
}

impl Drop for KeyPermit {
    fn drop(&mut self) {
        self.usage.state().running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn requests_at_once_are_limited_and_end_with_their_permits() {
        let now = Instant::now();
        let usage = Arc::new(KeyUse::new(now));
        let limits = RateLimits {
            max_concurrent_requests: Some(2),
            ..RateLimits::default()
        };
        let first = usage.admit(&limits, now).unwrap();
        let _second = usage.admit(&limits, now).unwrap();
        let refused = usage.admit(&limits, now).unwrap_err();
        assert_eq!(
            (refused.limit, refused.most),
            ("max_concurrent_requests", 2)
        );
        drop(first);
        usage.admit(&limits, now).unwrap();
        let unlimited = RateLimits::default();
        usage.admit(&unlimited, now).unwrap();
    }

    #[test]
    fn tokens_are_made_good_by_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let usage = Arc::new(KeyUse::new(start));
        let limits = RateLimits {
            tokens_per_minute: Some(600),
            ..RateLimits::default()
        };
        usage.admit(&limits, start).unwrap();
        usage.spend(900);
        let refused = usage.admit(&limits, at(0)).unwrap_err();
        assert_eq!((refused.most, refused.retry_after_s), (600, 31));
        assert!(usage.admit(&limits, at(30)).is_err());
        usage.admit(&limits, at(31)).unwrap();
        // An idle hour saves no more than one minute's worth of tokens.
        usage.admit(&limits, at(3600)).unwrap();
        usage.spend(600);
        assert!(usage.admit(&limits, at(3600)).is_err());
        usage.give_back(1);
        usage.admit(&limits, at(3600)).unwrap();
        // tokens that time has already refilled are not refunded again
        usage.give_back(10_000);
        usage.spend(599);
        usage.admit(&limits, at(3600)).unwrap();
        usage.spend(1);
        assert!(usage.admit(&limits, at(3600)).is_err());
    }
}
