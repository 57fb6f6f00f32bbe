//! Mixtures of experts, plain and clamped, against f64, and the guarantee that a row's bits depend
//! only on the row.

use super::common::{Floats, Rng, bits, isas};
use penstock_kernels::{
    ActivationFn, Activations, Beside, Choice, Clamp, Cpu, Expert, ExpertBuffers, Experts, Isa,
    Linear, Mode, Packed, ThreadPool, WeightFormat,
};
use proptest::prelude::*;

/// Experts with random weights, shared with the reference.
struct Mixture {
    clamp: Option<Clamp>,
    hidden: usize,
    width: usize,
    /// For each expert: gate, up and down, `[outputs, inputs]`, and the output's bias.
    weights: Vec<([Vec<f32>; 3], Vec<f32>)>,
}

impl Mixture {
    fn random(rng: &mut Rng, experts: usize, hidden: usize, width: usize) -> Self {
        let mut expert = |_| {
            let [gate, up, down] = [(); 3].map(|()| rng.vec(hidden * width, 0.5));
            ([gate, up, down], rng.vec(hidden, 1.0))
        };
        let clamp = Clamp {
            limit: 1.5,
            alpha: 1.7,
            offset: 1.0,
        };
        Self {
            clamp: hidden.is_multiple_of(2).then_some(clamp),
            hidden,
            width,
            weights: (0..experts).map(&mut expert).collect(),
        }
    }

    /// A rank's experts `own`.
    fn packed(&self, form: WeightFormat, own: std::ops::Range<usize>) -> Experts {
        let pool = ThreadPool::new(1).unwrap();
        let pack = |n, k, weights: &Vec<f32>| {
            let weights = weights.clone();
            Packed::pack(&pool, form, n, k, &Floats { k, weights })
        };
        let (hidden, width) = (self.hidden, self.width);
        let expert = |([gate, up, down], bias): &([Vec<f32>; 3], Vec<f32>)| Expert {
            inner: Linear {
                parts: vec![pack(width, hidden, gate), pack(width, hidden, up)],
                bias: None,
            },
            down: Linear {
                parts: vec![pack(hidden, width, down)],
                bias: Some(bias.clone()),
            },
        };
        Experts {
            experts: self.weights[own.clone()].iter().map(expert).collect(),
            first: own.start,
            activation: match self.clamp {
                Some(clamp) => ActivationFn::Clamped(clamp),
                None => ActivationFn::SiluGated,
            },
            inputs: width,
            lead: 0,
            weighted_inputs: self.weighted_inputs(),
        }
    }

    /// Whether a weight multiplies the expert's input; true for some mixtures.
    fn weighted_inputs(&self) -> bool {
        self.width.is_multiple_of(3)
    }

    /// Contribution of a choice to its row, in f64.
    fn weighted(&self, choice: Choice, x: &[f32]) -> Vec<f64> {
        let weight = f64::from(choice.weight);
        let (input, output) = match self.weighted_inputs() {
            true => (weight, 1.0),
            false => (1.0, weight),
        };
        let x: Vec<f64> = x.iter().map(|v| input * f64::from(*v)).collect();
        let outputs = self.output(choice.expert as usize, &x);
        outputs.into_iter().map(|y| output * y).collect()
    }

    /// Bound on an expert's output, for the error bound.
    fn magnitude(&self, expert: usize, x: &[f32]) -> f64 {
        let x: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        self.output(expert, &x).iter().map(|y| y.abs()).sum()
    }

