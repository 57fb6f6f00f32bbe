//! Rotary frequencies and angles.

use std::f64::consts::PI;

use crate::spec::{RopeScaling, RopeSpec};

/// A rotation with precomputed frequencies.
pub(crate) struct Rope {
    /// Frequency of each pair of numbers, in f32 as in the reference implementations.
    frequencies: Vec<f32>,
    /// Scale of cosines and sines.
    factor: f32,
}

impl Rope {
    /// Rotation of `dims` numbers per head. `stored` are the divisors for [`RopeScaling::Factors`].
    pub(crate) fn new(rope: &RopeSpec, dims: usize, stored: Option<&[f32]>) -> Self {
        let theta = rope.theta as f32;
        let base = (0..dims / 2).map(|i| 1.0 / theta.powf((2 * i) as f32 / dims as f32));
        let frequencies = match &rope.scaling {
            None => base.collect(),
            Some(RopeScaling::Yarn { .. }) => yarn(rope, dims),
            Some(scaling) => base
                .enumerate()
                .map(|(i, frequency)| scaled(frequency, i, scaling, stored))
                .collect(),
        };
        let factor = match &rope.scaling {
            Some(
                RopeScaling::Yarn {
                    attention_factor, ..
                }
                | RopeScaling::Longrope {
                    attention_factor, ..
                },
            ) => *attention_factor,
            Some(RopeScaling::Factors { attention_factor }) => attention_factor.unwrap_or(1.0),
            _ => 1.0,
        };
        Self {
            frequencies,
            factor,
        }
    }

    /// Number of rotated numbers per head.
    pub(crate) fn dims(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Cosines, then sines, of all pairs at `position`.
    pub(crate) fn angles(&self, position: usize, out: &mut [f32]) {
        let (cos, sin) = out.split_at_mut(self.frequencies.len());
        for ((f, c), s) in self.frequencies.iter().zip(cos).zip(sin) {
            // The product is rounded to f32 as in the reference implementations; the functions
            // themselves are exact to f32.
            let angle = f64::from(position as f32 * f);
            (*c, *s) = (
                angle.cos() as f32 * self.factor,
                angle.sin() as f32 * self.factor,
            );
        }
    }
}

/// The frequency of pair `i`, for scalings in which it does not depend on other pairs.
fn scaled(frequency: f32, i: usize, scaling: &RopeScaling, stored: Option<&[f32]>) -> f32 {
    match scaling {
        RopeScaling::Linear { factor } => frequency / *factor as f32,
        RopeScaling::Factors { .. } => frequency / stored.map_or(1.0, |divisors| divisors[i]),
        RopeScaling::Longrope { divisors, .. } => frequency / divisors[i],
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position,
        } => {
            let wavelength = 2.0 * PI / f64::from(frequency);
            let (ratio, span) = (
                original_max_position / wavelength,
                high_freq_factor - low_freq_factor,
            );
            // With an empty span (Llama 4 Scout) the ramp is a step.
            let ramp = match span == 0.0 {
                true => f64::from(u8::from(ratio >= *high_freq_factor)),
                false => ((ratio - low_freq_factor) / span).clamp(0.0, 1.0),
            };
            let frequency = f64::from(frequency);
            ((1.0 - ramp) * frequency / factor + ramp * frequency) as f32
        }
        RopeScaling::Yarn { .. } => frequency,
    }
}

