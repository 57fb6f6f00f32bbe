//! Token sampling from logits: greedy, temperature, top-k, top-p, min-p, and log-probabilities.

use crate::isa::Isa;
use crate::ops::{exp, for_each_isa};

/// Sampling parameters of a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 = greedy.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 = all.
    pub top_k: usize,
    /// Keeps the most likely tokens up to this cumulative probability; 1 = all.
    pub top_p: f32,
    /// Keeps the tokens with at least this fraction of the largest probability; 0 = all.
    pub min_p: f32,
    /// Key of the random number generator.
    pub seed: u64,
    /// Index of the choice within its request; part of the generator's counter.
    pub choice: u32,
}

/// Log-probability of a token, its rank (1 = most likely) and the most likely alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    /// Natural logarithm of the token's probability under the unmodified logits.
    pub logprob: f32,
    /// 1 plus the number of more likely tokens.
    pub rank: u32,
    /// (token, logprob), most likely first.
    pub top: Vec<(u32, f32)>,
}

const LANES: usize = 16;

for_each_isa! {
    fn maximum(logits: &[f32], out: &mut f32) = maximum_body;
}
for_each_isa! {
    /// `out = sum of exp((logits - max) * scale)` over the logits of at least `floor`.
    fn exp_sum(logits: &[f32], max: f32, scale: f32, floor: f32, out: &mut f32) = exp_sum_body;
}
for_each_isa! {
    /// `out = exp((logits - max) * scale)`, item by item.
    fn exp_all(logits: &[f32], max: f32, scale: f32, out: &mut [f32]) = exp_all_body;
}

#[inline(always)]
fn maximum_body(logits: &[f32], out: &mut f32) {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = logits.chunks_exact(LANES);
    let rest = chunks
        .remainder()
        .iter()
        .fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = lanes[i].max(chunk[i]);
        }
    }
    *out = lanes.iter().fold(rest, |m, &v| m.max(v));
}

#[inline(always)]
fn exp_sum_body(logits: &[f32], max: f32, scale: f32, floor: f32, out: &mut f32) {
    let weight = |v: f32| match v >= floor {
        true => exp((v - max) * scale),
        false => 0.0,
    };
    let mut lanes = [0.0f32; LANES];
    let chunks = logits.chunks_exact(LANES);
    let rest: f32 = chunks.remainder().iter().map(|&v| weight(v)).sum();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += weight(chunk[i]);
        }
    }
    *out = lanes.iter().sum::<f32>() + rest;
}

#[inline(always)]
fn exp_all_body(logits: &[f32], max: f32, scale: f32, out: &mut [f32]) {
    for (o, &v) in out.iter_mut().zip(logits) {
        *o = exp((v - max) * scale);
    }
}

fn max_of(isa: Isa, logits: &[f32]) -> f32 {
    let mut max = 0.0;
    maximum(isa, logits, &mut max);
    max
}

/// The most likely token; in a tie, the lowest id.
pub fn argmax(isa: Isa, logits: &[f32]) -> u32 {
    let max = max_of(isa, logits);
    let hit = |chunk: &[f32]| chunk.iter().fold(false, |hit, &v| hit | (v == max));
    let chunk = logits.chunks(LANES).position(hit).unwrap_or(0);
    let lane = logits[chunk * LANES..]
        .iter()
        .position(|&v| v == max)
        .unwrap_or(0);
    (chunk * LANES + lane) as u32
}

/// Samples the token at absolute position `position` of its sequence.
///
/// The uniform number comes from Philox4x32-10 (Salmon et al. 2011), keyed by the seed, at counter
/// (position, choice). It depends on nothing else, so a request samples the same tokens in any
/// batch. Tokens with a logit of negative infinity are not sampled, unless all logits are.
pub fn sample(isa: Isa, logits: &[f32], sampling: &Sampling, position: u64) -> u32 {
    let scale = 1.0 / sampling.temperature;
    // A temperature whose inverse overflows is greedy too.
    if sampling.temperature <= 0.0 || sampling.top_k == 1 || scale == f32::INFINITY {
        return argmax(isa, logits);
    }
    let u = uniform(sampling.seed, position, sampling.choice);
    let max = max_of(isa, logits);
    if !sampling.cuts(logits.len()) {
        let mut weights = vec![0.0; logits.len()];
        exp_all(isa, logits, max, scale, &mut weights);
        return draw(
            weights
                .iter()
                .copied()
                .enumerate()
                .filter(|&(id, _)| logits[id] > f32::NEG_INFINITY)
                .map(|(id, w)| (id as u32, w)),
            u,
        );
    }
    let candidates = candidates(isa, logits, max, scale, sampling);
    let nucleus = nucleus(&candidates, sampling.top_p);
    draw(candidates.kept[..nucleus].iter().copied(), u)
}

