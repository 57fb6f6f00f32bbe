//! The blocks that the replicas of a pool have published.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use penstock_prefix::{BlockIndex, text_seed};

#[derive(Debug)]
pub(super) struct Known {
    index: Mutex<BlockIndex>,
    began: Instant,
}

impl Known {
    pub(super) fn new() -> Self {
        Self {
            index: Mutex::default(),
            began: Instant::now(),
        }
    }

    pub(super) fn index(&self) -> MutexGuard<'_, BlockIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The distinct block sizes in tokens of these engines, sorted.
    pub(super) fn block_sizes(&self, engines: impl Iterator<Item = u32>) -> Vec<usize> {
        let index = self.index();
        let mut sizes: Vec<usize> = engines.filter_map(|one| index.block_size(one)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Milliseconds since this value was created; the clock of the index.
    pub(super) fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

/// Root of a prompt's hash chain, used as the parent of the prompt's first block.
pub(super) fn root(adapter: Option<&str>) -> u64 {
    text_seed(&[b"tokens", adapter.unwrap_or_default().as_bytes()])
}
