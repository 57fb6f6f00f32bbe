//! Ghost list: prefix links that their last holder evicted recently (as in ARC, Megiddo and Modha,
//! 2003). A request for a ghost would have been a hit in a larger cache.

use std::collections::{HashMap, VecDeque};

use crate::keyed::Keyed;

/// Evictions, newest last. Like the index's log, it is lazy: an entry is valid only while it
/// is the latest of its link.
#[derive(Debug, Default)]
pub(crate) struct Ghosts {
    /// The holder that last evicted a link, and the number of that eviction.
    latest: HashMap<u64, (u32, u64), Keyed>,
    log: VecDeque<(u64, u64)>,
    evictions: u64,
}

impl Ghosts {
    /// Records that `holder`, the last that held `link`, evicted it; keeps at most `most`
    /// evictions.
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

/// Counts from which the share of a holder's evicted links that are requested again follows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Regret {
    evicted: f32,
    missed: f32,
}

/// Fewer evictions than this count as this many, so that a few requests do not give a high share.
const ENOUGH: f32 = 16.0;

impl Regret {
    /// Records an eviction from a cache of `capacity` links. The counts are halved when twice the
    /// capacity was evicted, so that old ones fade.
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
