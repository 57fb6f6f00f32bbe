//! Estimates how often each key was requested, with about 16 bytes of memory per key in the tier.
//!
//! A count-min sketch with periodic halving, as in TinyLFU (Einziger, Friedman, Manes: "TinyLFU: A
//! Highly Efficient Cache Admission Policy", ACM Transactions on Storage 13, 2017). A request adds
//! 8 to an 8-bit counter. With steps of 1, a halving in the middle of a cyclic scan would rank the
//! keys of the scan's second half above the keys of its first half.

use super::key::mix;

const ROWS: usize = 4;
/// One request, in counter units.
const ONE: u64 = 8;
const MOST: u64 = 0xff;
/// Requests per key of the tier after which all counters are halved, so that old requests fade.
const MEMORY: usize = 10;
const LOW_SEVEN: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// Approximate counts: never too low between halvings, up to the maximum of 31.
pub(super) struct Sketch {
    /// Eight counters per word; the number of words is a power of two.
    words: Vec<u64>,
    added: usize,
    period: usize,
}

impl Sketch {
    /// For a tier of `entries` keys.
    pub(super) fn new(entries: usize) -> Self {
        let words = (2 * entries).clamp(32, 1 << 26).next_power_of_two();
        Self {
            words: vec![0; words],
            added: 0,
            period: MEMORY * entries.max(16),
        }
    }

    /// Counts a request for the key with this word.
    pub(super) fn add(&mut self, word: u64) {
        let places = self.places(word);
        let least = self.least(&places);
        let raised = (least + ONE).min(MOST);
        for (at, shift) in places {
            // Conservative update: counters above the minimum already overestimate.
            let count = self.words[at] >> shift & MOST;
            self.words[at] += raised.saturating_sub(count) << shift;
        }
        self.added += 1;
        if self.added >= self.period {
            self.halve();
        }
    }

    /// Estimated number of requests for the key.
    pub(super) fn count(&self, word: u64) -> f64 {
        self.least(&self.places(word)) as f64 / ONE as f64
    }

    /// Whether `word` has at least one whole request more than `other`.
    ///
    /// The margin allows for halving: it may fall between the requests for two equally popular
    /// keys, so that their counts differ by up to one request. A possibly halved count needs a
    /// margin of 1.125 requests.
    pub(super) fn prefers(&self, word: u64, other: u64) -> bool {
        let other = self.count(other);
        let margin = if other > 1.0 { 1.125 } else { 1.0 };
        self.count(word) >= other + margin
    }

    fn places(&self, word: u64) -> [(usize, u32); ROWS] {
        let mask = self.words.len() - 1;
        let mut bits = word;
        std::array::from_fn(|_| {
            bits = mix(bits);
            ((bits >> 32) as usize & mask, (bits & 7) as u32 * 8)
        })
    }

    fn least(&self, places: &[(usize, u32); ROWS]) -> u64 {
        let counts = places
            .iter()
            .map(|&(at, shift)| self.words[at] >> shift & MOST);
        counts.fold(MOST, u64::min)
    }

    fn halve(&mut self) {
        for word in &mut self.words {
            *word = *word >> 1 & LOW_SEVEN;
        }
        self.added /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_keys_but_for_a_few() {
        let mut sketch = Sketch::new(1024);
        for key in 0..200_u64 {
            for _ in 0..key % 20 {
                sketch.add(mix(key));
            }
        }
        let wrong = (0..200).filter(|&key| sketch.count(mix(key)) != (key % 20) as f64);
        assert!(wrong.count() <= 2);
        assert_eq!(sketch.count(mix(12345)), 0.0);
    }

    #[test]
    fn what_is_no_longer_asked_for_is_forgotten() {
        let mut sketch = Sketch::new(64);
        (0..8).for_each(|_| sketch.add(mix(1)));
        assert_eq!(sketch.count(mix(1)), 8.0);
        (0..64 * 60).for_each(|turn| sketch.add(mix(100 + turn % 64)));
        assert!(sketch.count(mix(1)) < 1.0);
    }
}