    /// An expert's output for a row, in f64.
    fn output(&self, expert: usize, x: &[f64]) -> Vec<f64> {
        let ([gate, up, down], bias) = &self.weights[expert];
        let dot =
            |w: &[f32], x: &[f64]| -> f64 { w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum() };
        let product = |m: &[f32], x: &[f64]| -> Vec<f64> {
            m.chunks_exact(x.len()).map(|w| dot(w, x)).collect()
        };
        let pairs = product(gate, x).into_iter().zip(product(up, x));
        let activated = |(g, u): (f64, f64)| match self.clamp {
            None => g / (1.0 + (-g).exp()) * u,
            Some(c) => {
                let limit = f64::from(c.limit);
                let (g, u) = (g.min(limit), u.clamp(-limit, limit) + f64::from(c.offset));
                g / (1.0 + (-g * f64::from(c.alpha)).exp()) * u
            }
        };
        let inner: Vec<f64> = pairs.map(activated).collect();
        let outputs = product(down, &inner).into_iter().zip(bias);
        outputs.map(|(y, b)| y + f64::from(*b)).collect()
    }
}

/// Distinct experts for each row, skewed to low indices.
fn choices(rng: &mut Rng, rows: usize, each: usize, experts: usize) -> Vec<Choice> {
    let row = |_| {
        let mut order: Vec<usize> = (0..experts).collect();
        rng.shuffle(&mut order);
        order.sort_by_key(|e| *e > 1);
        let choice = |expert: usize| Choice {
            expert: expert as u32,
            weight: rng.unit(),
        };
        order.into_iter().take(each).map(choice).collect::<Vec<_>>()
    };
    (0..rows).flat_map(row).collect()
}

fn acts(cpu: &Cpu, x: &[f32], hidden: usize, experts: &Experts) -> Activations {
    let mut acts = Activations::default();
    cpu.norm_quantize(x, x.len() / hidden, hidden, None, experts.form(), &mut acts);
    acts
}

fn mix(cpu: &Cpu, experts: &Experts, choices: &[Choice], x: &[f32], hidden: usize) -> Vec<f32> {
    let mut out = vec![7.0; x.len()];
    let (acts, mut buffers) = (acts(cpu, x, hidden, experts), ExpertBuffers::default());
    cpu.mix(
        experts,
        choices,
        &acts,
        None,
        &mut buffers,
        &mut out,
        Mode::Store,
    );
    out
}

