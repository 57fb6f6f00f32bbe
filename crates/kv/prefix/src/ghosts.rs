//! Ghost list: links that no holder has any more, and who evicted them (as in ARC, Megiddo and
//! Modha, 2003). A link that is asked for while its ghost is there would have been a hit in a
//! larger cache.

use std::collections::{HashMap, VecDeque};

use crate::keyed::Keyed;

/// Evictions, newest last. Lazy as the index's logs: an entry counts while it is its link's latest.
#[derive(Debug, Default)]
pub(crate) struct Ghosts {
    /// The holder that evicted a link last, and the number of that eviction.
    latest: HashMap<u64, (u32, u64), Keyed>,
    log: VecDeque<(u64, u64)>,
    evictions: u64,
}

impl Ghosts {
    /// Notes that `holder` evicted `link`, the last one to hold it; of at most `most` evictions.
    pub(crate) fn add(&mut self, link: u64, holder: u32, most: usize) {
        self.evictions += 1;
        self.latest.insert(link, (holder, self.evictions));
        self.log.push_back((link, self.evictions));
        while self.log.len() > most {
            let Some((link, eviction)) = self.log.pop_front() else {
                break;
            };
            if self.latest.get(&link).is_some_and(|one| one.1 == eviction) {
                self.latest.remove(&link);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.log.len()
    }

    /// Takes out `link`, which is asked for again: the holder that evicted it.
    pub(crate) fn take(&mut self, link: u64) -> Option<u32> {
        self.latest.remove(&link).map(|(holder, _)| holder)
    }
}

/// How many of the links that a holder evicts are asked for again, lately.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Regret {
    evicted: f32,
    missed: f32,
}

/// Evictions that prove something.
const ENOUGH: f32 = 16.0;

impl Regret {
    /// Notes an eviction from a cache of `capacity` links. What is older than its turnover counts
    /// half.
    pub(crate) fn evicted(&mut self, capacity: usize) {
        self.evicted += 1.0;
        if self.evicted >= 2.0 * (capacity as f32).max(ENOUGH) {
            self.evicted /= 2.0;
            self.missed /= 2.0;
        }
    }

    /// Notes that an evicted link is asked for.
    pub(crate) fn missed(&mut self) {
        self.missed += 1.0;
    }

    /// Share of the evicted links that are asked for again, 0 to 1.
    pub(crate) fn share(self) -> f32 {
        (self.missed / self.evicted.max(ENOUGH)).min(1.0)
    }
}
