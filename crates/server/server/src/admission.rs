//! Admission control: limits the number of requests inside the server (including requests in
//! tokenization) and their expected wait in the queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_api_types::ApiError;
use penstock_wire::{Pooler, TierKinds};

/// Limits of a ready engine, lowered by the server's configuration.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// Context length in tokens.
    pub(crate) max_model_len: u32,
    pub(crate) vocab_size: u32,
    /// Upper bound on admitted engine requests.
    pub(crate) capacity: usize,
    /// Requests that the engine runs concurrently; further admitted requests wait.
    pub(crate) running: usize,
    /// Upper bound on the expected wait of a request at its admission; `None`: unbounded.
    pub(crate) max_wait: Option<Duration>,
    pub(crate) kv_tiers: TierKinds,
    pub(crate) pooler: Pooler,
}

impl Limits {
    /// Returns an error with the first token id outside the vocabulary.
    pub(crate) fn check_tokens(&self, field: &'static str, ids: &[u32]) -> Result<(), ApiError> {
        let size = self.vocab_size;
        let Some(token) = ids.iter().find(|&&token| token >= size) else {
            return Ok(());
        };
        let message = format!("{field} holds token id {token}; the vocabulary has {size} tokens.");
        Err(ApiError::invalid(field, message))
    }
}

/// Counts admitted engine requests.
#[derive(Default, Clone)]
pub(crate) struct AdmissionLimiter {
    inside: Arc<Mutex<Inside>>,
}

/// Permit for one or more engine requests; dropping it releases the slots.
pub(crate) struct AdmissionPermit {
    /// One slot per request, each released on its own.
    pub(crate) slots: Vec<Slot>,
    /// The limits at the time of admission.
    pub(crate) limits: Limits,
}

/// Permit for one engine request, held until the engine has ended it: a request whose client has
/// disconnected may still keep the engine busy.
pub(crate) struct Slot {
    inside: Arc<Mutex<Inside>>,
}

impl AdmissionLimiter {
    /// Admits `count` requests.
    ///
    /// # Errors
    /// The time after which a retry is reasonable, if the capacity would be exceeded or the
    /// expected wait is too long.
    pub(crate) fn acquire(
        &self,
        count: usize,
        limits: Limits,
    ) -> Result<AdmissionPermit, Duration> {
        lock(&self.inside).admit(count, &limits, Instant::now())?;
        let slot = |_| Slot {
            inside: self.inside.clone(),
        };
        Ok(AdmissionPermit {
            slots: (0..count).map(slot).collect(),
            limits,
        })
    }

    /// Number of admitted requests that have not ended.
    pub(crate) fn taken(&self) -> usize {
        lock(&self.inside).taken
    }
}

impl Slot {
    /// Reuses the slot for another engine request of the same client. The throughput estimate
    /// counts one request as ended.
    pub(crate) fn pass_on(&self) {
        lock(&self.inside).pass_on(Instant::now());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.inside).end(Instant::now());
    }
}

fn lock(inside: &Mutex<Inside>) -> MutexGuard<'_, Inside> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Under sustained overload, one request may wait per this many running ones.
const SHARE: usize = 4;

/// Admitted requests and the throughput estimate for the queue. With N requests running at once, a
/// *turn* is the time in which N requests end, so that N waiting requests start. In the first turn
/// of a queue, the time since the queue began is used instead. That underestimates a turn, so a
/// burst may wait longer than expected. An estimate from an earlier queue would be worse: after
/// long requests, it would reject a burst of short ones.
///
/// A burst may wait up to `max_wait`. If arrivals exceed completions turn after turn, the load is a
/// sustained overload, and a longer queue only delays every request. The bound therefore shrinks
/// with the duration of the overload, down to a share of a turn. Closed-loop clients, which send
/// the next request only after the previous one has ended, never cause an overload: arrivals equal
/// completions.
#[derive(Debug, Default)]
struct Inside {
    taken: usize,
    running: usize,
    /// Number of requests that have arrived, including rejected ones.
    come: u64,
    /// Start of the last turn; `None` while the queue is empty.
    turn: Option<Moment>,
    /// Completion times of the requests of the last turn, oldest first.
    ends: VecDeque<Moment>,
    /// Start of the overload. Every turn since then has had more arrivals than completions.
    swamped: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Instant,
    /// Number of requests that had arrived by this instant.
    come: u64,
}

