//! Ghost list: prefix links that were evicted recently and are no longer held anywhere (as in ARC,
//! Megiddo and Modha, 2003). A request for a ghost would have been a hit in a larger cache.

use std::collections::{HashMap, VecDeque};

use crate::keyed::Keyed;

/// Evictions, newest last. Entries are removed lazily: an entry is valid only while it is the
/// latest one of its link.
#[derive(Debug, Default)]
pub(crate) struct Ghosts {
    /// The holder that last evicted a link, and the number of that eviction.
    latest: HashMap<u64, (u32, u64), Keyed>,
    log: VecDeque<(u64, u64)>,
    evictions: u64,
}

impl Ghosts {
    /// Records that `holder`, the last to hold `link`, evicted it. Keeps at most `most` evictions.
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

    /// Removes `link`, which is requested again; returns the holder that evicted it.
    pub(crate) fn take(&mut self, link: u64) -> Option<u32> {
        self.latest.remove(&link).map(|(holder, _)| holder)
    }
}

/// Counts of a holder's evictions and of later requests for the evicted links.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Regret {
    evicted: f32,
    missed: f32,
}

/// Minimum divisor of the share: with few evictions, a few requests must not give a high share.
const ENOUGH: f32 = 16.0;

impl Regret {
    /// Records an eviction from a cache of `capacity` links. Halves the counts after evictions of
    /// twice the capacity, so that old counts fade.
    pub(crate) fn evicted(&mut self, capacity: usize) {
        self.evicted += 1.0;
        if self.evicted >= 2.0 * (capacity as f32).max(ENOUGH) {
            self.evicted /= 2.0;
            self.missed /= 2.0;
        }
    }

    /// Records a request for an evicted link.
    pub(crate) fn missed(&mut self) {
        self.missed += 1.0;
    }

    /// Share of the evicted links that are requested again, 0 to 1.
    pub(crate) fn share(self) -> f32 {
        (self.missed / self.evicted.max(ENOUGH)).min(1.0)
    }
}
