//! Model of the duration of an engine step.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random;

/// Properties of a step that determine its duration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StepShape {
    /// Number of sequences that compute a single token.
    pub(crate) decodes: u32,
    /// Number of tokens in chunks of more than one token.
    pub(crate) prompt_tokens: u32,
    /// Number of tokens that the decodes attend to, summed over the decodes.
    pub(crate) decode_context: u64,
    /// Number of pairs of a chunk's token and a token that it attends to, summed over the chunks.
    pub(crate) prompt_context: u64,
}

/// Duration of a step, in microseconds: the sum of costs (base, decodes, prompt tokens, attention),
/// at least `prompt_floor_us` if it has prompt tokens, times a jitter factor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Timing {
    /// Fixed cost of every step.
    pub(crate) base_us: f64,
    /// Cost of decoding n sequences, as points (n, cost) in ascending order of n. It is linear
    /// between the points, from (0, 0) on, and beyond the last one.
    pub(crate) decode_us: Vec<(u32, f64)>,
    /// Cost per prompt token.
    pub(crate) prompt_us_per_token: f64,
    /// Minimum cost of a step with prompt tokens: the time to launch its kernels, which a longer
    /// step hides. Steps that only decode are CUDA graphs, so they have no such minimum.
    pub(crate) prompt_floor_us: f64,
    /// Cost for every thousand tokens that a decode attends to.
    pub(crate) decode_us_per_context_ktoken: f64,
    /// Cost for every thousand pairs of a prompt token and a token that it attends to.
    pub(crate) prompt_us_per_context_ktoken: f64,
    /// Half-width of the random factor: it is uniform in [1 - jitter, 1 + jitter].
    pub(crate) jitter: f64,
}

impl Default for Timing {
    /// SmolLM2-135M with 4-bit weights on two cores of an AMD EPYC with AVX-512, fitted to measured
    /// steps in which only the batch size, the context or the chunk varied.
    fn default() -> Self {
        Self {
            base_us: 100.0,
            decode_us: vec![(1, 1_950.0), (4, 3_400.0), (8, 5_100.0), (32, 11_700.0)],
            prompt_us_per_token: 192.0,
            prompt_floor_us: 0.0,
            decode_us_per_context_ktoken: 780.0,
            prompt_us_per_context_ktoken: 120.0,
            jitter: 0.0,
        }
    }
}

impl Timing {
    /// Steps that take no time.
    pub(crate) fn instant() -> Self {
        Self {
            base_us: 0.0,
            decode_us: Vec::new(),
            prompt_us_per_token: 0.0,
            prompt_floor_us: 0.0,
            decode_us_per_context_ktoken: 0.0,
            prompt_us_per_context_ktoken: 0.0,
            jitter: 0.0,
        }
    }

    /// Describes the first invalid value; `None` if all are valid.
    pub(crate) fn complaint(&self) -> Option<String> {
        let costs = [
            ("base_us", self.base_us),
            ("prompt_us_per_token", self.prompt_us_per_token),
            ("prompt_floor_us", self.prompt_floor_us),
            (
                "decode_us_per_context_ktoken",
                self.decode_us_per_context_ktoken,
            ),
            (
                "prompt_us_per_context_ktoken",
                self.prompt_us_per_context_ktoken,
            ),
        ];
        if let Some((name, value)) = costs.iter().find(|(_, value)| !is_cost(*value)) {
            return Some(format!("timing.{name} must be 0 to 1e9, not {value}"));
        }
        if !(0.0..1.0).contains(&self.jitter) {
            return Some(format!(
                "timing.jitter must be at least 0 and under 1, not {}",
                self.jitter
            ));
        }
        let ascending = self.decode_us.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let valid = |&(n, cost): &(u32, f64)| n >= 1 && is_cost(cost);
        (!ascending || !self.decode_us.iter().all(valid)).then(|| {
            "timing.decode_us must be [batch, cost] pairs with ascending batches from 1 and \
             costs of 0 to 1e9"
                .to_owned()
        })
    }