/// The tokens that remain after top-k and min-p; top-p selects among them.
struct Candidates {
    /// (token, weight), sorted by descending weight. Tokens that top-p excludes in any case may be
    /// omitted.
    kept: Vec<(u32, f32)>,
    /// Sum of the weights after top-k and min-p, including omitted tokens.
    total: f32,
}

impl Sampling {
    /// Whether top-k, top-p or min-p can exclude any token from a vocabulary of size `vocab`.
    fn cuts(&self, vocab: usize) -> bool {
        (self.top_k > 0 && self.top_k < vocab) || self.top_p < 1.0 || self.min_p > 0.0
    }
}

/// Applies top-k, then min-p.
fn candidates(isa: Isa, logits: &[f32], max: f32, scale: f32, sampling: &Sampling) -> Candidates {
    let least = max + sampling.min_p.ln() / scale;
    let k = sampling.top_k;
    if k == 0 {
        let mut total = 0.0;
        exp_sum(isa, logits, max, scale, least, &mut total);
        // Each token below (1 - p) / vocabulary of the total weight can be skipped: together they
        // sum to less than 1 - p, so top-p never selects them.
        let floor = max + (total * (1.0 - sampling.top_p) / logits.len() as f32).ln() / scale;
        let kept = sorted(logits, floor.max(least).min(max));
        let kept = weights(kept, max, scale);
        return Candidates { kept, total };
    }
    let mut kept = sorted(logits, kth(logits, k));
    kept.truncate(k);
    kept.retain(|&(_, logit)| logit >= least);
    let kept = weights(kept, max, scale);
    let total = kept.iter().map(|w| w.1).sum();
    Candidates { kept, total }
}

/// The k-th largest logit; negative infinity if there are at most k.
fn kth(logits: &[f32], k: usize) -> f32 {
    if k >= logits.len() {
        return f32::NEG_INFINITY;
    }
    let mut all = logits.to_vec();
    *all.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
}

/// Finite (token, logit) pairs with a logit of at least `floor`, sorted by descending logit, then
/// by token id.
fn sorted(logits: &[f32], floor: f32) -> Vec<(u32, f32)> {
    let all = logits.iter().copied().enumerate();
    let mut kept: Vec<(u32, f32)> = all
        .filter(|&(_, logit)| logit >= floor && logit > f32::NEG_INFINITY)
        .map(|(id, logit)| (id as u32, logit))
        .collect();
    kept.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    kept
}

/// Replaces each logit by its weight, `exp((logit - max) * scale)`.
fn weights(mut tokens: Vec<(u32, f32)>, max: f32, scale: f32) -> Vec<(u32, f32)> {
    for (_, value) in &mut tokens {
        *value = exp((*value - max) * scale);
    }
    tokens
}

/// Number of candidates that top-p keeps: the fewest whose weights reach `top_p` of the total.
fn nucleus(candidates: &Candidates, top_p: f32) -> usize {
    if top_p >= 1.0 {
        return candidates.kept.len();
    }
    let (mut reached, limit) = (0.0, candidates.total * top_p);
    let enough = candidates.kept.iter().position(|w| {
        reached += w.1;
        reached >= limit
    });
    enough.map_or(candidates.kept.len(), |last| last + 1)
}

/// Inverse transform sampling: the token at which the cumulative weight passes `u` in [0, 1).
fn draw(weights: impl Iterator<Item = (u32, f32)> + Clone, u: f64) -> u32 {
    let total: f64 = weights.clone().map(|(_, w)| f64::from(w)).sum();
    let (mut reached, mut last) = (0.0, 0);
    for (id, weight) in weights {
        if weight > 0.0 {
            reached += f64::from(weight);
            last = id;
            if reached > u * total {
                break;
            }
        }
    }
    last
}

