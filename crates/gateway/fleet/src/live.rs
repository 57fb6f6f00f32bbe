//! Lock-free counters of this gateway's requests in flight at one replica.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use penstock_routing::Condition;

/// Counters of one replica. Each is exact, but a read of several is not atomic.
#[derive(Debug, Default)]
pub(crate) struct Live {
    in_flight: AtomicU32,
    /// Requests in flight without a first token.
    prefilling: AtomicU32,
    /// Uncached prompt tokens of the requests without a first token.
    backlog: AtomicU64,
    /// Prompt tokens of all requests that began since the fleet started.
    begun: AtomicU64,
    /// Prompt tokens of all requests that began and ended between the same two polls, so that no
    /// report shows them.
    ended: AtomicU64,
    /// Number of the current poll period (the time between two polls).
    epoch: AtomicU32,
    /// A [`Condition`], packed into 64 bits.
    condition: AtomicU64,
    /// The next request is the trial of a half-open circuit breaker.
    trial: AtomicBool,
    /// Number of requests in flight when the replica last refused one, and the time until which
    /// this number is a limit, in nanoseconds since the fleet started.
    full_with: AtomicU32,
    full_until: AtomicU64,
    /// Totals since the replica joined the fleet: requests sent, requests that it failed or
    /// refused, and output tokens of streams.
    picks: AtomicU64,
    errors: AtomicU64,
    output_tokens: AtomicU64,
}

/// Copy of the counters of this gateway's own requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Own {
    pub in_flight: u32,
    pub prefilling: u32,
    pub backlog: u64,
    pub begun: u64,
    pub ended: u64,
}

impl Live {
    /// Returns the number of the current poll period, for [`Self::end`].
    pub(crate) fn begin(&self, uncached: u64, prompt: u64) -> u32 {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.prefilling.fetch_add(1, Ordering::Relaxed);
        self.backlog.fetch_add(uncached, Ordering::Relaxed);
        self.begun.fetch_add(prompt, Ordering::Relaxed);
        self.picks.fetch_add(1, Ordering::Relaxed);
        self.epoch.load(Ordering::Relaxed)
    }

    pub(crate) fn prefilled(&self, uncached: u64) {
        self.prefilling.fetch_sub(1, Ordering::Relaxed);
        self.backlog.fetch_sub(uncached, Ordering::Relaxed);
    }

    /// Call after [`Self::prefilled`].
    pub(crate) fn end(&self, prompt: u64, epoch: u32) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.epoch.load(Ordering::Relaxed) == epoch {
            self.ended.fetch_add(prompt, Ordering::Relaxed);
        }
    }

    /// Counts a request that the replica failed or refused.
    pub(crate) fn failed(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn output(&self, tokens: u32) {
        self.output_tokens
            .fetch_add(tokens.into(), Ordering::Relaxed);
    }

    pub(crate) fn picks(&self) -> u64 {
        self.picks.load(Ordering::Relaxed)
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(crate) fn output_tokens(&self) -> u64 {
        self.output_tokens.load(Ordering::Relaxed)
    }

    /// Records a refusal, after [`Self::end`]: the replica has no capacity beyond its current
    /// requests.
    pub(crate) fn refused(&self, until: Duration) {
        let has = self.in_flight.load(Ordering::Relaxed);
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.full_with.store(has, Ordering::Relaxed);
        self.full_until.store(until, Ordering::Relaxed);
    }

    /// Whether the replica has at least as many of this gateway's requests as when it refused one.
    pub(crate) fn is_full(&self, now: Duration) -> bool {
        now.as_nanos() < u128::from(self.full_until.load(Ordering::Relaxed))
            && self.in_flight.load(Ordering::Relaxed) >= self.full_with.load(Ordering::Relaxed)
    }

    pub(crate) fn own(&self) -> Own {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        Own {
            in_flight,
            prefilling: self.prefilling.load(Ordering::Relaxed).min(in_flight),
            backlog: self.backlog.load(Ordering::Relaxed),
            begun: self.begun.load(Ordering::Relaxed),
            ended: self.ended.load(Ordering::Relaxed),
        }
    }

    /// Begins a new poll period, after a report.
    pub(crate) fn polled(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn offer_trial(&self, offered: bool) {
        self.trial.store(offered, Ordering::Relaxed);
    }

    /// Claims the trial; true for exactly one request.
    pub(crate) fn take_trial(&self) -> bool {
        // a plain load first: an unconditional swap would take the cache line away from other cores
        self.trial.load(Ordering::Relaxed) && self.trial.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn condition(&self) -> Condition {
        let packed = self.condition.load(Ordering::Relaxed);
        match packed >> 32 {
            0 => Condition::Unhealthy,
            1 => Condition::Ready,
            2 => Condition::Warming(f32::from_bits(packed as u32)),
            3 => Condition::Draining,
            _ => Condition::Ejected,
        }
    }

    pub(crate) fn set_condition(&self, condition: Condition) {
        let packed = match condition {
            Condition::Unhealthy => 0,
            Condition::Ready => 1 << 32,
            Condition::Warming(share) => 2 << 32 | u64::from(share.to_bits()),
            Condition::Draining => 3 << 32,
            Condition::Ejected => 4 << 32,
        };
        self.condition.store(packed, Ordering::Relaxed);
    }
}

impl Own {
    /// The counters of this read, but with the larger `in_flight` and `prefilling` of the two
    /// reads.
    pub(crate) fn most(self, other: Self) -> Self {
        Self {
            in_flight: self.in_flight.max(other.in_flight),
            prefilling: self.prefilling.max(other.prefilling),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_refused_is_full_until_one_of_its_requests_ends() {
        let s = Duration::from_secs;
        let live = Live::default();
        let epoch = live.begin(0, 0);
        live.begin(0, 0);
        live.end(0, epoch);
        assert!(!live.is_full(s(1)));
        live.refused(s(2));
        assert!(live.is_full(s(1)));
        assert!(!live.is_full(s(2)), "it may have room by now");
        live.end(0, epoch);
        assert!(!live.is_full(s(1)));
    }

    #[test]
    fn conditions_are_kept() {
        let live = Live::default();
        assert_eq!(live.condition(), Condition::Unhealthy);
        let all = [
            Condition::Ready,
            Condition::Warming(0.25),
            Condition::Draining,
            Condition::Ejected,
            Condition::Unhealthy,
        ];
        for condition in all {
            live.set_condition(condition);
            assert_eq!(live.condition(), condition);
        }
    }
}
