//! The share of blocks that would be found at any capacity, measured while running.
//!
//! Stack distances (Mattson, Gecsei, Slutz, Traiger, IBM Systems Journal 1970) of a sample of the
//! keys, chosen by their own bits: SHARDS (Waldspurger, Park, Garthwaite, Ahmad, USENIX FAST 2015),
//! with its correction of the sample's size. The distance of a block is the number of distinct
//! blocks used since, itself included; an LRU tier of that many slots would have it. The sample
//! covers what lies within [`REACH`] times the capacity, and is so small that its stack is searched
//! from end to end; what was used longer ago counts as never seen.

use super::key::{Key, mix};

/// Largest capacity on the curve, in present ones.
pub(super) const REACH: usize = 8;
/// Points of the curve.
const BUCKETS: usize = 128;
/// Sampled keys kept at most.
const SAMPLE: usize = 1 << 12;
/// Counts are halved after this many for each sampled key kept, so that the curve is that of late.
const MEMORY: usize = 64;

/// One point of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Capacity.
    pub slots: f64,
    /// Share of the blocks looked up that would be found.
    pub hit_ratio: f64,
}

/// Histogram of stack distances.
pub(super) struct Curve {
    /// Share of keys in the sample.
    rate: f64,
    /// Sampled keys kept, at most.
    limit: usize,
    slots: f64,
    /// Sampled keys by their last use, the latest at the end.
    stack: Vec<u64>,
    histogram: [f64; BUCKETS],
    /// Blocks looked up, sampled or not, and those of them that were sampled.
    looked: f64,
    sampled: f64,
}

impl Curve {
    /// For a tier of `slots`.
    pub(super) fn new(slots: usize) -> Self {
        Self::of_sample(slots, SAMPLE)
    }

    fn of_sample(slots: usize, most: usize) -> Self {
        let reach = slots.max(1) * REACH;
        let limit = reach.min(most);
        Self {
            rate: limit as f64 / reach as f64,
            limit,
            slots: slots as f64,
            stack: Vec::with_capacity(limit + 1),
            histogram: [0.0; BUCKETS],
            looked: 0.0,
            sampled: 0.0,
        }
    }

    /// A prefix is asked for, of which the first `start` keys are known elsewhere: they are used,
    /// but not counted.
    pub(super) fn look<K: Key>(&mut self, keys: &[K], start: usize) {
        // Distances are those before any of these is used, as a lookup finds them.
        for key in &keys[start..] {
            if let Some(word) = self.sample(key) {
                self.count(word);
            }
        }
        self.looked += (keys.len() - start) as f64;
        for key in keys.iter().rev() {
            if let Some(word) = self.sample(key) {
                self.use_now(word);
            }
        }
        self.forget();
    }

    /// A prefix is there that was computed. What has been looked up was used then; the rest is new,
    /// its last key the least recently used of it.
    pub(super) fn keep<K: Key>(&mut self, keys: &[K]) {
        for key in keys.iter().rev() {
            if let Some(word) = self.sample(key).filter(|word| !self.stack.contains(word)) {
                self.use_now(word);
            }
        }
    }

    /// Share of the blocks looked up lately that an LRU tier of so many slots would have had; 0
    /// before the first lookup.
    pub(super) fn ratio(&self, slots: f64) -> f64 {
        let place = (slots / self.width()).clamp(0.0, BUCKETS as f64);
        let (whole, part) = (place as usize, place.fract());
        let mut hits: f64 = self.histogram[..whole].iter().sum();
        hits += self.histogram.get(whole).map_or(0.0, |count| count * part);
        let expected = self.looked * self.rate;
        if expected < 1.0 || place == 0.0 {
            return 0.0;
        }
        // What the sample has too much or too little are mostly keys used all the time, with small
        // distances (FAST 2015, section 3.3).
        ((hits + expected - self.sampled) / expected).clamp(0.0, 1.0)
    }

    /// The curve, ascending.
    pub(super) fn points(&self) -> Vec<CurvePoint> {
        let edges = (1..=BUCKETS).map(|edge| edge as f64 * self.width());
        edges
            .map(|slots| CurvePoint {
                slots,
                hit_ratio: self.ratio(slots),
            })
            .collect()
    }

    fn width(&self) -> f64 {
        self.slots * REACH as f64 / BUCKETS as f64
    }