fn uniform(seed: u64, position: u64, choice: u32) -> f64 {
    let counter = [position as u32, (position >> 32) as u32, choice, 0];
    let out = philox(counter, [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(out[0]) << 21 ^ u64::from(out[1]) >> 11;
    (bits & ((1 << 53) - 1)) as f64 / (1u64 << 53) as f64
}

fn philox(mut c: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let (a, b) = (u64::from(c[0]) * 0xD251_1F53, u64::from(c[2]) * 0xCD9E_8D57);
        c = [
            (b >> 32) as u32 ^ c[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ key[1],
            a as u32,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    c
}

/// Log-probabilities of `token` and of the `alternatives` most likely tokens.
pub fn logprob(isa: Isa, logits: &[f32], token: u32, alternatives: usize) -> Logprob {
    let max = max_of(isa, logits);
    let mut sum = 0.0;
    exp_sum(isa, logits, max, 1.0, f32::NEG_INFINITY, &mut sum);
    let norm = max + sum.ln();
    let chosen = logits[token as usize];
    let rank = logits.iter().filter(|&&v| v > chosen).count() as u32 + 1;
    Logprob {
        logprob: chosen - norm,
        rank,
        top: top(logits, alternatives)
            .map(|(id, v)| (id, v - norm))
            .collect(),
    }
}

fn top(logits: &[f32], count: usize) -> impl Iterator<Item = (u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (id, &value) in logits.iter().enumerate() {
        if count == 0 || best.len() == count && best[count - 1].1 >= value {
            continue;
        }
        let at = best.partition_point(|b| b.1 >= value);
        best.insert(at, (id as u32, value));
        best.truncate(count);
    }
    best.into_iter()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        // Known-answer vectors of the Random123 distribution (philox4x32, 10 rounds).
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    /// Reference: softmax with top-k, min-p and top-p over a full sort. `edges` are relative shifts
    /// of the thresholds of min-p and top-p.
    fn distribution(logits: &[f32], s: &Sampling, edges: [f64; 2]) -> Vec<f64> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        if s.top_k > 0 {
            order.truncate(s.top_k);
        }
        let max = f64::from(logits[order[0]]);
        order.retain(|&i| {
            let share = ((f64::from(logits[i]) - max) / f64::from(s.temperature)).exp();
            share > 0.0 && share >= f64::from(s.min_p) * (1.0 + edges[0])
        });
        let weight = |i: usize| ((f64::from(logits[i]) - max) / f64::from(s.temperature)).exp();
        let total: f64 = order.iter().map(|&i| weight(i)).sum();
        let (mut reached, mut p) = (0.0, vec![0.0; logits.len()]);
        for &i in &order {
            if reached >= f64::from(s.top_p) * total * (1.0 + edges[1]) {
                break;
            }
            p[i] = weight(i);
            reached += p[i];
        }
        let kept: f64 = p.iter().sum();
        p.iter().map(|w| w / kept).collect()
    }

    proptest! {
        #[test]
        fn draws_follow_the_plain_distribution(
            logits in proptest::collection::vec(-4.0f32..4.0, 2..80),
            temperature in 0.3f32..2.0,
            top_k in 0usize..12,
            top_p in 0.2f32..=1.0,
            min_p in prop_oneof![Just(0.0f32), 0.0f32..0.9],
            masked in proptest::collection::vec(any::<bool>(), 80),
        ) {
            let mask = |(i, &logit)| if i > 0 && masked[i] { f32::NEG_INFINITY } else { logit };
            let logits: Vec<f32> = logits.iter().enumerate().map(mask).collect();
            for isa in Isa::all().into_iter().filter(|i| i.available()) {
                let mut counts = vec![0u32; logits.len()];
                let draws = 4000;
                let mut s = Sampling { temperature, top_k, top_p, min_p, seed: 7, choice: 0 };
                for position in 0..draws {
                    s.seed = position / 100;
                    counts[sample(isa, &logits, &s, position) as usize] += 1;
                }
                let fits = |edges: [f64; 2]| {
                    counts.iter().zip(distribution(&logits, &s, edges)).all(|(count, p)| {
                        let expected = p * draws as f64;
                        let spread = 6.0 * (expected.max(1.0)).sqrt() + 0.002 * draws as f64;
                        (f64::from(*count) - expected).abs() <= spread
                    })
                };
                // Rounding may put a token at a threshold on either side.
                let edges = [[1e-5, 1e-5], [1e-5, -1e-5], [-1e-5, 1e-5], [-1e-5, -1e-5]];
                prop_assert!(edges.into_iter().any(fits), "{isa}: {counts:?}");
            }
        }

        #[test]
        fn logprobs_agree_with_f64(
            logits in proptest::collection::vec(-30.0f32..30.0, 1..200),
            pick: proptest::sample::Index, k in 0usize..20,
        ) {
            let token = pick.index(logits.len());
            let norm = logits.iter().map(|&v| f64::from(v).exp()).sum::<f64>().ln();
            let mut sorted: Vec<f32> = logits.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            for isa in Isa::all().into_iter().filter(|i| i.available()) {
                let got = logprob(isa, &logits, token as u32, k);
                let want = f64::from(logits[token]) - norm;
                prop_assert!((f64::from(got.logprob) - want).abs() < 1e-4);
                let above = sorted.iter().filter(|&&v| v > logits[token]).count();
                prop_assert_eq!(got.rank as usize, above + 1);
                prop_assert_eq!(got.top.len(), k.min(logits.len()));
                for (i, (id, lp)) in got.top.iter().enumerate() {
                    prop_assert_eq!(logits[*id as usize], sorted[i]);
                    prop_assert!((f64::from(*lp) - (f64::from(sorted[i]) - norm)).abs() < 1e-4);
                }
            }
        }
    }

    #[test]
    fn the_nucleus_is_a_share_of_all_that_min_p_keeps() {
        // Total weight 10 * 1 + 90 * 0.05 = 14.5; half of it is 7.25, which takes 8 tokens.
        let logits: Vec<f32> = (0..100)
            .map(|id| if id < 10 { 0.0 } else { 0.05f32.ln() })
            .collect();
        for isa in Isa::all().into_iter().filter(|i| i.available()) {
            for (temperature, top_k, top_p, min_p, nucleus) in [
                (1.0, 0, 0.5, 0.01, 8),
                (1.0, 0, 0.5, 0.0, 8),
                (1.0, 99, 0.5, 0.01, 8),
                (1.0, 0, 0.5, 0.1, 5),
                (1.0, 55, 0.5, 0.01, 7),
            ] {
                let mut s = Sampling {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    seed: 3,
                    choice: 0,
                };
                let mut drawn = std::collections::BTreeSet::new();
                for position in 0..400 {
                    s.seed = position;
                    drawn.insert(sample(isa, &logits, &s, position));
                }
                assert_eq!(drawn, (0..nucleus).collect(), "{isa} {s:?}");
            }
        }
    }

    #[test]
    fn extreme_parameters_draw_a_token_that_is_there() {
        let flat = vec![0.25; 1000];
        let peaked: Vec<f32> = (0..1000)
            .map(|i| if i == 300 { 50.0 } else { -50.0 })
            .collect();
        for isa in Isa::all().into_iter().filter(|i| i.available()) {
            for (temperature, top_k, top_p) in [
                (1e-45, 0, 0.5),
                (1e-30, 5, 0.0),
                (f32::INFINITY, 0, 0.1),
                (1.0, 2000, 0.0),
                (1.0, 0, 0.0),
                (1.0, 0, 1e-30),
            ] {
                let s = Sampling {
                    temperature,
                    top_k,
                    top_p,
                    min_p: 0.0,
                    seed: 1,
                    choice: 0,
                };
                assert!(sample(isa, &flat, &s, 3) < 1000);
                let drawn = sample(isa, &peaked, &s, 3);
                assert!(
                    drawn == 300 || temperature == f32::INFINITY,
                    "{isa} {s:?}: {drawn}"
                );
                // A broken model's logits must not panic the sampler.
                assert!(sample(isa, &[f32::NAN; 40], &s, 3) < 40);
            }
        }
    }

    #[test]
    fn top_k_of_the_whole_vocabulary_draws_as_without() {
        let logits: Vec<f32> = (0..500).map(|i| (i as f32 * 0.37).sin() * 4.0).collect();
        let mut s = Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 5,
            choice: 0,
        };
        for position in 0..200 {
            s.top_k = 0;
            let all = sample(Isa::detect(), &logits, &s, position);
            for top_k in [500, 501, usize::MAX] {
                s.top_k = top_k;
                assert_eq!(sample(Isa::detect(), &logits, &s, position), all);
            }
        }
    }

    #[test]
    fn argmax_takes_the_first_of_equals() {
        for isa in Isa::all().into_iter().filter(|i| i.available()) {
            let mut logits = vec![0.5; 100];
            assert_eq!(argmax(isa, &logits), 0);
            logits[37] = 2.0;
            logits[81] = 2.0;
            assert_eq!(argmax(isa, &logits), 37);
        }
    }
}
