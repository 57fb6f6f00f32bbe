//! Shared by the kernel tests: random numbers, weight sources, and this machine's instruction sets.
#![allow(dead_code, clippy::unwrap_used)]

use penstock_kernels::{
    ActivationFormat, Activations, Cpu, GROUP, GroupRow, Isa, Linear, Mode, Packed, RowSource,
    WeightFormat,
};

/// Instruction sets of this CPU; prints the ones that are skipped.
pub(crate) fn isas() -> Vec<Isa> {
    let (have, lack): (Vec<_>, Vec<_>) = Isa::all().into_iter().partition(|isa| isa.available());
    for isa in lack {
        println!("not tested, this CPU lacks {isa}");
    }
    have
}

/// Splitmix64 (Steele, Lea and Flood 2014).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Uniform in [-1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn vec(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.unit() * scale).collect()
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// A row-major matrix of f32 weights.
pub(crate) struct Floats {
    pub(crate) k: usize,
    pub(crate) weights: Vec<f32>,
}

impl RowSource for Floats {
    fn fill_f32(&self, row: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.weights[row * self.k..(row + 1) * self.k]);
    }

    fn fill_groups(&self, _: WeightFormat, _: usize, _: &mut GroupRow) -> bool {
        false
    }
}

/// A matrix given as codes: `code(row, input)`, with one scale and minimum for all groups.
pub(crate) struct Codes<F> {
    pub(crate) code: F,
    pub(crate) scale: f32,
    pub(crate) min: f32,
}

impl<F: Fn(usize, usize) -> u8 + Sync> RowSource for Codes<F> {
    fn fill_f32(&self, _: usize, _: &mut [f32]) {
        panic!("codes are given, nothing is to be rounded");
    }

    fn fill_groups(&self, _: WeightFormat, row: usize, out: &mut GroupRow) -> bool {
        out.codes
            .iter_mut()
            .enumerate()
            .for_each(|(i, code)| *code = (self.code)(row, i));
        out.scales.fill(self.scale);
        out.mins.fill(self.min);
        true
    }
}

/// The weights of a packed matrix as the kernels use them.
pub(crate) fn unpacked(packed: &Packed) -> Vec<f32> {
    let mut weights = vec![0.0; packed.n() * packed.k()];
    weights
        .chunks_exact_mut(packed.k())
        .enumerate()
        .for_each(|(row, out)| packed.row_f32(row, out));
    weights
}

/// One row of activations as the multiplication uses it: quantised in groups of 32 to the absolute
/// maximum / 127, or rounded to bf16.
pub(crate) fn seen(x: &[f32], form: ActivationFormat) -> Vec<f64> {
    match form {
        ActivationFormat::F32 => x.iter().map(|&v| f64::from(v)).collect(),
        ActivationFormat::Bf16 => x
            .iter()
            .map(|&v| half::bf16::from_f32(v).to_f64())
            .collect(),
        ActivationFormat::Int8 => x.chunks(GROUP).flat_map(quantised_group).collect(),
    }
}

fn quantised_group(group: &[f32]) -> Vec<f64> {
    let max = group.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    if max <= 1e-30 {
        return vec![0.0; group.len()];
    }
    let code = |v: f32| f64::from((v * (127.0 / max)).round_ties_even());
    group
        .iter()
        .map(|&v| code(v) * f64::from(max / 127.0))
        .collect()
}

/// `linear(x)` for `m` rows on a new `Cpu`.
pub(crate) fn multiply(isa: Isa, threads: usize, linear: &Linear, x: &[f32], m: usize) -> Vec<f32> {
    let cpu = Cpu::new(isa, threads).unwrap();
    let (mut acts, mut out) = (Activations::default(), vec![f32::NAN; m * linear.n()]);
    cpu.norm_quantize(
        x,
        m,
        linear.parts[0].k(),
        None,
        linear.activation_format(),
        &mut acts,
    );
    cpu.matmul(linear, &acts, &mut out, Mode::Store);
    out
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// A sequence that reads some blocks and writes others.
pub(crate) fn uses(reads: &[usize], writes: &[usize]) -> Vec<penstock_kernels::SequenceBlocks> {
    let table: Vec<i32> = reads.iter().chain(writes).map(|&b| b as i32).collect();
    vec![penstock_kernels::SequenceBlocks {
        seen: 0..table.len(),
        writes_from: reads.len(),
        table: table.into(),
    }]
}
