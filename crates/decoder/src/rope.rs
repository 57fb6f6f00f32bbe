//! Rotary frequencies and angles.

use crate::spec::{RopeScaling, RopeSpec};

/// Frequency of every pair of `dim` numbers, f32 as the reference implementations hold them.
/// `factors` are the divisors of [`RopeScaling::Factors`].
pub(crate) fn frequencies(rope: &RopeSpec, dim: usize, factors: Option<&[f32]>) -> Vec<f32> {
    let theta = rope.theta as f32;
    let base = (0..dim / 2).map(|i| 1.0 / theta.powf((2 * i) as f32 / dim as f32));
    base.enumerate()
        .map(|(i, frequency)| scaled(frequency, rope.scaling.as_ref(), factors.map(|f| f[i])))
        .collect()
}

fn scaled(frequency: f32, scaling: Option<&RopeScaling>, stored: Option<f32>) -> f32 {
    match scaling {
        None => frequency,
        Some(RopeScaling::Linear { factor }) => frequency / *factor as f32,
        Some(RopeScaling::Factors) => frequency / stored.unwrap_or(1.0),
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position,
        }) => {
            let wavelength = 2.0 * std::f64::consts::PI / f64::from(frequency);
            let ratio = original_max_position / wavelength;
            let ramp =
                ((ratio - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
            let frequency = f64::from(frequency);
            ((1.0 - ramp) * frequency / factor + ramp * frequency) as f32
        }
    }
}

/// Cosines, then sines, of every pair at `position`.
pub(crate) fn angles(frequencies: &[f32], position: usize, out: &mut [f32]) {
    let (cos, sin) = out.split_at_mut(frequencies.len());
    for ((f, c), s) in frequencies.iter().zip(cos).zip(sin) {
        // The product is rounded to f32 as in the reference implementations; the functions
        // themselves are exact to f32.
        let angle = f64::from(position as f32 * f);
        (*c, *s) = (angle.cos() as f32, angle.sin() as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scaling_keeps_high_and_divides_low_frequencies() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 8192.0,
        };
        assert_eq!(scaled(1.0, Some(&scaling), None), 1.0);
        let low = 1e-5;
        assert!((scaled(low, Some(&scaling), None) - low / 8.0).abs() < 1e-12);
        // Wavelength of half the original context: ratio 2, a third of the ramp.
        let f = (2.0 * std::f64::consts::PI / 4096.0) as f32;
        let expected = f64::from(f) * (2.0 / 3.0 / 8.0 + 1.0 / 3.0);
        assert!((f64::from(scaled(f, Some(&scaling), None)) - expected).abs() < 1e-9);
    }
}
