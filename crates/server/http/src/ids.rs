//! Random numbers for request ids and seeds: distinct, not secret.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// A stream of 64-bit numbers from a random start (SplitMix64 by Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub struct RandomIds {
    state: AtomicU64,
}

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Default for RandomIds {
    fn default() -> Self {
        // RandomState is seeded by the operating system; this is the only randomness std offers.
        Self {
            state: AtomicU64::new(RandomState::new().build_hasher().finish()),
        }
    }
}

impl RandomIds {
    /// The next number.
    pub fn next(&self) -> u64 {
        let mut z = self
            .state
            .fetch_add(STEP, Ordering::Relaxed)
            .wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// 32 hexadecimal digits.
    pub fn hex(&self) -> String {
        format!("{:016x}{:016x}", self.next(), self.next())
    }
}
