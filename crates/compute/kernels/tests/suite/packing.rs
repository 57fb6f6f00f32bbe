//! Packed weights: bounds on the rounding error, and exact round trips of given codes.

use super::common::{Codes, Floats, Rng, unpacked};
use half::{bf16, f16};
use penstock_kernels::{GROUP, Packed, ThreadPool, WeightFormat, microscale};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rounding_is_bounded_by_half_a_step(
        n in 1usize..50, k in 1usize..150,
        scale in prop_oneof![Just(1.0f32), Just(1e-3), Just(300.0)],
        shift in -1.0f32..1.0, threads in 1usize..4, seed in any::<u64>(),
    ) {
        let weights: Vec<f32> =
            Rng(seed).vec(n * k, scale).iter().map(|w| w + shift * scale).collect();
        let source = Floats { k, weights: weights.clone() };
        let pool = ThreadPool::new(threads).unwrap();
        for form in [
            WeightFormat::W4, WeightFormat::S4, WeightFormat::Z4, WeightFormat::Mx4,
            WeightFormat::W8, WeightFormat::Bf16, WeightFormat::F32,
        ] {
            let got = unpacked(&Packed::pack(&pool, form, n, k, &source));
            for (row, (want, got)) in weights.chunks(k).zip(got.chunks(k)).enumerate() {
                for (want, got) in want.chunks(GROUP).zip(got.chunks(GROUP)) {
                    let step = step(form, want);
                    for (want, got) in want.iter().zip(got) {
                        let off = (f64::from(*want) - f64::from(*got)).abs();
                        prop_assert!(off <= step.max(bf16_slack(form, *want)), "{} row {row}: \
                            {want} became {got}", form.name());
                    }
                }
            }
        }
    }
}

/// Half a quantisation step, plus the error of an f16 scale and minimum at the far end of the
/// codes.
fn step(form: WeightFormat, group: &[f32]) -> f64 {
    let (low, high) = group.iter().fold((f64::MAX, f64::MIN), |(l, h), &w| {
        (l.min(f64::from(w)), h.max(f64::from(w)))
    });
    let range = (high - low) * 1.001;
    match form {
        WeightFormat::W4 => range / 30.0 + 15.0 * f16_off(range / 15.0) + 2.0 * f16_off(low),
        // The range includes 0.
        WeightFormat::Z4 => {
            let range = (high.max(0.0) - low.min(0.0)) * 1.001;
            range / 30.0 + 15.0 * f16_off(range / 15.0)
        }
        WeightFormat::W8 => {
            low.abs().max(high.abs()) / 254.0 + 127.0 * f16_off(low.abs().max(high.abs()) / 127.0)
        }
        // A weight of the same magnitude and the opposite sign is clamped by a whole step.
        WeightFormat::S4 => {
            let far = low.abs().max(high.abs());
            far / 8.0 * 1.001 + 8.0 * f16_off(far / 8.0)
        }
        // The widest step is from 4 to 6 of the largest entry; a power may be too large by half.
        WeightFormat::Mx4 => (low.abs().max(high.abs()) / 3.0).max(2f64.powi(-22)),
        WeightFormat::Bf16 | WeightFormat::F32 => 0.0,
    }
}

/// Error bound of f16: 11 bits, or steps of 2^-24 below 2^-14.
fn f16_off(value: f64) -> f64 {
    (value.abs() * 2f64.powi(-11)).max(2f64.powi(-25)) * 1.001
}

fn bf16_slack(form: WeightFormat, want: f32) -> f64 {
    if form == WeightFormat::Bf16 {
        (f64::from(bf16::from_f32(want).to_f32()) - f64::from(want)).abs()
    } else {
        0.0
    }
}

