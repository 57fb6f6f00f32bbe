//! Admission: a bound on the requests inside the server, those being tokenized included.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_openai::ApiError;
use penstock_wire::TierKinds;

/// What a ready engine allows, within the server's own limits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// In tokens.
    pub(crate) max_model_len: u32,
    pub(crate) vocab_size: u32,
    /// Engine requests that may be inside at once.
    pub(crate) capacity: usize,
    pub(crate) kv_tiers: TierKinds,
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
    taken: Arc<AtomicUsize>,
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
    taken: Arc<AtomicUsize>,
}

impl AdmissionLimiter {
    /// Admits `count` requests unless more than the capacity would be inside.
    pub(crate) fn acquire(&self, count: usize, limits: Limits) -> Option<AdmissionPermit> {
        let more = |taken: usize| {
            let sum = taken.checked_add(count)?;
            (sum <= limits.capacity).then_some(sum)
        };
        let update = self
            .taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        let slot = |_| Slot {
            taken: self.taken.clone(),
        };
        update.ok().map(|_| AdmissionPermit {
            slots: (0..count).map(slot).collect(),
            limits,
        })
    }

    /// Requests inside now.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_bounded_and_come_back() {
        let limiter = AdmissionLimiter::default();
        let limits = Limits {
            capacity: 3,
            ..Limits::default()
        };
        let two = limiter.acquire(2, limits).unwrap();
        assert!(limiter.acquire(2, limits).is_none());
        let one = limiter.acquire(1, limits).unwrap();
        assert_eq!(limiter.taken(), 3);
        let mut two = two;
        two.slots.pop();
        assert_eq!(limiter.taken(), 2);
        drop((two, one));
        assert_eq!(limiter.taken(), 0);
        assert!(limiter.acquire(usize::MAX, limits).is_none());
    }
}
