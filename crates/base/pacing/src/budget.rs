//! Budget of prompt tokens for mixed steps, which compute prompt tokens and decodes.

use crate::curve::{CostCurve, Points};

/// Maximum duration of a mixed step, as a multiple of the duration of a decode-only step. It limits
/// the inter-token latency during prefill (cf. the generation stalls in Agrawal et al. 2024,
/// Sarathi-Serve).
const STRETCH: f64 = 3.0;
/// Minimum number of prompt tokens in a mixed step. With fewer, a prompt would take long and delay
/// the queue. Meanwhile few sequences would decode, at a higher cost per decode.
const FEWEST: u32 = 32;
/// Minimum number of prompt tokens in a step whose cost is recorded, unless the step only decodes.
const COUNTED: u32 = 16;
/// Number of steps of a size that are recorded before their average is used, because the first one
/// may compile a kernel or capture a graph.
const SURE: u32 = 2;
/// Maximum extra cost of a prompt token over the cheapest known size, as a fraction. If a step
/// cannot meet both this limit and the latency bound, it exceeds the latency bound: one long step
/// finishes sooner than many short ones, also for running sequences.
const WASTE: f64 = 0.5;

/// Learns the cost of steps and bounds the prompt tokens of the next one.
///
/// Explores sizes upwards: a budget is at most twice the largest measured size. Measurements
/// expire, so that a cost learnt under unusual conditions does not persist.
#[derive(Debug, Clone)]
pub struct PromptBudget {
    /// Seconds of decode-only steps, by number of decodes.
    decodes: CostCurve,
    /// Extra seconds that prompt tokens add to a step that also decodes, by number of prompt
    /// tokens.
    prompts: CostCurve,
    /// Seconds of prompt-only steps, by number of prompt tokens: an upper bound on the cost of
    /// larger sizes before they are tried.
    alone: CostCurve,
    /// Number of mixed steps so far.
    mixed: u64,
    /// Whether the last step was timed.
    timed: bool,
}

impl Default for PromptBudget {
    fn default() -> Self {
        Self {
            decodes: CostCurve::new(SURE),
            prompts: CostCurve::new(SURE),
            alone: CostCurve::new(1),
            mixed: 0,
            timed: false,
        }
    }
}

impl PromptBudget {
    /// Records a step of `decodes` and `prompts` tokens that took `seconds`: positive, or 0 from a
    /// backend without timing, whose steps are not bounded.
    pub fn observe(&mut self, decodes: u32, prompts: u32, seconds: f64) {
        self.timed = seconds > 0.0 && seconds.is_finite();
        if !self.timed {
            return;
        }
        if decodes == 0 {
            if prompts >= COUNTED {
                self.alone.add(prompts, seconds, self.mixed);
            }
        } else if prompts == 0 {
            self.decodes.add(decodes, seconds, self.mixed);
        } else if prompts >= COUNTED {
            self.mixed += 1;
            if self.decodes.knows(decodes, self.mixed) {
                let alone = self.decode_seconds(decodes);
                let more = (seconds - alone).max(0.0);
                self.prompts.add(prompts, more, self.mixed);
            }
        }
    }

    /// Number of prompt tokens for a step with `decodes` decodes, at most `most`. Returns 0 while
    /// the cost of the decodes alone is unknown, so that the step measures it. Returns `most`
    /// without decodes, and if steps are not timed.
    #[must_use]
    pub fn tokens(&self, decodes: u32, most: usize) -> usize {
        if decodes == 0 || !self.timed {
            return most;
        }
        if !self.decodes.knows(decodes, self.mixed) {
            return 0;
        }
        let seconds = self.decode_seconds(decodes);
        let points = self.prompts.points(self.mixed);
        let end = (2.0 * points.last()).min(most as f64);
        let fitting = points.fitting((STRETCH - 1.0) * seconds, end);
        let cheapest = self.cheapest(&points, most as f64);
        let tokens = fitting
            .max(fewest(&points, end, cheapest))
            .max(f64::from(FEWEST));
        most.min(tokens as usize)
    }

