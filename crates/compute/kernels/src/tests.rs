//! White-box tests of the conversion of activation rows: codes, scales and sums.
#![allow(clippy::unwrap_used)]

use half::bf16;
use proptest::prelude::*;

use crate::{ActivationFormat, Activations, Cpu, GROUP, Isa, Norm, NormKind};

fn isas() -> impl Iterator<Item = Isa> {
    Isa::all().into_iter().filter(|isa| isa.available())
}

fn norm_quantize(
    isa: Isa,
    x: &[f32],
    k: usize,
    norm: Option<&Norm>,
    form: ActivationFormat,
) -> Activations {
    let mut acts = Activations::default();
    Cpu::new(isa, 2)
        .unwrap()
        .norm_quantize(x, x.len() / k, k, norm, form, &mut acts);
    acts
}

/// Numbers of many magnitudes, with zeros and subnormals.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -3.0f32..3.0, 1 => Just(0.0), 1 => -1e30f32..1e30, 1 => -1e-38f32..1e-38,
        1 => -1e-3f32..1e-3
    ]
}

/// Rows of equal length, of any remainder.
fn rows() -> impl Strategy<Value = (usize, Vec<f32>)> {
    (1usize..130, 1usize..6)
        .prop_flat_map(|(k, m)| (Just(k), proptest::collection::vec(number(), k * m)))
}

proptest! {
    #[test]
    fn quantised_rows_are_near_and_their_sums_are_exact((k, x) in rows()) {
        for isa in isas() {
            let acts = norm_quantize(isa, &x, k, None, ActivationFormat::Int8);
            let groups = acts.k_padded / GROUP;
            prop_assert_eq!(acts.k_padded, k.next_multiple_of(32));
            for (i, row) in x.chunks(k).enumerate() {
                for g in 0..groups {
                    let (codes, group) = (
                        &acts.codes[i * acts.k_padded + g * GROUP..][..GROUP],
                        &row[g * GROUP..k.min((g + 1) * GROUP)]
                    );
                    let max = group.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                    let (at, scale) = (i * groups + g, max / 127.0);
                    prop_assert_eq!(acts.scales[at], scale);
                    let sum: i32 = codes.iter().map(|&c| i32::from(c)).sum();
                    prop_assert_eq!(acts.offsets[at], -128 * sum);
                    prop_assert_eq!(acts.scaled_sums[at], scale * sum as f32);
                    for (j, &code) in codes.iter().enumerate() {
                        let v = group.get(j).copied().unwrap_or(0.0);
                        // -128 would overflow when the sign of a weight moves to the activation.
                        prop_assert!(code >= -127);
                        let off = (f64::from(v) - f64::from(code) * f64::from(scale)).abs();
                        prop_assert!(off <= 0.5001 * f64::from(scale) + 1.01e-30, "{isa}: {v} \
                            became {code} x {scale}");
                    }
                }
            }
        }
    }

    #[test]
    fn conversions_agree_between_instruction_sets((k, x) in rows()) {
        let want = norm_quantize(Isa::Portable, &x, k, None, ActivationFormat::Int8);
        for isa in isas() {
            let got = norm_quantize(isa, &x, k, None, ActivationFormat::Int8);
            prop_assert_eq!(&want.codes[..], &got.codes[..], "{}", isa);
            prop_assert_eq!(&want.scales[..], &got.scales[..], "{}", isa);
            prop_assert_eq!(&want.scaled_sums[..], &got.scaled_sums[..], "{}", isa);
            prop_assert_eq!(&want.offsets[..], &got.offsets[..], "{}", isa);
        }
    }

    #[test]
    fn bf16_rows_are_rounded_to_nearest_even(
        k in 1usize..70, patterns in proptest::collection::vec(any::<u32>(), 70)
    ) {
        let x: Vec<f32> = patterns[..k].iter().map(|&p| f32::from_bits(p)).collect();
        for isa in isas() {
            let acts = norm_quantize(isa, &x, k, None, ActivationFormat::Bf16);
            for (i, &got) in acts.halves[..acts.k_padded].iter().enumerate() {
                let v = x.get(i).copied().unwrap_or(0.0);
                let want = bf16::from_f32(v);
                // The AVX-512 conversion flushes subnormals to zero, as its dot product does.
                let flushed = v.is_subnormal() && got & 0x7fff == 0;
                let nan = v.is_nan() && bf16::from_bits(got).is_nan();
                prop_assert!(got == want.to_bits() || flushed || nan, "{isa}: {v:e} became \
                    {got:#06x}, not {:#06x}", want.to_bits());
            }
        }
    }

    #[test]
    fn norms_are_near_f64(
        k in 1usize..130, scale in prop_oneof![Just(1.0f32), Just(1e-4), Just(1e4)],
        layer in any::<bool>(), biased in any::<bool>(),
        seed in proptest::collection::vec((-1.0f32..1.0, -2.0f32..2.0, -2.0f32..2.0), 130),
    ) {
        let x: Vec<f32> = seed[..k].iter().map(|s| s.0 * scale).collect();
        let weight: Vec<f32> = seed[..k].iter().map(|s| s.1).collect();
        let bias: Vec<f32> = seed[..k].iter().map(|s| s.2).collect();
        let mean =
            if layer { x.iter().map(|&v| f64::from(v)).sum::<f64>() / k as f64 } else { 0.0 };
        let squares: f64 = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum();
        let deviation = (squares / k as f64 + 1e-5).sqrt();
        // The mean is rounded to f32, relative to the largest numbers.
        let slack = 2e-6 * f64::from(scale) / deviation * f64::from(u8::from(layer));
        let kind = if layer { NormKind::Layer } else { NormKind::Rms };
        let norm =
            Norm { kind, weight: weight.clone(), bias: biased.then(|| bias.clone()), eps: 1e-5 };
        let mut before: Option<Vec<f32>> = None;
        for isa in isas() {
            let acts = norm_quantize(isa, &x, k, Some(&norm), ActivationFormat::F32);
            let got = &acts.floats[..acts.k_padded];
            for (i, &got) in got.iter().enumerate() {
                let scaled = if i < k {
                    (f64::from(x[i]) - mean) / deviation * f64::from(weight[i])
                } else { 0.0 };
                let added = if biased && i < k { f64::from(bias[i]) } else { 0.0 };
                let want = scaled + added;
                let close = 2e-6 * scaled.abs() + 2.0 * slack + 2e-7 * want.abs() + 1e-37;
                prop_assert!((f64::from(got) - want).abs() <= close, "{isa}: {got}, not {want}");
            }
            if let Some(before) = &before {
                prop_assert_eq!(&before[..], got, "{}: other bits", isa);
            }
            before = Some(got.to_vec());
        }
    }
}

