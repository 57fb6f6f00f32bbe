//! How many requests may be inside at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the engine requests inside the front door, those being tokenized included.
#[derive(Default, Clone)]
pub(crate) struct Seats {
    taken: Arc<AtomicUsize>,
}

/// Some seats, given back when dropped.
pub(crate) struct Seat {
    taken: Arc<AtomicUsize>,
    count: usize,
}

impl Seats {
    /// Takes `count` seats unless more than `capacity` would be taken then.
    pub(crate) fn take(&self, count: usize, capacity: usize) -> Option<Seat> {
        let more = |taken: usize| taken.checked_add(count).filter(|sum| *sum <= capacity);
        let update = self
            .taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        update.ok().map(|_| Seat {
            taken: self.taken.clone(),
            count,
        })
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.count, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_bounded_and_come_back() {
        let seats = Seats::default();
        let two = seats.take(2, 3).unwrap();
        assert!(seats.take(2, 3).is_none());
        let one = seats.take(1, 3).unwrap();
        assert_eq!(seats.taken(), 3);
        drop((two, one));
        assert_eq!(seats.taken(), 0);
        assert!(seats.take(usize::MAX, 3).is_none());
    }
}
