//! Daily write budget, which limits flash wear.

use std::collections::VecDeque;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Length of a time slot for counting writes; a slot expires one day after its end.
const SLOT: Duration = Duration::from_secs(600);

/// Sliding 24-hour write budget of this process. Times are from any monotonic clock.
pub(crate) struct Budget {
    limit: u64,
    slots: VecDeque<(u64, u64)>,
    spent: u64,
}

impl Budget {
    /// A budget of `limit` bytes in any 24 hours.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            slots: VecDeque::new(),
            spent: 0,
        }
    }

    /// Deducts `bytes` from the budget and returns true; if less is left, deducts nothing and
    /// returns false.
    pub(crate) fn take(&mut self, bytes: u64, now: Duration) -> bool {
        self.forget(now);
        let fits = bytes <= self.limit.saturating_sub(self.spent);
        if fits {
            let slot = now.as_secs() / SLOT.as_secs();
            match self.slots.back_mut() {
                Some((last, written)) if *last >= slot => *written += bytes,
                _ => self.slots.push_back((slot, bytes)),
            }
            self.spent += bytes;
        }
        fits
    }

    /// Refunds bytes of the latest `take` that were not written.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        if let Some((_, written)) = self.slots.back_mut() {
            let bytes = bytes.min(*written);
            *written -= bytes;
            self.spent -= bytes;
        }
    }

    /// Bytes that may still be written now.
    pub(crate) fn left(&mut self, now: Duration) -> u64 {
        self.forget(now);
        self.limit.saturating_sub(self.spent)
    }

    fn forget(&mut self, now: Duration) {
        while let Some(&(slot, written)) = self.slots.front() {
            if SLOT * (slot as u32 + 1) + DAY > now {
                break;
            }
            self.spent -= written;
            self.slots.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_day_sees_more_than_its_budget(
            writes in proptest::collection::vec((0_u64..20_000, 1_u64..400, any::<bool>()), 1..80),
        ) {
            let mut budget = Budget::new(1000);
            let mut now = 0;
            let mut written: Vec<(u64, u64)> = Vec::new();
            for (pause, bytes, fails) in writes {
                now += pause;
                let at = Duration::from_secs(now);
                let left = budget.left(at);
                let taken = budget.take(bytes, at);
                prop_assert_eq!(taken, bytes <= left);
                if taken && fails {
                    budget.give_back(bytes);
                } else if taken {
                    written.push((now, bytes));
                }
                let since = |age: u64| -> u64 {
                    let late = written.iter().filter(|(at, _)| at + age > now);
                    late.map(|(_, bytes)| bytes).sum()
                };
                let day = since(86_400);
                prop_assert!(day <= 1000);
                // Writes from more than a day and a slot ago do not count.
                let about = since(87_000);
                prop_assert!(budget.left(at) >= 1000_u64.saturating_sub(about));
            }
        }
    }
}
