//! Matrix multiplication against f64, and the guarantee that a row's bits depend only on the row.

use super::common::{Codes, Floats, Rng, bits, isas, multiply, seen, unpacked};
use penstock_kernels::{
    Activations, Cpu, GROUP, Isa, Linear, Mode, Packed, ThreadPool, WeightFormat,
};
use proptest::prelude::*;

const FORMS: [WeightFormat; 7] = [
    WeightFormat::W4,
    WeightFormat::S4,
    WeightFormat::Z4,
    WeightFormat::Mx4,
    WeightFormat::W8,
    WeightFormat::Bf16,
    WeightFormat::F32,
];

/// A linear layer of random parts, with or without bias.
fn random_linear(
    rng: &mut Rng,
    form: WeightFormat,
    k: usize,
    parts: &[usize],
    bias: bool,
) -> Linear {
    let pool = ThreadPool::new(1).unwrap();
    let mut pack = |&n: &usize| {
        let source = Floats {
            k,
            weights: rng.vec(n * k, 0.7),
        };
        Packed::pack(&pool, form, n, k, &source)
    };
    let parts: Vec<_> = parts.iter().map(&mut pack).collect();
    let n = parts.iter().map(Packed::n).sum();
    let bias = bias.then(|| rng.vec(n, 2.0));
    Linear { parts, bias }
}

/// The product in f64 and the error bound of an f32 sum, per element.
fn naive(linear: &Linear, x: &[f32], m: usize) -> (Vec<f64>, Vec<f64>) {
    let k = linear.parts[0].k();
    let weights: Vec<f32> = linear.parts.iter().flat_map(unpacked).collect();
    let (mut product, mut slack) = (Vec::new(), Vec::new());
    for x in x.chunks_exact(k).take(m) {
        let acts = seen(x, linear.activation_format());
        for (feature, w) in weights.chunks_exact(k).enumerate() {
            let terms = w.iter().zip(&acts).map(|(&w, a)| f64::from(w) * a);
            let bias = linear.bias.as_ref().map_or(0.0, |b| f64::from(b[feature]));
            product.push(terms.sum::<f64>() + bias);
            slack.push(rounding(linear.parts[0].form(), w, &acts) + 1e-7 * bias.abs());
        }
    }
    (product, slack)
}

/// Every f32 operation has an error of at most 2^-24 of a partial sum, which is bounded by the sum
/// of magnitudes.
fn rounding(form: WeightFormat, w: &[f32], acts: &[f64]) -> f64 {
    let magnitude: f64 = match form {
        // A 4-bit weight is split into code and minimum, together up to six times the largest
        // weight of its group.
        WeightFormat::W4 => w
            .chunks(GROUP)
            .zip(acts.chunks(GROUP))
            .map(|(w, a)| 6.0 * largest(w) * a.iter().map(|v| v.abs()).sum::<f64>())
            .sum(),
        _ => w
            .iter()
            .zip(acts)
            .map(|(&w, a)| (f64::from(w) * a).abs())
            .sum(),
    };
    let operations = if is_integer(form) {
        4 * w.len().div_ceil(GROUP)
    } else {
        w.len()
    };
    (operations + 4) as f64 * 2f64.powi(-24) * magnitude + 1e-37
}

fn is_integer(form: WeightFormat) -> bool {
    !matches!(form, WeightFormat::Bf16 | WeightFormat::F32)
}

fn largest(w: &[f32]) -> f64 {
    w.iter().fold(0.0, |m, w| m.max(f64::from(w.abs())))
}

fn assert_near(got: &[f32], linear: &Linear, x: &[f32], m: usize, what: &str) {
    let (product, slack) = naive(linear, x, m);
    for (i, ((&got, want), slack)) in got.iter().zip(product).zip(slack).enumerate() {
        let (row, feature) = (i / linear.n(), i % linear.n());
        assert!(
            (f64::from(got) - want).abs() <= slack,
            "{what}: row {row} feature {feature}: {got}, not {want} within {slack:.1e}"
        );
    }
}

/// Limits the shapes: the portable kernels emulate fused multiply-adds if the compiler may not
/// assume them.
fn fits(isa: Isa, m: usize, k: usize, n: usize) -> bool {
    isa != Isa::Portable || m * k * n < 400_000
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_form_is_near_f64(
        form in proptest::sample::select(&FORMS[..]),
        m in 1usize..70, k in 1usize..300, parts in proptest::collection::vec(1usize..90, 1..4),
        bias in any::<bool>(), threads in 1usize..4, seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let linear = random_linear(&mut rng, form, k, &parts, bias);
        let x = rng.vec(m * k, 3.0);
        let mut integer: Option<Vec<u32>> = None;
        for isa in isas().into_iter().filter(|&isa| fits(isa, m, k, linear.n())) {
            let got = multiply(isa, threads, &linear, &x, m);
            assert_near(&got, &linear, &x, m, isa.name());
            if is_integer(form) {
                let got = bits(&got);
                prop_assert_eq!(integer.get_or_insert_with(|| got.clone()), &got, "{} differs \
                    from another instruction set", isa);
            }
        }
    }

    #[test]
    fn a_row_depends_on_nothing_beside_it(
        form in proptest::sample::select(&FORMS[..]),
        m in 2usize..110, k in 1usize..200, parts in proptest::collection::vec(1usize..120, 1..4),
        seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let linear = random_linear(&mut rng, form, k, &parts, true);
        let (x, n) = (rng.vec(m * k, 3.0), linear.n());
        for isa in isas().into_iter().filter(|&isa| fits(isa, m, k, n)) {
            let together = multiply(isa, 1, &linear, &x, m);
            prop_assert_eq!(
                bits(&together), bits(&multiply(isa, 3, &linear, &x, m)), "{}: threads", isa
            );
            let from = rng.below(m);
            let count = 1 + rng.below(m - from);
            let part = multiply(isa, 2, &linear, &x[from * k..(from + count) * k], count);
            prop_assert_eq!(bits(&part), bits(&together[from * n..(from + count) * n]), "{}: rows \
                {} + {}", isa, from, count);
            let alone = multiply(isa, 1, &linear, &x[from * k..(from + 1) * k], 1);
            prop_assert_eq!(
                bits(&alone), bits(&together[from * n..(from + 1) * n]), "{}: row {}", isa, from
            );
        }
    }

    #[test]
    fn adding_is_storing_and_one_addition(
        form in proptest::sample::select(&FORMS[..]),
        m in 1usize..9, k in 1usize..100, n in 1usize..80, bias in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let linear = random_linear(&mut rng, form, k, &[n], bias);
        let (x, before) = (rng.vec(m * k, 3.0), rng.vec(m * n, 5.0));
        for isa in isas() {
            let cpu = Cpu::new(isa, 2).unwrap();
            let (mut acts, mut got) = (Activations::default(), before.clone());
            cpu.norm_quantize(&x, m, k, None, linear.activation_format(), &mut acts);
            cpu.matmul(&linear, &acts, &mut got, Mode::Add);
            let product = multiply(isa, 1, &linear, &x, m);
            let sum: Vec<f32> = before.iter().zip(&product).map(|(a, b)| a + b).collect();
            prop_assert_eq!(bits(&got), bits(&sum), "{}", isa);
        }
    }
}

