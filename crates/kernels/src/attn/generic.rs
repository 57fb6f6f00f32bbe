//! The portable attention kernels, also compiled for AVX2.

use super::{Queries, Runs, SPLIT};
use crate::acts::bf16_value;
use crate::kv::{KvType, RUN};
use crate::ops::{exp2, for_each_isa};

for_each_isa! {
    /// `scores[row][token] = q . k` for every run; rows are [`SPLIT`] apart.
    pub(super) fn scores(dtype: KvType, q: &Queries<'_>, runs: &Runs<'_>, out: &mut [f32]) = scores_body;
}
for_each_isa! {
    /// Scores to probabilities for the tokens `low..high` of a split of `runs` runs, zero elsewhere; returns (maximum, sum).
    pub(super) fn softmax(scores: &mut [f32], scale: f32, low: usize, high: usize, result: &mut (f32, f32)) = softmax_body;
}
for_each_isa! {
    /// `out[row][dim] = sum of p[row][token] * v[token][dim]`; `p` is rounded as `dtype` says by the caller.
    pub(super) fn weigh(dtype: KvType, p: &Queries<'_>, runs: &Runs<'_>, dim: usize, out: &mut [f32]) = weigh_body;
}

#[inline(always)]
fn bf16_at(bytes: &[u8], at: usize) -> f32 {
    bf16_value(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

#[inline(always)]
fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
fn scores_body(dtype: KvType, q: &Queries<'_>, runs: &Runs<'_>, out: &mut [f32]) {
    for row in 0..q.rows {
        for (r, (keys, _)) in runs.iter().enumerate() {
            let mut sums = [0.0f32; RUN];
            match dtype {
                KvType::Bf16 => {
                    for (d, step) in keys.chunks_exact(4 * RUN).enumerate() {
                        let at = row * q.dim + 2 * d;
                        let (a, b) = (bf16_value(q.bf16[at]), bf16_value(q.bf16[at + 1]));
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
    let kept = |token: usize| token >= low && token < high;
    let mut max = [f32::NEG_INFINITY; RUN];
    for (r, run) in scores.chunks_exact(RUN).enumerate() {
        for t in 0..RUN {
            max[t] = if kept(r * RUN + t) {
                max[t].max(run[t])
            } else {
                max[t]
            };
        }
    }
    let max = max.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v)) * scale;
    let (log2, shift) = (
        scale * std::f32::consts::LOG2_E,
        -max * std::f32::consts::LOG2_E,
    );
    let mut sums = [0.0f32; RUN];
    for (r, run) in scores.chunks_exact_mut(RUN).enumerate() {
        for t in 0..RUN {
            let p = exp2(run[t].mul_add(log2, shift));
            run[t] = if kept(r * RUN + t) { p } else { 0.0 };
            sums[t] += run[t];
        }
    }
    *result = (max, sums.iter().sum());
}

#[inline(always)]
fn weigh_body(dtype: KvType, p: &Queries<'_>, runs: &Runs<'_>, dim: usize, out: &mut [f32]) {
    for row in 0..p.rows {
        for d0 in (0..dim).step_by(16) {
            let mut sums = [0.0f32; 16];
            for (r, (_, values)) in runs.iter().enumerate() {
                let at = row * p.dim + r * RUN;
                match dtype {
                    KvType::Bf16 => {
                        for t in (0..RUN).step_by(2) {
                            let (a, b) =
                                (bf16_value(p.bf16[at + t]), bf16_value(p.bf16[at + t + 1]));
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