fn fits(isa: Isa, work: usize) -> bool {
    isa != Isa::Portable || work < 400_000
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn sums_of_experts_are_near_f64(
        rows in 1usize..40, experts in 1usize..7, hidden in 1usize..70, width in 1usize..70,
        threads in 1usize..4, seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let mixture = Mixture::random(&mut rng, experts, hidden, width);
        let each = 1 + rng.below(experts);
        let choices = choices(&mut rng, rows, each, experts);
        let x = rng.vec(rows * hidden, 2.0);
        let (other, gates) = (rng.vec(rows * hidden, 1.0), rng.vec(rows * 3, 2.0));
        for isa in isas().into_iter().filter(|&isa| fits(isa, rows * each * hidden * width)) {
            let cpu = Cpu::new(isa, threads).unwrap();
            let packed = mixture.packed(WeightFormat::F32, 0..experts);
            let (acts, mut buffers) = (acts(&cpu, &x, hidden, &packed), ExpertBuffers::default());
            let beside = Beside { rows: &other, gates: Some((&gates, 3)) };
            let mut got = x.clone();
            cpu.mix(
                &packed, &choices, &acts, Some(&beside), &mut buffers, &mut got, Mode::Add,
            );
            for (row, x) in x.chunks_exact(hidden).enumerate() {
                let mut want: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
                let mut magnitude = 1.0;
                for choice in &choices[row * each..(row + 1) * each] {
                    let outputs = mixture.weighted(*choice, x);
                    want.iter_mut().zip(outputs).for_each(|(want, y)| *want += y);
                    magnitude += mixture.magnitude(choice.expert as usize, x);
                }
                let gate = 1.0 / (1.0 + (-f64::from(gates[row * 3])).exp());
                for (i, want) in want.iter().enumerate() {
                    let want = want + gate * f64::from(other[row * hidden + i]);
                    let off = (f64::from(got[row * hidden + i]) - want).abs();
                    prop_assert!(off <= 1e-5 * magnitude, "{}: off by {}", isa, off);
                }
            }
        }
    }

    /// For any choices of other rows, any number of threads, one row or hundreds.
    #[test]
    fn a_row_depends_on_its_own_choices_only(
        form in proptest::sample::select(
            &[
                WeightFormat::W4, WeightFormat::S4, WeightFormat::Z4, WeightFormat::W8,
                WeightFormat::Bf16, WeightFormat::F32,
            ][..]
        ),
        rows in 2usize..260, experts in 2usize..9, seed in any::<u64>(),
    ) {
        let (mut rng, hidden, width) = (Rng(seed), 40, [56, 57][seed as usize % 2]);
        let mixture = Mixture::random(&mut rng, experts, hidden, width);
        let each = 1 + rng.below(experts);
        let choices = choices(&mut rng, rows, each, experts);
        let x = rng.vec(rows * hidden, 2.0);
        let packed = mixture.packed(form, 0..experts);
        let mut integer: Option<Vec<u32>> = None;
        for isa in isas().into_iter().filter(|isa| *isa != Isa::Portable || rows < 30) {
            let (one, three) = (Cpu::new(isa, 1).unwrap(), Cpu::new(isa, 3).unwrap());
            let together = mix(&three, &packed, &choices, &x, hidden);
            for row in [0, rng.below(rows), rows - 1] {
                let own = &choices[row * each..(row + 1) * each];
                let range = row * hidden..(row + 1) * hidden;
                let alone = mix(&one, &packed, own, &x[range.clone()], hidden);
                prop_assert_eq!(bits(&alone), bits(&together[range]), "{}: row {}", isa, row);
            }
            let exact = !matches!(form, WeightFormat::Bf16 | WeightFormat::F32);
            if exact && isa != Isa::Portable {
                let got = bits(&together);
                prop_assert_eq!(integer.get_or_insert_with(|| got.clone()), &got, "{}", isa);
            }
        }
    }

    /// The partial results of ranks with some experts each sum to the whole.
    #[test]
    fn parts_of_the_experts_sum_to_the_whole(seed in any::<u64>(), rows in 1usize..20) {
        let (mut rng, hidden, width, experts) = (Rng(seed), 33, 20, 5);
        let mixture = Mixture::random(&mut rng, experts, hidden, width);
        let choices = choices(&mut rng, rows, 3, experts);
        let x = rng.vec(rows * hidden, 2.0);
        let cpu = Cpu::new(Isa::detect(), 2).unwrap();
        let part = |own| mix(&cpu, &mixture.packed(WeightFormat::F32, own), &choices, &x, hidden);
        let cut = rng.below(experts + 1);
        let (whole, parts) = (part(0..experts), [part(0..cut), part(cut..experts)]);
        for (i, whole) in whole.iter().enumerate() {
            let off = (parts[0][i] + parts[1][i] - whole).abs();
            prop_assert!(off <= 1e-4 * (1.0 + whole.abs()), "off by {}", off);
        }
    }
}

/// More pairs than are computed at once.
#[test]
fn slices_of_rows_join_without_a_seam() {
    let (mut rng, hidden, width, experts) = (Rng(5), 32, 32, 3);
    let mixture = Mixture::random(&mut rng, experts, hidden, width);
    let packed = mixture.packed(WeightFormat::W8, 0..experts);
    let (rows, each) = (6000, 2);
    let choices = choices(&mut rng, rows, each, experts);
    let x = rng.vec(rows * hidden, 2.0);
    let cpu = Cpu::new(Isa::detect(), 2).unwrap();
    let whole = mix(&cpu, &packed, &choices, &x, hidden);
    for row in [0, 4095, 4096, rows - 1] {
        let (own, range) = (
            row * each..(row + 1) * each,
            row * hidden..(row + 1) * hidden,
        );
        let alone = mix(&cpu, &packed, &choices[own], &x[range.clone()], hidden);
        assert_eq!(bits(&alone), bits(&whole[range]), "row {row}");
    }
}
