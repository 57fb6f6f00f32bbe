//! Row-wise operations against f64, through the decoder's calls.

use super::common::{Floats, Rng, bits, isas, unpacked, uses};
use penstock_kernels::{
    ActivationFn, ActivationFormat, Activations, Angles, Columns, Cpu, HeadNorms, KvLayout, KvPool,
    KvPosition, KvType, Linear, Norm, NormKind, Packed, Rotation, ThreadPool, WeightFormat,
};
use proptest::prelude::*;

/// `m` rows through f32 matrices and their activation.
fn activate(cpu: &Cpu, linear: &Linear, activation: ActivationFn, x: &[f32], m: usize) -> Vec<f32> {
    let (n, k) = (linear.parts[0].n(), linear.parts[0].k());
    let (mut acts, mut out) = (Activations::default(), vec![f32::NAN; m * n]);
    cpu.norm_quantize(x, m, k, None, ActivationFormat::F32, &mut acts);
    let ld = n + 5;
    let mut wide = vec![7.0; m * ld];
    let columns = Columns {
        rows: &mut wide,
        ld,
        first: 3,
    };
    cpu.activate(linear, activation, &acts, columns);
    for (out, wide) in out.chunks_exact_mut(n).zip(wide.chunks_exact(ld)) {
        out.copy_from_slice(&wide[3..ld - 2]);
        assert_eq!(
            [&wide[..3], &wide[ld - 2..]].concat(),
            [0.0; 5],
            "the other columns become zero"
        );
    }
    out
}

const ACTIVATIONS: [ActivationFn; 3] = [
    ActivationFn::SiluGated,
    ActivationFn::GeluTanh,
    ActivationFn::GeluTanhGated,
];

fn silu(v: f64) -> f64 {
    v / (1.0 + (-v).exp())
}

