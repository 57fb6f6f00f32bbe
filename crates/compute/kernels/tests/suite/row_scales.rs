//! Matrices with a scale for each output: codes of 8 bits against f64, and against the product
//! without scales.

use super::common::{Floats, Rng, bits, isas, multiply, seen, unpacked};
use penstock_kernels::{
    ActivationFormat, Activations, Cpu, Linear, Mode, Packed, ThreadPool, WeightFormat,
};
use proptest::prelude::*;

/// Random codes from -128 to 127.
fn random_codes(rng: &mut Rng, n: usize, k: usize) -> Vec<f32> {
    (0..n * k).map(|_| rng.below(256) as f32 - 128.0).collect()
}

/// Random scales, some of them 0, negative, tiny or huge.
fn random_scales(rng: &mut Rng, n: usize) -> Vec<f32> {
    let scale = |rng: &mut Rng| {
        let random = 0.01 * rng.unit();
        [random, random, 0.0, 1e-20, -1e20][rng.below(5)]
    };
    (0..n).map(|_| scale(rng)).collect()
}

fn packed(form: WeightFormat, k: usize, codes: &[f32]) -> Packed {
    let pool = ThreadPool::new(2).unwrap();
    let source = Floats {
        k,
        weights: codes.to_vec(),
    };
    Packed::pack(&pool, form, codes.len() / k, k, &source)
}

fn linear(parts: Vec<Packed>, bias: Option<Vec<f32>>) -> Linear {
    Linear { parts, bias }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn codes_of_8_bits_are_exact_in_bf16(
        m in 1usize..40, k in 1usize..150, n in 1usize..70, threads in 1usize..4,
        seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let (codes, scales) = (random_codes(&mut rng, n, k), random_scales(&mut rng, n));
        let (x, bias) = (rng.vec(m * k, 3.0), rng.vec(n, 2.0));
        let w = packed(WeightFormat::Bf16, k, &codes).with_row_scales(scales.clone());
        for (i, held) in unpacked(&w).into_iter().enumerate() {
            prop_assert_eq!(held, codes[i] * scales[i / k]);
        }
        let linear = linear(vec![w], Some(bias.clone()));
        for isa in isas() {
            let got = multiply(isa, threads, &linear, &x, m);
            for (x, got) in x.chunks_exact(k).zip(got.chunks_exact(n)) {
                let acts = seen(x, ActivationFormat::Bf16);
                for (feature, got) in got.iter().enumerate() {
                    let (scale, bias) = (f64::from(scales[feature]), f64::from(bias[feature]));
                    let codes = &codes[feature * k..][..k];
                    let terms = || codes.iter().zip(&acts).map(|(c, a)| scale * f64::from(*c) * a);
                    let want = terms().sum::<f64>();
                    let magnitude = terms().map(f64::abs).sum::<f64>();
                    let slack = (k + 4) as f64 * 2f64.powi(-24) * (magnitude + bias.abs()) + 1e-37;
                    let off = (f64::from(*got) - want - bias).abs();
                    prop_assert!(off <= slack, "{isa}: {got}, not {}", want + bias);
                }
            }
        }
    }

    #[test]
    fn a_scale_multiplies_the_sum(
        form in proptest::sample::select(
            &[WeightFormat::Bf16, WeightFormat::F32, WeightFormat::W8, WeightFormat::W4][..]
        ),
        m in 1usize..20, k in 1usize..100, n in 2usize..70, add in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let (codes, scales) = (random_codes(&mut rng, n, k), random_scales(&mut rng, n));
        let (x, bias, before) = (rng.vec(m * k, 3.0), rng.vec(n, 2.0), rng.vec(m * n, 2.0));
        let cut = 1 + rng.below(n - 1);
        let parts = [0..cut, cut..n].map(|part| {
            let codes = &codes[part.start * k..part.end * k];
            packed(form, k, codes).with_row_scales(scales[part].to_vec())
        });
        let plain = linear(vec![packed(form, k, &codes)], None);
        let scaled = linear(parts.into(), Some(bias.clone()));
        for isa in isas() {
            let cpu = Cpu::new(isa, 3).unwrap();
            let (mut acts, mut got) = (Activations::default(), before.clone());
            cpu.norm_quantize(&x, m, k, None, scaled.activation_format(), &mut acts);
            cpu.matmul(&scaled, &acts, &mut got, if add { Mode::Add } else { Mode::Store });
            let sums = multiply(isa, 1, &plain, &x, m);
            let want = sums.iter().enumerate().map(|(i, sum)| {
                let value = sum * scales[i % n] + bias[i % n];
                if add { before[i] + value } else { value }
            });
            prop_assert_eq!(bits(&got), bits(&want.collect::<Vec<_>>()), "{}", isa);
        }
    }
}