impl Inside {
    fn admit(&mut self, count: usize, limits: &Limits, now: Instant) -> Result<(), Duration> {
        self.running = limits.running.max(1);
        self.come += count.min(limits.capacity) as u64;
        let sum = self.taken.checked_add(count);
        let sum = sum.filter(|sum| *sum <= limits.capacity);
        let wait = self.wait(now);
        let longest = self.longest(limits.max_wait.unwrap_or(Duration::MAX), now);
        match sum {
            Some(sum) if wait <= longest => self.taken = sum,
            _ => return Err(wait),
        }
        self.begin(now);
        Ok(())
    }

    /// Begins a turn if new requests have to wait.
    fn begin(&mut self, now: Instant) {
        if self.taken >= self.running {
            let come = self.come;
            self.turn.get_or_insert(Moment { at: now, come });
        }
    }

    /// Upper bound on the wait of a request that arrives now, at most `most`.
    fn longest(&mut self, most: Duration, now: Instant) -> Duration {
        let whole = self.turn.filter(|_| self.ends.len() >= self.running);
        let ordinary = (self.running + self.running / SHARE + SHARE) as u64;
        if whole.is_none_or(|turn| self.come - turn.come <= ordinary) {
            self.swamped = None;
            return most;
        }
        let since = *self.swamped.get_or_insert(now);
        if self.ahead() <= (self.running / SHARE).max(1) {
            return most;
        }
        most.saturating_sub(now.saturating_duration_since(since))
    }

    /// Number of requests that must end before a new request can run.
    fn ahead(&self) -> usize {
        (self.taken + 1).saturating_sub(self.running)
    }

    fn pass_on(&mut self, now: Instant) {
        self.end(now);
        self.taken += 1;
        self.begin(now);
    }

    /// Expected wait of a request that arrives now.
    fn wait(&self, now: Instant) -> Duration {
        let turn = self.turn.map(|turn| now.saturating_duration_since(turn.at));
        turn.unwrap_or_default()
            .mul_f64(self.ahead() as f64 / self.running.max(1) as f64)
    }