fn gelu(v: f64) -> f64 {
    v / 2.0 * (1.0 + (0.797_884_560_802_865_4 * (v + 0.044_715 * v.powi(3))).tanh())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn activations_are_near_f64_and_depend_on_the_row_alone(
        m in 1usize..110, n in 1usize..150, k in 1usize..40,
        reach in prop_oneof![Just(0.3f32), Just(3.0), Just(40.0)],
        threads in 1usize..4, activation in proptest::sample::select(&ACTIVATIONS[..]),
        biased in any::<bool>(), seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let pool = ThreadPool::new(1).unwrap();
        let gated = activation != ActivationFn::GeluTanh;
        let parts: Vec<Packed> = (0..1 + usize::from(gated))
            .map(|_| {
                let weights = rng.vec(n * k, 1.0);
                Packed::pack(&pool, WeightFormat::F32, n, k, &Floats { k, weights })
            })
            .collect();
        let bias = biased.then(|| rng.vec(n * parts.len(), 1.0));
        let weights: Vec<Vec<f32>> = parts.iter().map(unpacked).collect();
        let x = rng.vec(m * k, reach);
        let linear = Linear { parts, bias: bias.clone() };
        for isa in isas() {
            let got = activate(&Cpu::new(isa, threads).unwrap(), &linear, activation, &x, m);
            for (i, &got) in got.iter().enumerate() {
                let (row, feature) = (&x[i / n * k..][..k], i % n);
                let dot = |part: usize| {
                    let terms = weights[part][feature * k..][..k].iter().zip(row);
                    let bias = bias.as_ref().map_or(0.0, |b| f64::from(b[part * n + feature]));
                    terms.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() + bias
                };
                let g = dot(0);
                let u = if gated { dot(1) } else { 1.0 };
                let want =
                    u * if activation == ActivationFn::SiluGated { silu(g) } else { gelu(g) };
                // f32 sums of k products of up to `reach` each; the slopes are below 1.13.
                let off = (k + 3) as f64 * 2f64.powi(-23) * (f64::from(reach) * k as f64 + 1.0);
                let slack =
                    off * (u.abs() + 1.13 * g.abs() + 1.13 + off) + 2e-6 * want.abs() + 1e-30;
                prop_assert!((f64::from(got) - want).abs() <= slack, "{isa}: {got}, not {want} \
                    ({g}, {u})");
            }
            let row = rng.below(m);
            let cpu = Cpu::new(isa, 4 - threads).unwrap();
            let alone = activate(&cpu, &linear, activation, &x[row * k..(row + 1) * k], 1);
            prop_assert_eq!(
                bits(&alone), bits(&got[row * n..(row + 1) * n]), "{}: row {}", isa, row
            );
        }
    }

    #[test]
    fn heads_are_normalised_and_rotated(
        rows in 1usize..40, half_dim in 1usize..40, kv_heads in 1usize..3, group in 1usize..5,
        norm in any::<bool>(), after in any::<bool>(), rotate in any::<bool>(),
        factors in any::<bool>(), still in 0usize..20, seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        // The last `still` numbers of a head are not rotated.
        let (dims, heads) = (2 * half_dim, group * kv_heads);
        let d = dims + still;
        let width = (heads + 2 * kv_heads) * d;
        let qkv = rng.vec(rows * width, 2.0);
        let angles: Vec<f64> = (0..rows * half_dim).map(|_| f64::from(rng.unit()) * 3.2).collect();
        let cos_sin: Vec<f32> =
            angles.chunks(half_dim).flat_map(
                |a| a.iter().map(|a| a.cos() as f32).chain(a.iter().map(|a| a.sin() as f32))
            ).collect();
        let (q_norm, k_norm) = (rng.vec(d, 1.5), rng.vec(d, 1.5));
        let query_factors = rng.vec(rows, 2.0);
        let rotation = Rotation {
            norms: norm.then_some(
                HeadNorms { query: &q_norm, key: &k_norm, eps: 1e-6, after }
            ),
            angles: rotate.then_some(Angles { cos_sin: &cos_sin, dims }),
            query_factors: factors.then_some(&query_factors),
        };
        let places: Vec<KvPosition> =
            (0..rows).map(|i| KvPosition { block: i / 16, offset: i % 16 }).collect();
        for isa in isas() {
            let layout =
                KvLayout {
                    layers: 1, kv_heads, head_dim: d, latent: None, block_size: 16,
                    dtype: KvType::F32,
                };
            let (mut pool, mut got) = (KvPool::new(layout, 3), qkv.clone());
            let mut kv = pool.lease(uses(&[], &[0, 1, 2])).unwrap();
            Cpu::new(isa, 2).unwrap().rotate_and_store(
                &mut got, heads, &rotation, &places, 0, &mut kv
            );
            for (row, (got, before)) in got.chunks(width).zip(qkv.chunks(width)).enumerate() {
                for (head, (got, before)) in got.chunks(d).zip(before.chunks(d)).enumerate() {
                    let weight = if head < heads { &q_norm } else { &k_norm };
                    let mut want: Vec<f64> = before.iter().map(|&v| f64::from(v)).collect();
                    if head < heads + kv_heads {
                        want = normed(want, weight, norm && !after);
                        if rotate {
                            let turned = rotated(
                                &want[..dims], &angles[row * half_dim..][..half_dim]
                            );
                            want[..dims].copy_from_slice(&turned);
                        }
                        want = normed(want, weight, norm && after);
                    }
                    if factors && head < heads {
                        let factor = f64::from(query_factors[row]);
                        want.iter_mut().for_each(|v| *v *= factor);
                    }
                    for (got, want) in got.iter().zip(want) {
                        prop_assert!(
                            (f64::from(*got) - want).abs() <= 1e-5 * (1.0 + want.abs()),
                            "{isa} row {row} head {head}: {got}, not {want}"
                        );
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_normed_row_is_added(rows in 1usize..40, k in 1usize..200, seed in any::<u64>()) {
        let mut rng = Rng(seed);
        let (x, y) = (rng.vec(rows * k, 2.0), rng.vec(rows * k, 3.0));
        let weight = rng.vec(k, 1.5);
        let norm = Norm { kind: NormKind::Rms, weight: weight.clone(), bias: None, eps: 1e-6 };
        for isa in isas() {
            let mut got = x.clone();
            Cpu::new(isa, 2).unwrap().add_normed(&y, &norm, &mut got);
            let before = x.chunks(k).zip(y.chunks(k));
            for (got, (x, y)) in got.chunks(k).zip(before) {
                let y = normed(y.iter().map(|&v| f64::from(v)).collect(), &weight, true);
                for ((&got, &x), y) in got.iter().zip(x).zip(y) {
                    let off = (f64::from(got) - f64::from(x) - y).abs();
                    prop_assert!(off <= 1e-5 * (1.0 + y.abs()), "{isa}: {got}");
                }
            }
        }
    }

    #[test]
    fn capped_numbers_stay_within_the_cap(
        len in 1usize..40_000, cap in 0.5f32..60.0,
        reach in prop_oneof![Just(1e-3f32), Just(3.0), Just(400.0)], seed in any::<u64>(),
    ) {
        let x = Rng(seed).vec(len, reach);
        let mut first: Option<Vec<f32>> = None;
        for isa in isas() {
            let mut got = x.clone();
            Cpu::new(isa, 2).unwrap().softcap(&mut got, cap);
            for (&got, &x) in got.iter().zip(&x) {
                let want = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
                prop_assert!((f64::from(got) - want).abs() <= 3e-7 * f64::from(cap));
            }
            if let Some(first) = &first {
                prop_assert_eq!(bits(first), bits(&got), "{}: other bits", isa);
            }
            first = Some(got);
        }
    }
}

fn normed(head: Vec<f64>, weight: &[f32], norm: bool) -> Vec<f64> {
    if !norm {
        return head;
    }
    let squares: f64 = head.iter().map(|v| v * v).sum();
    let rms = (squares / weight.len() as f64 + 1e-6).sqrt();
    let scaled = head
        .iter()
        .zip(weight)
        .map(|(v, &w)| v / rms * f64::from(w));
    scaled.collect()
}

/// Rotates items i and i + half as a complex number.
fn rotated(head: &[f64], angles: &[f64]) -> Vec<f64> {
    let (re, im) = head.split_at(angles.len());
    let turn = |f: &dyn Fn(f64, f64, f64) -> f64| -> Vec<f64> {
        (0..angles.len())
            .map(|i| f(re[i], im[i], angles[i]))
            .collect()
    };
    let mut out = turn(&|re, im, a| re * a.cos() - im * a.sin());
    out.extend(turn(&|re, im, a| re * a.sin() + im * a.cos()));
    out
}

#[test]
fn activations_at_the_ends_of_the_range_are_finite() {
    let pool = ThreadPool::new(1).unwrap();
    let one = || {
        let weights = vec![1.0];
        Packed::pack(&pool, WeightFormat::F32, 1, 1, &Floats { k: 1, weights })
    };
    let linear = |parts| Linear { parts, bias: None };
    let (gated, plain) = (linear(vec![one(), one()]), linear(vec![one()]));
    for isa in isas() {
        let cpu = Cpu::new(isa, 1).unwrap();
        for x in [
            -1e18f32, -1e4, -1000.0, -88.5, -87.0, -20.0, -0.0, 1e-40, 20.0, 87.5, 100.0, 1e18,
        ] {
            let wide = f64::from(x);
            // For very negative x, e^-x is clamped to e^88: the result is then below 1e-38 times x
            // instead of zero.
            for (linear, activation, want, floor) in [
                (
                    &gated,
                    ActivationFn::SiluGated,
                    silu(wide) * wide,
                    wide * wide,
                ),
                (&plain, ActivationFn::GeluTanh, gelu(wide), wide.abs()),
                (
                    &gated,
                    ActivationFn::GeluTanhGated,
                    gelu(wide) * wide,
                    wide * wide,
                ),
            ] {
                let got = f64::from(activate(&cpu, linear, activation, &[x], 1)[0]);
                let slack = 1e-6 * want.abs() + 1e-38 * floor + 1e-44;
                assert!(
                    got.is_finite() && (got - want).abs() <= slack,
                    "{isa} {activation:?}: {x} gives {got}, not {want}"
                );
            }
        }
    }
}