    /// The lowest cost per prompt token over all measured sizes, mixed or prompt-only. If the
    /// largest prompt-only size is below half of `most`, the extrapolation to `most` counts too.
    fn cheapest(&self, points: &Points, most: f64) -> f64 {
        let alone = self.alone.points(self.mixed);
        let measured = points.as_slice().iter().chain(alone.as_slice());
        let slope = (2.0 * alone.last() < most).then(|| points.of_prompts(most) / most);
        let costs = measured.map(|point| point.1 / point.0).chain(slope);
        costs.fold(f64::INFINITY, f64::min)
    }

    fn decode_seconds(&self, decodes: u32) -> f64 {
        let points = self.decodes.points(self.mixed);
        points.of_decodes(f64::from(decodes))
    }
}

/// The smallest of 32, 64, 128, ... tokens, at most `end`, whose cost per token is close to
/// `cheapest`.
fn fewest(points: &Points, end: f64, cheapest: f64) -> f64 {
    let each = |size: f64| points.of_prompts(size) / size;
    let mut tokens = f64::from(FEWEST);
    while tokens < end && each(tokens) > (1.0 + WASTE) * cheapest {
        tokens *= 2.0;
    }
    tokens.min(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: usize = 8192;

    /// Learns from steps of `decodes` until the budget is stable.
    fn settled(decodes: u32, most: usize, cost: impl Fn(u32, u32) -> f64) -> PromptBudget {
        let mut budget = PromptBudget::default();
        budget.observe(0, 64, cost(0, 64));
        for _ in 0..100 {
            let tokens = budget.tokens(decodes, most) as u32;
            budget.observe(decodes, tokens, cost(decodes, tokens));
        }
        budget
    }

    /// A device whose steps have a fixed cost for prompts plus a cost per token.
    fn affine(decode: f64, fixed: f64, each: f64) -> impl Fn(u32, u32) -> f64 {
        move |_, tokens| match tokens {
            0 => decode,
            _ => decode + fixed + each * f64::from(tokens),
        }
    }

    #[test]
    fn decodes_are_measured_alone_first() {
        let mut budget = PromptBudget::default();
        assert_eq!(budget.tokens(4, MOST), MOST, "no step was timed");
        budget.observe(0, 100, 0.1);
        assert_eq!(budget.tokens(0, MOST), MOST);
        for _ in 0..2 {
            assert_eq!(budget.tokens(4, MOST), 0);
            budget.observe(4, 0, 0.01);
        }
        assert_eq!(budget.tokens(4, MOST), FEWEST as usize);
        assert_eq!(budget.tokens(8, MOST), 0, "a size of its own");
        assert_eq!(budget.tokens(4, 5), 5);
    }

    #[test]
    fn a_step_lasts_as_long_as_the_bound_where_tokens_cost_in_proportion() {
        let budget = settled(4, MOST, affine(0.010, 0.0, 0.000_25));
        let fitting = (STRETCH - 1.0) * 0.010 / 0.000_25;
        assert!((budget.tokens(4, MOST) as f64 - fitting).abs() < 2.0);
    }

    #[test]
    fn a_fixed_cost_larger_than_the_bound_is_shared_by_many_tokens() {
        // Qwen3-0.6B on an H100, where steps with prompts launch kernels one by one.
        let budget = settled(8, MOST, affine(0.0017, 0.011, 0.000_003));
        assert!(budget.tokens(8, MOST) >= 4096);
        // The same with a more expensive token: half the bytes, four times the arithmetic.
        let budget = settled(8, MOST, affine(0.0017, 0.011, 0.000_1));
        let tokens = budget.tokens(8, MOST) as f64;
        assert!((256.0..=2048.0).contains(&tokens), "{tokens}");
    }

    #[test]
    fn a_fixed_cost_that_goes_away_is_noticed() {
        let mut budget = settled(8, MOST, affine(0.007, 0.020, 0.000_02));
        assert!(budget.tokens(8, MOST) >= 1024);
        let cost = affine(0.007, 0.0, 0.000_02);
        for _ in 0..2000 {
            let tokens = budget.tokens(8, MOST) as u32;
            budget.observe(8, tokens, cost(8, tokens));
        }
        let fitting = (STRETCH - 1.0) * 0.007 / 0.000_02;
        assert!((budget.tokens(8, MOST) as f64 - fitting).abs() < 10.0);
    }

    #[test]
    fn a_device_that_measures_nothing_is_not_bounded() {
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut budget = settled(3, MOST, affine(0.010, 0.0, 0.000_25));
            budget.observe(3, 0, seconds);
            assert_eq!(budget.tokens(3, MOST), MOST);
        }
    }

    #[test]
    fn short_chunks_teach_nothing() {
        let mut budget = settled(4, MOST, affine(0.010, 0.0, 0.000_25));
        let before = budget.tokens(4, MOST);
        budget.observe(4, COUNTED - 1, 5.0);
        budget.observe(0, COUNTED - 1, 5.0);
        assert_eq!(budget.tokens(4, MOST), before);
    }

    #[test]
    fn the_first_step_of_a_size_may_be_slow() {
        // Each size captures a graph at its first use.
        let mut seen = std::collections::HashSet::new();
        let plain = affine(0.007, 0.001, 0.000_02);
        let mut budget = PromptBudget::default();
        budget.observe(0, 64, 0.2);
        for _ in 0..200 {
            let tokens = budget.tokens(8, MOST) as u32;
            let first = seen.insert(u32::BITS - tokens.leading_zeros());
            budget.observe(
                8,
                tokens,
                plain(8, tokens) + f64::from(u8::from(first)) * 0.2,
            );
        }
        let fitting = ((STRETCH - 1.0) * 0.007 - 0.001) / 0.000_02;
        let tokens = budget.tokens(8, MOST) as f64;
        assert!(
            (tokens / fitting - 1.0).abs() < 0.1,
            "{tokens} of {fitting}"
        );
    }

    proptest! {
        /// After any history, 3,000 steps of one device lead to that device's budget.
        #[test]
        fn no_history_locks_it_in(
            history in prop::collection::vec((0u32..300, 0u32..9000, 0.0..1.0f64), 0..60),
            decode in 0.001..0.02f64,
            fixed in 0.0..0.02f64,
            each in 0.000_001..0.001f64,
        ) {
            let mut budget = PromptBudget::default();
            budget.observe(0, 64, decode);
            for (decodes, prompts, seconds) in history {
                budget.observe(decodes, prompts, seconds);
            }
            let cost = affine(decode, fixed, each);
            for _ in 0..3000 {
                let tokens = budget.tokens(8, MOST) as u32;
                budget.observe(8, tokens, cost(8, tokens));
            }
            let tokens = budget.tokens(8, MOST) as f64;
            let bound = STRETCH * decode;
            let cheapest = fixed / MOST as f64 + each;
            let waste = |tokens: f64| (fixed / tokens + each) / cheapest;
            let long = cost(8, tokens as u32);
            // Within the bound, unless tokens would be expensive; and no longer than required to
            // keep them cheap.
            prop_assert!(
                long <= bound * 1.01
                    || tokens <= f64::from(2 * FEWEST)
                    || waste(tokens / 2.0 - 1.0) > 1.0 + WASTE / 2.0,
                "{tokens} tokens, {long} s of {bound}",
            );
            let aim = ((bound - decode - fixed) / each).min(MOST as f64);
            prop_assert!(
                tokens >= 0.9 * aim.min(MOST as f64 - 1.0) || tokens as usize == MOST,
                "{tokens} tokens, {aim} fit",
            );
            prop_assert!(tokens as usize == MOST || waste(tokens) <= 1.0 + 2.0 * WASTE, "{tokens}");
        }
    }
}
