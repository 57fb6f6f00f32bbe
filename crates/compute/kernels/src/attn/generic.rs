//! The portable attention kernels. The softmax is also compiled for AVX2.

use super::{Queries, Runs, SPLIT};
use crate::activations::bf16_value;
use crate::kv::{KvType, RUN};
use crate::ops::{exp2, for_each_isa};

for_each_isa! {
    /// Converts the scores of tokens `low..high` of a split to probabilities that are not yet
    /// divided by their sum; other tokens become zero. `result` = (maximum of the scaled scores,
    /// sum).
    pub(super) fn softmax(
        scores: &mut [f32], scale: f32, low: usize, high: usize, result: &mut (f32, f32),
    ) = softmax_body;
}
#[inline(always)]
fn bf16_at(bytes: &[u8], at: usize) -> f32 {
    bf16_value(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

#[inline(always)]
fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// `scores[row][token] = q . k` for every run, with a row stride of [`SPLIT`].
pub(super) fn scores(dtype: KvType, q: &Queries<'_>, runs: &Runs<'_>, out: &mut [f32]) {
    for row in 0..q.rows {
        for (r, (keys, _)) in runs.iter().enumerate() {
            let mut sums = [0.0f32; RUN];
            match dtype {
                KvType::Bf16 => {
                    for (d, step) in keys.chunks_exact(4 * RUN).enumerate() {
                        let at = row * q.dim + 2 * d;
                        let (a, b) = (q.f32[at], q.f32[at + 1]);
                        for t in 0..RUN {
                            sums[t] = bf16_at(step, t * 4 + 2)
                                .mul_add(b, bf16_at(step, t * 4).mul_add(a, sums[t]));
                        }
                    }
                }
                KvType::F32 => {
                    for (d, step) in keys.chunks_exact(4 * RUN).enumerate() {
                        let a = q.f32[row * q.dim + d];
                        for t in 0..RUN {
                            sums[t] = f32_at(step, t * 4).mul_add(a, sums[t]);
                        }
                    }
                }
            }
            out[row * SPLIT + r * RUN..][..RUN].copy_from_slice(&sums);
        }
    }
}

#[inline(always)]
fn softmax_body(scores: &mut [f32], scale: f32, low: usize, high: usize, result: &mut (f32, f32)) {
    let high = high.min(scores.len());
    scores[..low.min(high)].fill(f32::NEG_INFINITY);
    scores[high..].fill(f32::NEG_INFINITY);
    let mut max = [f32::NEG_INFINITY; RUN];
    for run in scores.chunks_exact(RUN) {
        for t in 0..RUN {
            max[t] = if run[t] > max[t] { run[t] } else { max[t] };
        }
    }
    let max = max.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v)) * scale;
    let (log2, shift) = (
        scale * std::f32::consts::LOG2_E,
        -max * std::f32::consts::LOG2_E,
    );
    let mut sums = [0.0f32; RUN];
    for run in scores.chunks_exact_mut(RUN) {
        for t in 0..RUN {
            let p = exp2(run[t].mul_add(log2, shift));
            run[t] = if run[t] == f32::NEG_INFINITY { 0.0 } else { p };
            sums[t] += run[t];
        }
    }
    *result = (max, sums.iter().sum());
}

/// `out[row][dim] = sum of p[row][token] * v[token][dim]`.
pub(super) fn weigh(dtype: KvType, p: &Queries<'_>, runs: &Runs<'_>, dim: usize, out: &mut [f32]) {
    for row in 0..p.rows {
        for d0 in (0..dim).step_by(16) {
            let mut sums = [0.0f32; 16];
            for (r, (_, values)) in runs.iter().enumerate() {
                let at = row * p.dim + r * RUN;
                match dtype {
                    KvType::Bf16 => {
                        for t in (0..RUN).step_by(2) {
                            let (a, b) = (p.f32[at + t], p.f32[at + t + 1]);
                            let pair = &values[(t / 2 * dim + d0) * 4..][..64];
                            for d in 0..16 {
                                sums[d] = bf16_at(pair, d * 4 + 2)
                                    .mul_add(b, bf16_at(pair, d * 4).mul_add(a, sums[d]));
                            }
                        }
                    }
                    KvType::F32 => {
                        for t in 0..RUN {
                            let a = p.f32[at + t];
                            let step = &values[(t * dim + d0) * 4..][..64];
                            for d in 0..16 {
                                sums[d] = f32_at(step, d * 4).mul_add(a, sums[d]);
                            }
                        }
                    }
                }
            }
            out[row * dim + d0..][..16].copy_from_slice(&sums);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::{ROWS, avx2};
    use super::*;
    use crate::isa::Isa;

    /// Numbers in (-2, 2) that are exact in bf16, of such different magnitudes that sums round.
    fn noise(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits((state >> 16 & 0x83ff | 0x3c00) << 16)
        };
        (0..len).map(|_| next()).collect()
    }

    fn bytes(dtype: KvType, values: &[f32]) -> Vec<u8> {
        let one = |v: &f32| v.to_bits().to_le_bytes()[4 - dtype.size()..].to_vec();
        values.iter().flat_map(one).collect()
    }

    #[test]
    fn avx2_has_the_bits_of_the_portable_twin() {
        if !Isa::Avx2.available() {
            eprintln!("skipped: this CPU lacks AVX2");
            return;
        }
        for dtype in [KvType::Bf16, KvType::F32] {
            for (rows, dim, count) in (1..=ROWS)
                .flat_map(|rows| [16, 48, 64, 112].map(|dim| (rows, dim)))
                .flat_map(|(rows, dim)| [1, 3, 7, 16].map(|count| (rows, dim, count)))
            {
                let data: Vec<_> = (0..2 * count as u32)
                    .map(|i| bytes(dtype, &noise(RUN * dim, 7 + i)))
                    .collect();
                let runs: Vec<(&[u8], &[u8])> =
                    data.chunks(2).map(|kv| (&kv[0][..], &kv[1][..])).collect();
                let items = noise(rows * SPLIT, 5);
                let (q, p) = ([dim, SPLIT])
                    .map(|dim| Queries {
                        bf16: &[],
                        f32: &items,
                        rows,
                        dim,
                    })
                    .into();
                let mut outs = [(); 4].map(|()| vec![0.0f32; rows * SPLIT]);
                let [want, got, want_sums, got_sums] = &mut outs;
                scores(dtype, &q, &runs, want);
                weigh(dtype, &p, &runs, dim, want_sums);
                // SAFETY: availability was checked above.
                unsafe {
                    avx2::scores(dtype, &q, &runs, got);
                    avx2::weigh(dtype, &p, &runs, dim, got_sums);
                }
                for row in 0..rows {
                    let seen = row * SPLIT..row * SPLIT + count * RUN;
                    let same = want[seen.clone()]
                        .iter()
                        .zip(&got[seen])
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(
                        same,
                        "scores of {rows} rows, dim {dim}, {count} runs, {dtype:?}"
                    );
                }
                let same = want_sums
                    .iter()
                    .zip(got_sums.iter())
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(
                    same,
                    "sums of {rows} rows, dim {dim}, {count} runs, {dtype:?}"
                );
            }
        }
    }
}
