//! Keyed hasher for keys that are themselves hashes.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Hashes one `u64` by two folded multiplications with secrets. Links are evenly distributed, but
/// clients choose the underlying text: without secrets they could craft collisions. One
/// multiplication is not enough: it leaves evenly spaced keys evenly spaced in the high bits, which
/// for some secrets fall into few buckets.
#[derive(Debug, Clone)]
pub(crate) struct Keyed {
    add: u64,
    multiply: [u64; 2],
}

impl Default for Keyed {
    fn default() -> Self {
        let random = RandomState::new();
        Self {
            add: random.hash_one(0),
            multiply: [1, 2].map(|at| random.hash_one(at) | 1),
        }
    }
}

impl BuildHasher for Keyed {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded {
            state: self.add,
            multiply: self.multiply,
        }
    }
}

pub(crate) struct Folded {
    state: u64,
    multiply: [u64; 2],
}

fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

impl Hasher for Folded {
    fn write_u64(&mut self, value: u64) {
        let [first, second] = self.multiply;
        self.state = folded(folded(self.state ^ value, first), second);
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_that_share_bits_are_spread_and_two_tables_differ() {
        // 4,096 keys on 65,536 places are on 3,969 of them where they are spread at random.
        for _ in 0..200 {
            let one = Keyed::default();
            for shift in [0, 20, 48] {
                let low = |at: u64| one.hash_one(at << shift) & 0xffff;
                let found: HashSet<u64> = (0..4096).map(low).collect();
                assert!(
                    found.len() > 3500,
                    "{} places, {one:?}, {shift}",
                    found.len()
                );
            }
        }
        let (one, other) = (Keyed::default(), Keyed::default());
        assert_ne!(one.hash_one(7u64), other.hash_one(7u64));
    }
}