    fn end(&mut self, now: Instant) {
        self.taken = self.taken.saturating_sub(1);
        if self.taken < self.running {
            self.turn = None;
            self.ends.clear();
            return;
        }
        let come = self.come;
        self.ends.push_back(Moment { at: now, come });
        if self.ends.len() > self.running {
            self.turn = self.ends.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(capacity: usize, running: usize) -> Limits {
        Limits {
            capacity,
            running,
            max_wait: Some(10 * SECOND),
            ..Limits::default()
        }
    }

    #[test]
    fn permits_are_bounded_and_come_back() {
        let limiter = AdmissionLimiter::default();
        let limits = limits(3, 3);
        let two = limiter.acquire(2, limits).unwrap();
        assert!(limiter.acquire(2, limits).is_err());
        let one = limiter.acquire(1, limits).unwrap();
        assert_eq!(limiter.taken(), 3);
        let mut two = two;
        two.slots.pop();
        assert_eq!(limiter.taken(), 2);
        drop((two, one));
        assert_eq!(limiter.taken(), 0);
        assert!(limiter.acquire(usize::MAX, limits).is_err());
    }

    #[test]
    fn a_crowd_that_comes_at_once_may_wait() {
        let (mut inside, now) = (Inside::default(), Instant::now());
        for _ in 0..1000 {
            inside.admit(1, &limits(1000, 4), now).unwrap();
        }
        assert_eq!(inside.admit(1, &limits(1000, 4), now), Err(Duration::ZERO));
    }

    /// Simulates a server in which one of `running` requests ends each second, and `comes(second)`
    /// requests arrive. Returns second of arrival and seconds of waiting of each request that was
    /// admitted and started. In the first turn, requests are rejected only for an expected wait of
    /// more than 10 s.
    fn waits(running: usize, seconds: u32, comes: impl Fn(u32) -> usize) -> Vec<(u32, u32)> {
        let (mut inside, begin) = (Inside::default(), Instant::now());
        let limits = limits(1000, running);
        let (mut queue, mut waits) = (VecDeque::new(), Vec::new());
        for second in 0..seconds {
            let now = begin + second * SECOND;
            if second > 0 && inside.taken >= running {
                inside.end(now);
                if let Some(came) = queue.pop_front() {
                    waits.push((came, second - came));
                }
            }
            for _ in 0..comes(second) {
                match inside.admit(1, &limits, now) {
                    Ok(()) if inside.taken > running => queue.push_back(second),
                    Ok(()) => waits.push((second, 0)),
                    Err(wait) => {
                        assert!(second >= running as u32 || wait > 10 * SECOND, "{wait:?}");
                    }
                }
            }
        }
        waits
    }

    /// One request ends per second, so behind n waiting requests the next one waits n + 1 seconds.
    #[test]
    fn no_more_are_admitted_than_the_pace_lets_in_within_the_longest_wait() {
        let waits = waits(4, 100, |_| 2);
        let queued = waits.iter().filter(|(came, _)| *came >= 20);
        let (least, most) = queued.fold((u32::MAX, 0), |(least, most), &(_, wait)| {
            (least.min(wait), most.max(wait))
        });
        assert_eq!((least, most), (10, 10));
    }

    #[test]
    fn under_a_load_that_lasts_requests_wait_a_quarter_of_a_turn() {
        let waits = waits(16, 400, |_| 10);
        let late: Vec<_> = waits.iter().filter(|(came, _)| *came >= 60).collect();
        assert!(late.iter().all(|(_, wait)| *wait <= 4), "{late:?}");
        // And the engine is never idle.
        assert!(late.len() > 330, "{}", late.len());
    }

    /// Ten requests arrive for each one that ends. The limiter detects this after the first turn,
    /// at 4 s.
    #[test]
    fn who_comes_while_more_come_than_end_has_its_turn_before_that_has_lasted_for_10_s() {
        let waits = waits(4, 60, |_| 10);
        let longest = |came: u32| 14_u32.saturating_sub(came).max(1);
        let mut later = waits.iter().filter(|(came, _)| *came >= 4);
        assert!(
            later.all(|(came, wait)| *wait <= longest(*came)),
            "{waits:?}"
        );
        // And the engine is never idle.
        assert!(waits.len() >= 59, "{}", waits.len());
    }

    #[test]
    fn clients_that_send_their_next_request_when_one_has_ended_all_stay() {
        let (mut inside, begin) = (Inside::default(), Instant::now());
        let limits = limits(1000, 16);
        for _ in 0..24 {
            inside.admit(1, &limits, begin).unwrap();
        }
        for second in 1..1000 {
            let now = begin + second * SECOND;
            inside.end(now);
            inside.admit(1, &limits, now).unwrap();
        }
    }

    /// Without the crowd, the server is full but not overloaded: one request arrives per second.
    #[test]
    fn a_crowd_that_comes_once_may_wait_at_a_full_server() {
        let waits = waits(16, 200, |second| if second == 100 { 9 } else { 1 });
        assert_eq!(waits.iter().filter(|(came, _)| *came == 100).count(), 9);
    }

    #[test]
    fn an_engine_that_stands_still_lets_nobody_in() {
        let (mut inside, now) = (Inside::default(), Instant::now());
        let limits = limits(1000, 4);
        inside.admit(8, &limits, now).unwrap();
        assert!(inside.admit(1, &limits, now + 7 * SECOND).is_ok());
        assert!(inside.admit(1, &limits, now + 7 * SECOND).is_err());
        let any = Limits {
            max_wait: None,
            ..limits
        };
        assert!(inside.admit(1, &any, now + 100 * SECOND).is_ok());
    }

    /// A request with many inputs passes its slots on, and the queue moves nevertheless.
    #[test]
    fn places_that_are_passed_on_keep_the_pace() {
        let (mut inside, begin) = (Inside::default(), Instant::now());
        let limits = limits(1000, 4);
        inside.admit(5, &limits, begin).unwrap();
        for second in 1..100 {
            inside.pass_on(begin + second * SECOND);
        }
        assert_eq!(inside.taken, 5);
        assert!(inside.admit(1, &limits, begin + 99 * SECOND).is_ok());
    }

    #[test]
    fn without_a_queue_the_pace_is_forgotten() {
        let (mut inside, now) = (Inside::default(), Instant::now());
        let limits = limits(1000, 2);
        inside.admit(3, &limits, now).unwrap();
        inside.end(now + 100 * SECOND);
        inside.end(now + 100 * SECOND);
        inside.admit(1, &limits, now + 100 * SECOND).unwrap();
        assert_eq!(inside.wait(now + 101 * SECOND), SECOND / 2);
    }
}