    /// The key's word if it is in the sample. Bits of their own: those of the contest's sample
    /// would not be independent of it.
    fn sample<K: Key>(&self, key: &K) -> Option<u64> {
        let [first, second] = key.words();
        let share = mix(second) as f64 / u64::MAX as f64;
        (share <= self.rate).then_some(first)
    }

    fn count(&mut self, word: u64) {
        self.sampled += 1.0;
        if let Some(at) = self.stack.iter().rposition(|known| *known == word) {
            let distance = (self.stack.len() - at) as f64 / self.rate;
            // A distance on the edge belongs to the capacity of the edge.
            let bucket = (distance / self.width()).ceil() as usize - 1;
            if let Some(count) = self.histogram.get_mut(bucket) {
                *count += 1.0;
            }
        }
    }

    fn use_now(&mut self, word: u64) {
        let before = self.stack.iter().rposition(|known| *known == word);
        before.map(|at| self.stack.remove(at));
        self.stack.push(word);
        if self.stack.len() > self.limit {
            self.stack.remove(0);
        }
    }

    fn forget(&mut self) {
        if self.sampled < (MEMORY * SAMPLE) as f64 {
            return;
        }
        self.histogram.iter_mut().for_each(|count| *count /= 2.0);
        self.looked /= 2.0;
        self.sampled /= 2.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Hits of an LRU stack of each depth, by brute force: the distance is the depth in the list.
    fn distances(requests: &[Vec<u64>]) -> (Vec<usize>, usize) {
        let mut stack: Vec<u64> = Vec::new();
        let mut found = Vec::new();
        let mut looked = 0;
        for request in requests {
            looked += request.len();
            found.extend(
                request
                    .iter()
                    .filter_map(|key| stack.iter().position(|other| other == key))
                    .map(|at| at + 1),
            );
            for key in request.iter().rev() {
                stack.retain(|other| other != key);
                stack.insert(0, *key);
            }
        }
        (found, looked)
    }

    /// Chains of documents: document d has keys 1000 d + 0, 1, 2...
    fn request(document: u64, length: u64) -> Vec<u64> {
        (0..length).map(|at| 1000 * document + at).collect()
    }

    proptest! {
        #[test]
        fn small_curves_are_exact(
            documents in proptest::collection::vec((0_u64..12, 1_u64..8), 1..300),
            slots in 16_usize..64,
        ) {
            let requests: Vec<_> =
                documents.into_iter().map(|(number, length)| request(number, length)).collect();
            let mut curve = Curve::new(slots);
            requests.iter().for_each(|keys| curve.look(keys, 0));
            let (found, looked) = distances(&requests);
            for point in curve.points() {
                let hits = found.iter().filter(|&&distance| distance as f64 <= point.slots).count();
                let exact = hits as f64 / looked as f64;
                prop_assert!((point.hit_ratio - exact).abs() < 1e-9, "{point:?} is {exact}");
            }
        }
    }

    #[test]
    fn large_curves_are_near() {
        // Zipf-like over 3,000 documents: half of the keys is sampled.
        let mut curve = Curve::of_sample(2_000, 8_000);
        let mut requests = Vec::new();
        let mut word = 1_u64;
        for _ in 0..6_000 {
            word = mix(word);
            let share = (word >> 11) as f64 / (1_u64 << 53) as f64;
            let document = (3_000_f64.powf(share)) as u64;
            requests.push(request(document, 1 + document % 7));
        }
        requests.iter().for_each(|keys| curve.look(keys, 0));
        let (found, looked) = distances(&requests);
        for slots in [500.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0] {
            let exact = found
                .iter()
                .filter(|&&distance| distance as f64 <= slots)
                .count() as f64
                / looked as f64;
            assert!(
                (curve.ratio(slots) - exact).abs() < 0.04,
                "{slots}: {} is {exact}",
                curve.ratio(slots)
            );
        }
    }

    #[test]
    fn keys_known_elsewhere_are_used_and_not_counted() {
        let mut curve = Curve::new(16);
        curve.keep(&request(1, 4));
        curve.look(&request(1, 4), 3);
        assert_eq!(curve.looked, 1.0);
        assert_eq!(curve.ratio(16.0), 1.0);
        assert_eq!(Curve::new(16).ratio(16.0), 0.0);
    }

    #[test]
    fn memory_is_bounded_by_the_reach() {
        let mut curve = Curve::new(100);
        for document in 0..5_000 {
            curve.look(&request(document, 5), 0);
        }
        assert_eq!(curve.stack.len(), 800);
        assert_eq!(curve.ratio(800.0), 0.0);
    }
}