/// YaRN's frequencies: a ramp over the pairs from unscaled to divided by `factor`.
fn yarn(rope: &RopeSpec, dims: usize) -> Vec<f32> {
    let Some(RopeScaling::Yarn {
        factor,
        original_max_position,
        beta_fast,
        beta_slow,
        fractional,
        ..
    }) = &rope.scaling
    else {
        return Vec::new();
    };
    let pair = |turns: f64| {
        let wavelength = original_max_position / (2.0 * PI * turns);
        dims as f64 * wavelength.ln() / (2.0 * rope.theta.ln())
    };
    let (mut low, mut high) = (pair(*beta_fast), pair(*beta_slow));
    if !fractional {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(dims as f64 - 1.0));
    if low == high {
        high += 0.001;
    }
    let frequency = |i: usize| {
        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        let plain = rope.theta.powf(-2.0 * i as f64 / dims as f64);
        (plain * (ramp / factor + 1.0 - ramp)) as f32
    };
    (0..dims / 2).map(frequency).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama3(factor: f64, high_freq_factor: f64) -> RopeScaling {
        RopeScaling::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor,
            original_max_position: 8192.0,
        }
    }

    fn rope(theta: f64, dims: usize, scaling: Option<RopeScaling>) -> Rope {
        let dims_of_head = None;
        let spec = RopeSpec {
            theta,
            dims: dims_of_head,
            scaling,
        };
        Rope::new(&spec, dims, None)
    }

    fn assert_near(rope: &Rope, golden: &[(usize, f64)]) {
        for &(pair, want) in golden {
            let got = f64::from(rope.frequencies[pair]);
            assert!(
                (got - want).abs() <= 5e-7 * want,
                "pair {pair}: {got:e}, not {want:e}"
            );
        }
    }

    #[test]
    fn llama3_scaling_keeps_high_and_divides_low_frequencies() {
        let scaling = llama3(8.0, 4.0);
        assert_eq!(scaled(1.0, 0, &scaling, None), 1.0);
        let low = 1e-5;
        assert!((scaled(low, 0, &scaling, None) - low / 8.0).abs() < 1e-12);
        // Wavelength of half the original context: ratio 2, a third of the ramp.
        let f = (2.0 * PI / 4096.0) as f32;
        let expected = f64::from(f) * (2.0 / 3.0 / 8.0 + 1.0 / 3.0);
        assert!((f64::from(scaled(f, 0, &scaling, None)) - expected).abs() < 1e-9);
        assert_near(
            &rope(5e5, 128, Some(scaling)),
            &[
                (28, 3.211_446_1e-3),
                (29, 2.166_570_6e-3),
                (32, 5.248_460_2e-4),
                (35, 9.556_212e-5),
                (63, 3.068_925_9e-7),
            ],
        );
    }

    /// Llama 4 Scout.
    #[test]
    fn llama3_scaling_without_a_ramp_is_a_step() {
        let (plain, stepped) = (
            rope(5e5, 128, None),
            rope(5e5, 128, Some(llama3(16.0, 1.0))),
        );
        let pairs = plain.frequencies.iter().zip(&stepped.frequencies);
        for (i, (plain, stepped)) in pairs.enumerate() {
            let divisor = if i < 35 { 1.0 } else { 16.0 };
            assert_eq!(*stepped, plain / divisor, "pair {i}");
        }
    }

    fn yarn(
        factor: f64,
        original_max_position: f64,
        betas: [f64; 2],
        fractional: bool,
    ) -> Option<RopeScaling> {
        let [beta_fast, beta_slow] = betas;
        Some(RopeScaling::Yarn {
            factor,
            original_max_position,
            beta_fast,
            beta_slow,
            fractional,
            attention_factor: 1.5,
        })
    }

    /// Expected values from transformers: gpt-oss, DeepSeek-V3, Kimi-K2 and Qwen3.
    #[test]
    fn yarn_has_the_frequencies_of_transformers() {
        let gpt_oss = rope(150_000.0, 64, yarn(32.0, 4096.0, [32.0, 1.0], true));
        assert_near(
            &gpt_oss,
            &[
                (1, 6.890_443e-1),
                (8, 5.081_327_5e-2),
                (9, 3.170_569_6e-2),
                (10, 1.933_5e-2),
                (12, 6.794_959_5e-3),
                (16, 4.564_839_2e-4),
                (31, 3.023_511_4e-7),
            ],
        );
        let deepseek = rope(10_000.0, 64, yarn(40.0, 4096.0, [32.0, 1.0], false));
        assert_near(
            &deepseek,
            &[(12, 2.687_936e-2), (16, 5.5e-3), (31, 3.333_803_6e-6)],
        );
        let kimi = rope(50_000.0, 64, yarn(32.0, 4096.0, [1.0, 1.0], false));
        assert_near(
            &kimi,
            &[(12, 1.729_363_3e-2), (16, 4.472_136e-3), (31, 8.764_413e-7)],
        );
        let qwen3 = rope(1e6, 128, yarn(4.0, 32768.0, [32.0, 1.0], false));
        assert_near(&qwen3, &[(63, 3.102_344_4e-7)]);
    }

    #[test]
    fn the_attention_factor_multiplies_cosines_and_sines() {
        let rope = rope(150_000.0, 64, yarn(32.0, 4096.0, [32.0, 1.0], true));
        let mut angles = [0.0; 64];
        rope.angles(0, &mut angles);
        assert_eq!(angles[..32], [1.5; 32]);
        rope.angles(100, &mut angles);
        let length = (angles[5].powi(2) + angles[37].powi(2)).sqrt();
        assert!((length - 1.5).abs() < 1e-6);
    }

    #[test]
    fn longrope_divides_each_frequency() {
        let scaling = RopeScaling::Longrope {
            divisors: vec![1.0, 2.5, 4.0],
            attention_factor: 1.19,
        };
        let (plain, long) = (rope(1e4, 6, None), rope(1e4, 6, Some(scaling)));
        for (i, divisor) in [1.0, 2.5, 4.0].into_iter().enumerate() {
            assert_eq!(long.frequencies[i], plain.frequencies[i] / divisor);
        }
        assert_eq!(long.factor, 1.19);
    }
}