#[test]
fn constant_and_zero_groups_survive() {
    let pool = ThreadPool::new(1).unwrap();
    for value in [0.0f32, 0.5, -2.0] {
        let source = Floats {
            k: 64,
            weights: vec![value; 64 * 3],
        };
        for form in [
            WeightFormat::W4,
            WeightFormat::S4,
            WeightFormat::Z4,
            WeightFormat::W8,
        ] {
            for got in unpacked(&Packed::pack(&pool, form, 3, 64, &source)) {
                assert!(
                    (got - value).abs() <= value.abs() / 1000.0,
                    "{} of {value}: {got}",
                    form.name()
                );
            }
        }
    }
}

/// Bytes of a group of 32 inputs of 16 output features: codes, then scales.
#[test]
fn sizes_are_those_of_the_layout() {
    let (n, k, pool) = (17, 40, ThreadPool::new(1).unwrap());
    for (form, bytes) in [
        (WeightFormat::W4, 256 + 64),
        (WeightFormat::S4, 256 + 32),
        (WeightFormat::Z4, 256 + 48),
        (WeightFormat::Mx4, 256 + 16),
        (WeightFormat::W8, 512 + 32),
        (WeightFormat::Bf16, 1024),
        (WeightFormat::F32, 2048),
    ] {
        let weights = vec![0.5; n * k];
        let packed = Packed::pack(&pool, form, n, k, &Floats { k, weights });
        assert_eq!(packed.bytes(), 4 * bytes, "{}", form.name());
    }
}

#[test]
fn given_codes_are_kept() {
    let (n, k, pool) = (35, 96, ThreadPool::new(2).unwrap());
    let (scale, min) = (f16::from_f32(0.013).to_f32(), f16::from_f32(-0.1).to_f32());
    let w4 = Packed::pack(
        &pool,
        WeightFormat::W4,
        n,
        k,
        &Codes {
            code: |row, i| ((row * 7 + i * 3) % 16) as u8,
            scale,
            min,
        },
    );
    let w8 = Packed::pack(
        &pool,
        WeightFormat::W8,
        n,
        k,
        &Codes {
            code: |row, i| ((row * 7 + i * 3) % 256) as u8,
            scale,
            min,
        },
    );
    let (w4, w8) = (unpacked(&w4), unpacked(&w8));
    for row in 0..n {
        for i in 0..k {
            let code = (row * 7 + i * 3) as f64;
            let (scale, min) = (f64::from(scale), f64::from(min));
            assert_eq!(
                w4[row * k + i],
                (scale * (code % 16.0) + min) as f32,
                "row {row} input {i}"
            );
            assert_eq!(
                w8[row * k + i],
                (scale * (code % 256.0 - 128.0)) as f32,
                "row {row} input {i}"
            );
        }
    }
}

/// Values of OCP Microscaling's E2M1, from its definition: one mantissa bit, subnormals at exponent
/// 0.
fn e2m1(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 1 & 3), f64::from(code & 1));
    let magnitude = match exponent {
        0 => mantissa / 2.0,
        _ => (1.0 + mantissa / 2.0) * 2f64.powi(exponent - 1),
    };
    if code & 8 == 0 { magnitude } else { -magnitude }
}

#[test]
fn microscaled_codes_are_exact_at_every_exponent() {
    let (n, k, pool) = (18, 64, ThreadPool::new(1).unwrap());
    for exponent in [-125, -40, -15, 0, 7, 30, 120] {
        let given = Codes {
            code: |row, i| ((row * 7 + i * 3) % 16) as u8,
            scale: microscale(exponent),
            min: 0.0,
        };
        let got = unpacked(&Packed::pack(&pool, WeightFormat::Mx4, n, k, &given));
        for (at, got) in got.iter().enumerate() {
            let code = ((at / k) * 7 + at % k * 3) % 16;
            let want = e2m1(code as u8) * 2f64.powi(exponent);
            assert_eq!(f64::from(*got), want, "2^{exponent}, code {code}");
        }
    }
    assert_eq!(microscale(-127), 0.0, "under the smallest normal number");
    assert_eq!(microscale(128), f32::INFINITY, "no number");
}