/// Every finite f32 for which the low bits decide: ties go to even, others to the nearer side.
#[test]
fn bf16_ties_go_to_even() {
    let x: Vec<f32> = [
        0x3f80_8000,
        0x3f81_8000,
        0x3f80_8001,
        0x3f80_7fff,
        0xbf81_8000,
        0x7f7f_ffff,
        0x7f80_0000,
    ]
    .map(f32::from_bits)
    .into();
    let want = [0x3f80, 0x3f82, 0x3f81, 0x3f80, 0xbf82, 0x7f80, 0x7f80];
    for isa in isas() {
        assert_eq!(
            norm_quantize(isa, &x, x.len(), None, ActivationFormat::Bf16).halves[..7],
            want,
            "{isa}"
        );
    }
}

#[test]
fn a_used_buffer_leaves_nothing_behind() {
    for isa in isas() {
        let cpu = Cpu::new(isa, 1).unwrap();
        let mut acts = Activations::default();
        for form in [
            ActivationFormat::Int8,
            ActivationFormat::Bf16,
            ActivationFormat::F32,
        ] {
            cpu.norm_quantize(&[9.0; 128], 2, 64, None, form, &mut acts);
            cpu.norm_quantize(&[1.0; 33], 1, 33, None, form, &mut acts);
        }
        assert_eq!(acts.codes[33..64], [0; 31], "{isa}");
        assert_eq!(acts.halves[33..64], [0; 31], "{isa}");
        assert_eq!(acts.floats[33..64], [0.0; 31], "{isa}");
    }
}
