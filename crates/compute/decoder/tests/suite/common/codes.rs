//! Matrices of integer codes, as quantisation tools write them.

use half::{bf16, f16};

use super::{Rng, Stored};

/// Place of each of eight neighbouring columns in a word of AWQ's.
const AWQ: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) layout: &'static str,
    pub(crate) bits: usize,
    /// Inputs of a group; `None` for a whole row.
    pub(crate) group: Option<usize>,
    pub(crate) zeros: Zeros,
    /// Type of the scales.
    pub(crate) scales: &'static str,
    /// Groups are no neighbours.
    pub(crate) ordered: bool,
    /// The decoder's format; `None` if it has no such codes.
    pub(crate) held: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Zeros {
    /// No tensor of zero points.
    Absent,
    /// A tensor of zero points in the middle of the codes.
    Middle,
    Random,
}

pub(crate) const fn form(
    layout: &'static str,
    bits: usize,
    zeros: Zeros,
    held: Option<&'static str>,
) -> Form {
    Form {
        layout,
        bits,
        group: Some(32),
        zeros,
        scales: "F16",
        ordered: false,
        held,
    }
}

/// A matrix of codes, as a tool would write it, and its numbers.
pub(crate) struct Matrix {
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// By output and input.
    pub(crate) codes: Vec<u32>,
    /// By output and group.
    pub(crate) scales: Vec<f32>,
    pub(crate) zeros: Vec<u32>,
    /// Group of each input.
    pub(crate) order: Vec<usize>,
    pub(crate) groups: usize,
}

impl Matrix {
    pub(crate) fn random(form: Form, n: usize, k: usize, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let size = form.group.unwrap_or(k);
        let groups = k / size;
        let most = 1 << form.bits;
        let step = 0.1 / most as f32;
        let scale = |rng: &mut Rng| {
            let sign = if rng.below(2) == 0 { 1.0 } else { -1.0 };
            let scale = sign * step * (1.0 + rng.below(97) as f32 / 97.0);
            match form.scales {
                "F16" => f16::from_f32(scale).to_f32(),
                "BF16" => bf16::from_f32(scale).to_f32(),
                // In the range of f16, but not an f16 number.
                _ => scale,
            }
        };
        let mut order: Vec<usize> = (0..k).map(|at| at / size).collect();
        if form.ordered {
            (1..k)
                .rev()
                .for_each(|at| order.swap(at, rng.below(at + 1)));
        }
        Self {
            codes: (0..n * k).map(|_| rng.below(most) as u32).collect(),
            scales: (0..n * groups).map(|_| scale(&mut rng)).collect(),
            zeros: (0..n * groups)
                .map(|_| match form.zeros {
                    Zeros::Random => rng.below(most) as u32,
                    _ => most as u32 / 2,
                })
                .collect(),
            n,
            k,
            order,
            groups,
        }
    }

    pub(crate) fn numbers(&self) -> Vec<f32> {
        let number = |at: usize| {
            let place = at / self.k * self.groups + self.order[at % self.k];
            (self.codes[at] as f32 - self.zeros[place] as f32) * self.scales[place]
        };
        (0..self.n * self.k).map(number).collect()
    }

    /// Items `[rows, columns]` in words along the columns, or along the rows.
    fn words(
        [rows, columns]: [usize; 2],
        bits: usize,
        along_rows: bool,
        places: Option<[usize; 8]>,
        item: impl Fn(usize, usize) -> u32,
    ) -> (Vec<usize>, Vec<u8>) {
        let per = 32 / bits;
        let shape = match along_rows {
            true => vec![rows.div_ceil(per), columns],
            false => vec![rows, columns.div_ceil(per)],
        };
        let mut words = vec![0u32; shape[0] * shape[1]];
        for row in 0..rows {
            for column in 0..columns {
                let (along, word) = match along_rows {
                    true => (row, row / per * columns + column),
                    false => (column, row * shape[1] + column / per),
                };
                let place = places.map_or(along % per, |places| places[along % per]);
                words[word] |= item(row, column) << (place * bits);
            }
        }
        (
            shape,
            words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        )
    }

    /// The tensors of a module, codes first.
    pub(crate) fn stored(&self, form: Form, module: &str) -> Vec<Stored> {
        let (n, k, groups, bits) = (self.n, self.k, self.groups, form.bits);
        let tensor = |name: &str, dtype: &str, (shape, bytes): (Vec<usize>, Vec<u8>)| Stored {
            name: format!("{module}.{name}"),
            dtype: dtype.to_owned(),
            shape,
            bytes,
        };
        let floats = |of: &[f32]| -> Vec<u8> {
            let bytes = |x: &f32| match form.scales {
                "F16" => f16::from_f32(*x).to_le_bytes().to_vec(),
                "BF16" => bf16::from_f32(*x).to_le_bytes().to_vec(),
                _ => x.to_le_bytes().to_vec(),
            };
            of.iter().flat_map(bytes).collect()
        };
        let packed = form.layout == "packed";
        let places = (form.layout == "awq").then_some(AWQ);
        let code = |row: usize, column: usize| self.codes[row * k + column];
        let zero = |row: usize, group: usize| self.zeros[row * groups + group];
        let turned: Vec<f32> = (0..groups * n)
            .map(|at| self.scales[at % n * groups + at / n])
            .collect();
        let mut tensors = match form.layout {
            "packed" => vec![
                tensor(
                    "weight_packed",
                    "I32",
                    Self::words([n, k], bits, false, None, code),
                ),
                tensor(
                    "weight_scale",
                    form.scales,
                    (vec![n, groups], floats(&self.scales)),
                ),
                tensor("weight_shape", "I64", {
                    let bytes = [n, k].map(|size| (size as u64).to_le_bytes());
                    (vec![2], bytes.concat())
                }),
            ],
            layout => vec![
                tensor(
                    "qweight",
                    "I32",
                    Self::words([k, n], bits, layout != "awq", places, |i, j| code(j, i)),
                ),
                tensor("scales", form.scales, (vec![groups, n], floats(&turned))),
            ],
        };
        if form.zeros != Zeros::Absent {
            let (shape, mut bytes) = match packed {
                true => Self::words([n, groups], bits, true, None, zero),
                false => Self::words([groups, n], bits, false, places, |i, j| zero(j, i)),
            };
            if form.layout == "gptq" {
                // gptqmodel subtracts 1 from all zero points of a word at once, with borrows.
                let ones = u32::MAX / ((1 << bits) - 1);
                for word in bytes.as_chunks_mut::<4>().0 {
                    *word = u32::from_le_bytes(*word).wrapping_sub(ones).to_le_bytes();
                }
            }
            let name = if packed {
                "weight_zero_point"
            } else {
                "qzeros"
            };
            tensors.push(tensor(name, "I32", (shape, bytes)));
        }
        if form.layout.starts_with("gptq") {
            let order = self.order.iter().map(|&group| (group as u32).to_le_bytes());
            tensors.push(tensor("g_idx", "I32", (vec![k], order.flatten().collect())));
        }
        tensors
    }
}
