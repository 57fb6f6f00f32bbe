//! `Z4`: given codes, scales and zero points against f64, against `S4`, and in parts.

use super::common::{Rng, bits, isas, multiply, seen, unpacked};
use half::f16;
use penstock_kernels::{
    ActivationFormat, GROUP, GroupRow, Linear, Packed, RowSource, ThreadPool, WeightFormat,
};
use proptest::prelude::*;

/// The rows of a matrix of codes, from row `first` on.
struct Grouped<'a> {
    rows: &'a [GroupRow],
    first: usize,
}

impl RowSource for Grouped<'_> {
    fn fill_f32(&self, _: usize, _: &mut [f32]) {
        panic!("the source has codes, so no weight is quantised");
    }

    fn fill_groups(&self, _: WeightFormat, row: usize, out: &mut GroupRow) -> bool {
        let row = &self.rows[self.first + row];
        out.codes.copy_from_slice(&row.codes);
        out.scales.copy_from_slice(&row.scales);
        out.mins.copy_from_slice(&row.mins);
        true
    }
}

/// Random codes, also in the padding. Scales and zero points include the ends of their ranges.
fn random_rows(rng: &mut Rng, n: usize, k: usize) -> Vec<GroupRow> {
    let row = |rng: &mut Rng| {
        let mut row = GroupRow::new(k.next_multiple_of(GROUP));
        let all = (rng.below(4) == 0).then(|| [0, 15][rng.below(2)]);
        let code = |rng: &mut Rng| all.unwrap_or(rng.below(16) as u8);
        row.codes.iter_mut().for_each(|c| *c = code(rng));
        for (scale, zero) in row.scales.iter_mut().zip(&mut row.mins) {
            let random = f16::from_f32(rng.unit() * 0.1).to_f32();
            // Includes f16's smallest positive number and its lowest number.
            *scale = [random, random, 0.0, 2f32.powi(-24), -65504.0][rng.below(5)];
            *zero = [0.0, 15.0, rng.below(16) as f32][rng.below(3)];
        }
        row
    };
    (0..n).map(|_| row(rng)).collect()
}

/// Packs rows, cut into matrices of `parts` outputs.
fn packed(form: WeightFormat, k: usize, rows: &[GroupRow], parts: &[usize]) -> Linear {
    let pool = ThreadPool::new(2).unwrap();
    let mut first = 0;
    let pack = |&n: &usize| {
        let source = Grouped { rows, first };
        first += n;
        Packed::pack(&pool, form, n, k, &source)
    };
    Linear {
        parts: parts.iter().map(pack).collect(),
        bias: None,
    }
}

/// `scale * (code - zero)` of an input.
fn weight(row: &GroupRow, input: usize) -> f64 {
    let (scale, zero) = (row.scales[input / GROUP], row.mins[input / GROUP]);
    f64::from(scale) * f64::from(f32::from(row.codes[input]) - zero)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn products_are_near_f64_and_equal_on_all_instruction_sets(
        m in 1usize..40, k in 1usize..200, n in 1usize..70, threads in 1usize..4,
        scale in prop_oneof![Just(3.0f32), Just(0.0), Just(1e-20), Just(1e20)],
        seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let rows = random_rows(&mut rng, n, k);
        let linear = packed(WeightFormat::Z4, k, &rows, &[n]);
        let held = unpacked(&linear.parts[0]);
        for (row, held) in rows.iter().zip(held.chunks_exact(k)) {
            for (input, held) in held.iter().enumerate() {
                prop_assert_eq!(f64::from(*held), weight(row, input));
            }
        }
        let x = rng.vec(m * k, scale);
        let mut first: Option<Vec<u32>> = None;
        for isa in isas() {
            let got = multiply(isa, threads, &linear, &x, m);
            for (x, got) in x.chunks_exact(k).zip(got.chunks_exact(n)) {
                let acts = seen(x, ActivationFormat::Int8);
                for (row, got) in rows.iter().zip(got) {
                    let terms = || acts.iter().enumerate().map(|(i, a)| weight(row, i) * a);
                    let want = terms().sum::<f64>();
                    let magnitude = terms().map(f64::abs).sum::<f64>();
                    // Three roundings for each group.
                    let operations = 4 * k.div_ceil(GROUP) + 4;
                    let slack = operations as f64 * 2f64.powi(-24) * magnitude + 1e-37;
                    let off = (f64::from(*got) - want).abs();
                    prop_assert!(off <= slack, "{isa}: {got}, not {want}");
                }
            }
            let got = bits(&got);
            prop_assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "{}", isa);
        }
    }

    #[test]
    fn a_result_depends_on_its_row_and_output_only(
        m in 2usize..70, k in 1usize..140, n in 2usize..100, seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let rows = random_rows(&mut rng, n, k);
        let x = rng.vec(m * k, 3.0);
        let (cut, from) = (1 + rng.below(n - 1), rng.below(m));
        let count = 1 + rng.below(m - from);
        let linear = packed(WeightFormat::Z4, k, &rows, &[n]);
        let parts = packed(WeightFormat::Z4, k, &rows, &[cut, n - cut]);
        for isa in isas() {
            let whole = bits(&multiply(isa, 1, &linear, &x, m));
            let cut = multiply(isa, 3, &parts, &x, m);
            prop_assert_eq!(&bits(&cut), &whole, "{}: parts", isa);
            let some = multiply(isa, 2, &linear, &x[from * k..(from + count) * k], count);
            prop_assert_eq!(&bits(&some), &whole[from * n..(from + count) * n], "{}: rows", isa);
        }
    }

    #[test]
    fn a_zero_point_of_8_gives_the_bits_of_s4(
        m in 1usize..20, k in 1usize..140, n in 1usize..70, seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let mut rows = random_rows(&mut rng, n, k);
        rows.iter_mut().for_each(|row| row.mins.fill(8.0));
        let x = rng.vec(m * k, 3.0);
        let [z4, s4] = [WeightFormat::Z4, WeightFormat::S4].map(|f| packed(f, k, &rows, &[n]));
        for isa in isas() {
            let [z4, s4] = [&z4, &s4].map(|linear| bits(&multiply(isa, 1, linear, &x, m)));
            prop_assert_eq!(z4, s4, "{}", isa);
        }
    }
}

/// All products at the ends of their ranges. With scales of 1 every sum is an exact f32.
#[test]
fn extreme_codes_and_zero_points_do_not_saturate() {
    let (k, n, m) = (96, 37, 9);
    for (code, zero) in [(0u8, 0u8), (0, 15), (15, 0), (15, 15), (7, 8)] {
        let row = || GroupRow {
            codes: vec![code; k],
            scales: vec![1.0; k / GROUP],
            mins: vec![f32::from(zero); k / GROUP],
        };
        let rows: Vec<_> = (0..n).map(|_| row()).collect();
        let linear = packed(WeightFormat::Z4, k, &rows, &[n]);
        for sign in [127.0, -127.0] {
            let want = sign * k as f32 * (f32::from(code) - f32::from(zero));
            for isa in isas() {
                let got = multiply(isa, 1, &linear, &vec![sign; m * k], m);
                let same = got.iter().all(|&got| got == want);
                assert!(same, "{isa}: code {code}, zero point {zero}");
            }
        }
    }
}
