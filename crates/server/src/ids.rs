//! Request ids and seeds: unpredictable enough to be distinct, not secrets.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// A stream of 64-bit numbers from a random start (SplitMix64 by Steele, Lea and Flood, 2014).
pub(crate) struct Ids {
    state: AtomicU64,
}

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Ids {
    pub(crate) fn new() -> Self {
        // RandomState is seeded by the operating system; this is the only randomness std offers.
        Self {
            state: AtomicU64::new(RandomState::new().build_hasher().finish()),
        }
    }

    pub(crate) fn next(&self) -> u64 {
        let mut z = self
            .state
            .fetch_add(STEP, Ordering::Relaxed)
            .wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// 32 hexadecimal digits.
    pub(crate) fn hex(&self) -> String {
        format!("{:016x}{:016x}", self.next(), self.next())
    }
}