    /// Duration of step number `step`. `seed` determines the jitter.
    pub(crate) fn cost(&self, shape: &StepShape, seed: u64, step: u64) -> Duration {
        let attention = shape.decode_context as f64 * self.decode_us_per_context_ktoken
            + shape.prompt_context as f64 * self.prompt_us_per_context_ktoken;
        let us = self.base_us
            + self.decode_cost(shape.decodes)
            + f64::from(shape.prompt_tokens) * self.prompt_us_per_token
            + attention / 1e3;
        let us = match shape.prompt_tokens {
            0 => us,
            _ => us.max(self.prompt_floor_us),
        };
        let factor = match self.jitter {
            0.0 => 1.0,
            jitter => 1.0 + jitter * (2.0 * random::unit(random::join(seed, step)) - 1.0),
        };
        Duration::from_nanos((us * factor * 1e3).round() as u64)
    }

    fn decode_cost(&self, decodes: u32) -> f64 {
        let mut before = (0, 0.0);
        let mut slope = 0.0;
        for &(batch, cost) in &self.decode_us {
            slope = (cost - before.1) / f64::from(batch - before.0);
            if decodes <= batch {
                break;
            }
            before = (batch, cost);
        }
        (before.1 + slope * f64::from(decodes - before.0)).max(0.0)
    }
}

fn is_cost(value: f64) -> bool {
    (0.0..=1e9).contains(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(timing: &Timing, shape: StepShape) -> f64 {
        timing.cost(&shape, 0, 1).as_secs_f64() * 1e6
    }

    #[test]
    fn decodes_are_linear_between_points_and_beyond() {
        let timing = Timing {
            base_us: 100.0,
            decode_us: vec![(2, 1000.0), (4, 1400.0)],
            ..Timing::instant()
        };
        let of = |decodes| {
            cost(
                &timing,
                StepShape {
                    decodes,
                    ..StepShape::default()
                },
            )
        };
        let expected = [100.0, 600.0, 1100.0, 1300.0, 1500.0, 1700.0, 1900.0];
        for (decodes, expected) in (0..).zip(expected) {
            assert!((of(decodes) - expected).abs() < 1e-6, "{decodes}");
        }
    }

    #[test]
    fn prompt_and_context_add_up() {
        let timing = Timing {
            prompt_us_per_token: 3.0,
            decode_us_per_context_ktoken: 5.0,
            prompt_us_per_context_ktoken: 0.5,
            ..Timing::instant()
        };
        let shape = StepShape {
            decodes: 2,
            prompt_tokens: 10,
            decode_context: 4000,
            prompt_context: 2000,
        };
        assert!((cost(&timing, shape) - (30.0 + 20.0 + 1.0)).abs() < 1e-6);
    }

    #[test]
    fn a_step_with_prompt_tokens_costs_its_floor_at_least() {
        let timing = Timing {
            base_us: 10.0,
            prompt_us_per_token: 3.0,
            prompt_floor_us: 100.0,
            ..Timing::instant()
        };
        let of = |decodes, prompt_tokens| {
            let shape = StepShape {
                decodes,
                prompt_tokens,
                ..StepShape::default()
            };
            cost(&timing, shape)
        };
        let costs = [of(5, 0), of(0, 1), of(5, 30), of(0, 31)];
        for (cost, expected) in costs.into_iter().zip([10.0, 100.0, 100.0, 103.0]) {
            assert!((cost - expected).abs() < 1e-6, "{cost} {expected}");
        }
    }

    #[test]
    fn jitter_stays_in_its_band_and_follows_the_seed() {
        let timing = Timing {
            base_us: 1000.0,
            jitter: 0.2,
            ..Timing::instant()
        };
        let at = |seed, step| timing.cost(&StepShape::default(), seed, step);
        let costs: Vec<_> = (1..500).map(|step| at(1, step).as_micros()).collect();
        assert!(costs.iter().all(|us| (800..=1200).contains(us)));
        assert!(costs.iter().any(|us| *us < 850) && costs.iter().any(|us| *us > 1150));
        assert_eq!(at(1, 7), at(1, 7));
        assert_ne!(at(1, 7), at(2, 7));
    }

    #[test]
    fn wrong_values_are_named() {
        let complaint = |change: fn(&mut Timing)| {
            let mut timing = Timing::default();
            change(&mut timing);
            timing.complaint().unwrap_or_default()
        };
        assert!(complaint(|t| t.base_us = -1.0).contains("base_us"));
        assert!(complaint(|t| t.prompt_us_per_token = f64::NAN).contains("prompt_us_per_token"));
        assert!(complaint(|t| t.jitter = 1.0).contains("jitter"));
        assert!(complaint(|t| t.decode_us = vec![(2, 1.0), (2, 2.0)]).contains("decode_us"));
        assert_eq!(complaint(|_| ()), "");
    }
}
