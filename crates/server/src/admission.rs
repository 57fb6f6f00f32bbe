//! Admission: a bound on the requests inside the server, those being tokenized included, and on the
//! time that one would wait for its turn.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_openai::ApiError;
use penstock_wire::{Pooler, TierKinds};

/// What a ready engine allows, within the server's own limits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// In tokens.
    pub(crate) max_model_len: u32,
    pub(crate) vocab_size: u32,
    /// Engine requests that may be inside at once.
    pub(crate) capacity: usize,
    /// Those of them that the engine runs at once; the others wait.
    pub(crate) running: usize,
    /// The longest wait that is expected of a request when it comes; `None`: any.
    pub(crate) max_wait: Option<Duration>,
    pub(crate) kv_tiers: TierKinds,
    pub(crate) pooler: Pooler,
}

impl Limits {
    /// An error that names the first id outside the vocabulary.
    pub(crate) fn check_tokens(&self, field: &'static str, ids: &[u32]) -> Result<(), ApiError> {
        let size = self.vocab_size;
        let Some(token) = ids.iter().find(|&&token| token >= size) else {
            return Ok(());
        };
        let message = format!("{field} holds token id {token}; the vocabulary has {size} tokens.");
        Err(ApiError::invalid(field, message))
    }
}

/// Counts the engine requests inside.
#[derive(Default, Clone)]
pub(crate) struct AdmissionLimiter {
    inside: Arc<Mutex<Inside>>,
}

/// Leave for some engine requests to be inside, given back when dropped.
pub(crate) struct AdmissionPermit {
    /// One for each request; each is given back on its own.
    pub(crate) slots: Vec<Slot>,
    /// The limits at the time of admission.
    pub(crate) limits: Limits,
}

/// Leave for one engine request. It lasts until the engine has ended the request: one whose client
/// has left may still keep the engine busy.
pub(crate) struct Slot {
    inside: Arc<Mutex<Inside>>,
}

impl AdmissionLimiter {
    /// Admits `count` requests.
    ///
    /// # Errors
    /// The time after which to come again, where more than the capacity would be inside or the
    /// wait would be too long.
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

    /// Requests inside now.
    pub(crate) fn taken(&self) -> usize {
        lock(&self.inside).taken
    }
}

impl Slot {
    /// Gives the place to another engine request of the same client's. For the pace one has ended.
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

/// The requests inside, and the pace of those that wait. The last *turn* is the time in which as
/// many requests ended as run at once, so it lets that many of the waiting ones in. Before as many
/// have ended, it is the time since the queue began: no shorter than the truth by more than a turn.
#[derive(Debug, Default)]
struct Inside {
    taken: usize,
    running: usize,
    /// When the last turn began; `None` while nothing waits.
    turn: Option<Instant>,
    /// When the requests of the last turn ended, oldest first.
    ends: VecDeque<Instant>,
}

impl Inside {
    fn admit(&mut self, count: usize, limits: &Limits, now: Instant) -> Result<(), Duration> {
        self.running = limits.running.max(1);
        let sum = self.taken.checked_add(count);
        let sum = sum.filter(|sum| *sum <= limits.capacity);
        let wait = self.wait(now);
        match sum {
            Some(sum) if limits.max_wait.is_none_or(|most| wait <= most) => self.taken = sum,
            _ => return Err(wait),
        }
        if self.taken >= self.running {
            self.turn.get_or_insert(now);
        }
        Ok(())
    }

    fn pass_on(&mut self, now: Instant) {
        self.end(now);
        self.taken += 1;
        if self.taken >= self.running {
            self.turn.get_or_insert(now);
        }
    }

    /// How long a request would wait that came now.
    fn wait(&self, now: Instant) -> Duration {
        let ahead = (self.taken + 1).saturating_sub(self.running);
        let turn = self.turn.map(|turn| now.saturating_duration_since(turn));
        turn.unwrap_or_default()
            .mul_f64(ahead as f64 / self.running.max(1) as f64)
    }

    fn end(&mut self, now: Instant) {
        self.taken = self.taken.saturating_sub(1);
        if self.taken < self.running {
            self.turn = None;
            self.ends.clear();
            return;
        }
        self.ends.push_back(now);
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

    /// One ends each second, 4 run: with n that wait the next one waits n + 1 seconds.
    #[test]
    fn no_more_are_admitted_than_the_pace_lets_in_within_the_longest_wait() {
        let (mut inside, begin) = (Inside::default(), Instant::now());
        let limits = limits(1000, 4);
        let mut refused = 0;
        for second in 0..100 {
            let now = begin + second * SECOND;
            if second > 0 {
                inside.end(now);
            }
            for _ in 0..10 {
                match inside.admit(1, &limits, now) {
                    Ok(()) => {}
                    Err(wait) => {
                        assert!(wait > 10 * SECOND, "{wait:?}");
                        refused += 1;
                    }
                }
            }
        }
        assert_eq!(inside.taken, 4 + 10);
        assert_eq!(refused, 1000 - 99 - 14);
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

    /// A list of many inputs keeps its places, and the queue moves all the same.
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
