//! Keys with uniformly random bits. Tables, sketches and samples use the bits without another hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use penstock_prefix::{Digest, Group, UNSALTED, group};

/// A key of an entry. Equal keys have equal words.
pub trait Key: Copy + Eq {
    /// Two words, each uniformly random and independent.
    fn words(&self) -> [u64; 2];

    /// Salt group, for quotas.
    fn group(&self) -> Group {
        UNSALTED
    }
}

impl Key for Digest {
    fn words(&self) -> [u64; 2] {
        // Skip the first bytes: they contain the group, which is not random.
        let mut words = [[0; 8]; 2];
        words[0].copy_from_slice(&self[8..16]);
        words[1].copy_from_slice(&self[16..24]);
        words.map(u64::from_le_bytes)
    }

    fn group(&self) -> Group {
        group(self)
    }
}

impl Key for u64 {
    fn words(&self) -> [u64; 2] {
        let first = mix(*self);
        [first, mix(first)]
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection in which every output
/// bit depends on all input bits.
pub(super) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Key of a [`Table`], hashed by its first word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Named<K>(pub(super) K);

impl<K: Key> Hash for Named<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.words()[0]);
    }
}

/// Identity hasher: the one hashed word is already random.
#[derive(Default)]
pub(super) struct Word(u64);

impl Hasher for Word {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("names are hashed by one word")
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

/// A hash table by key.
pub(super) type Table<K, V> = HashMap<Named<K>, V, BuildHasherDefault<Word>>;