#[test]
fn nothing_is_written_past_the_last_feature() {
    let mut rng = Rng(3);
    for form in FORMS {
        let linear = random_linear(&mut rng, form, 40, &[19], false);
        let x = rng.vec(5 * 40, 1.0);
        for isa in isas() {
            let cpu = Cpu::new(isa, 1).unwrap();
            let (mut acts, mut out) = (Activations::default(), vec![7.0; 5 * 19 + 16]);
            cpu.norm_quantize(&x, 5, 40, None, linear.activation_format(), &mut acts);
            cpu.matmul(&linear, &acts, &mut out, Mode::Store);
            assert!(
                out[5 * 19..].iter().all(|&v| v == 7.0),
                "{isa} {}",
                form.name()
            );
        }
    }
}

/// All products at the ends of their ranges, to detect 16-bit saturation. With scales of 1 every
/// sum is an exact f32.
#[test]
fn extreme_codes_do_not_saturate() {
    let (k, n, pool) = (96, 37, ThreadPool::new(1).unwrap());
    for (form, codes) in [
        (WeightFormat::W4, [0u8, 15, 15]),
        (WeightFormat::S4, [0, 15, 8]),
        (WeightFormat::W8, [0, 255, 128]),
    ] {
        for pattern in 0..9 {
            let code = move |row: usize, i: usize| match pattern % 3 {
                0 => codes[0],
                1 => codes[1],
                _ => codes[(row + i) % 3],
            };
            let linear = Linear {
                parts: vec![Packed::pack(
                    &pool,
                    form,
                    n,
                    k,
                    &Codes {
                        code,
                        scale: 1.0,
                        min: -8.0,
                    },
                )],
                bias: None,
            };
            let x: Vec<f32> = (0..5 * k)
                .map(|i| [127.0, -127.0, [127.0, -127.0][i % 2]][pattern / 3])
                .collect();
            let weights = unpacked(&linear.parts[0]);
            for isa in isas() {
                let got = multiply(isa, 1, &linear, &x, 5);
                for (i, got) in got.iter().enumerate() {
                    let (row, feature) = (i / n, i % n);
                    let exact: f32 = (0..k)
                        .map(|j| weights[feature * k + j] * x[row * k + j])
                        .sum();
                    assert_eq!(
                        *got,
                        exact,
                        "{isa} {} pattern {pattern} row {row} feature {feature}",
                        form.name()
                    );
                }
            }
        }
    }
}

#[test]
fn extreme_activations_stay_near_f64() {
    let mut rng = Rng(11);
    let (k, n) = (72, 21);
    for form in FORMS {
        let linear = random_linear(&mut rng, form, k, &[n], false);
        for scale in [0.0, 1e-44, 1e-38, 1e-30, 2e-30, 1e-20, 1e20, 1e30] {
            // Groups of zeros beside others, and one large number among small ones.
            let mut x = rng.vec(3 * k, scale);
            x[..32].fill(0.0);
            x[k + 5] *= 1000.0;
            for isa in isas() {
                let got = multiply(isa, 1, &linear, &x, 3);
                let (want, slack) = naive(&linear, &x, 3);
                for ((&got, want), slack) in got.iter().zip(want).zip(slack) {
                    // Instructions may flush subnormal numbers (below 1.2e-38) to zero, k of them
                    // in a sum.
                    let flushed = k as f64 * 1.2e-38;
                    assert!(
                        (f64::from(got) - want).abs() <= slack + flushed,
                        "{isa} {} scale {scale}: {got}, not {want}",
                        form.name()
                    );
                }
            }
        }
    }
}

#[test]
fn zero_rows_give_the_bias() {
    let mut rng = Rng(12);
    for form in FORMS {
        let linear = random_linear(&mut rng, form, 64, &[33], true);
        for isa in isas() {
            let got = multiply(isa, 1, &linear, &[0.0; 128], 2);
            let bias = linear.bias.as_ref().unwrap();
            assert!(
                got.chunks_exact(33).all(|row| row == bias),
                "{isa} {}",
                form.name()
            );
        }
    }
}
