//! Attention kernels on AVX2 with FMA, bit for bit equal to `generic`; 6 to 12 vectors of sums stay
//! in registers.
//!
//! AVX2 has no bf16 arithmetic. A vector of pairs is split into its first numbers (shifted up) and
//! its second numbers (masked). The rows' numbers are widened in advance, so that each is one
//! broadcast from memory.

use std::arch::x86_64::*;

use super::{Queries, Runs, SPLIT};
use crate::kv::{KvType, RUN};

/// f32 numbers per vector.
const LANES: usize = 8;

/// Sums of one register tile: rows x vectors.
type Sums<const M: usize, const N: usize> = [[__m256; N]; M];

/// # Safety
/// The CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn scores(dtype: KvType, q: &Queries<'_>, runs: &Runs<'_>, out: &mut [f32]) {
    assert!(out.len() >= q.rows * SPLIT && runs.len() <= SPLIT / RUN);
    assert!(q.f32.len() >= q.rows * q.dim && q.dim.is_multiple_of(2));
    let run_bytes = RUN * q.dim * dtype.size();
    assert!(runs.iter().all(|(k, _)| k.len() == run_bytes));
    // SAFETY: shapes asserted above.
    unsafe {
        match dtype {
            KvType::Bf16 => score_rows::<true>(q, runs, out.as_mut_ptr()),
            KvType::F32 => score_rows::<false>(q, runs, out.as_mut_ptr()),
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn score_rows<const HALF: bool>(q: &Queries<'_>, runs: &Runs<'_>, out: *mut f32) {
    let mut row = 0;
    while row < q.rows {
        // SAFETY: the rows of a tile are among those of `q`.
        unsafe {
            let (items, out) = (q.f32.as_ptr().add(row * q.dim), out.add(row * SPLIT));
            row += match q.rows - row {
                6.. => dots::<HALF, 6, 1, 2>(items, q.dim, runs, out),
                3.. => dots::<HALF, 3, 1, 2>(items, q.dim, runs, out),
                _ => dots::<HALF, 1, 4, 8>(items, q.dim, runs, out),
            };
        }
    }
}

/// Scores of M rows for every run; each iteration computes R runs (N = 2 R vectors). Returns M.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn dots<const HALF: bool, const M: usize, const R: usize, const N: usize>(
    items: *const f32,
    dim: usize,
    runs: &Runs<'_>,
    out: *mut f32,
) -> usize {
    let step = Step {
        vectors: RUN * 4,
        rows: dim,
        count: if HALF { dim / 2 } else { dim },
    };
    for (first, runs) in runs.chunks(R).enumerate() {
        // Missing runs at the end are replaced by copies of the last run. `out` has space for their
        // scores, because a split is a multiple of R runs.
        let keys = |run: usize| runs[run.min(runs.len() - 1)].0.as_ptr();
        let vectors = std::array::from_fn(|n| keys(n / 2).wrapping_add(n % 2 * 32));
        let mut sums = [[_mm256_setzero_ps(); N]; M];
        // SAFETY: a run has `count` steps of 64 bytes, `items` has M rows of `dim`, `out` has M
        // rows of SPLIT.
        unsafe {
            accumulate::<HALF, M, N>(&mut sums, vectors, items, &step);
            store(&sums, out.add(first * R * RUN), SPLIT);
        }
    }
    M
}

/// # Safety
/// The CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn weigh(
    dtype: KvType,
    p: &Queries<'_>,
    runs: &Runs<'_>,
    dim: usize,
    out: &mut [f32],
) {
    let run_bytes = RUN * dim * dtype.size();
    assert!(dim.is_multiple_of(16) && out.len() >= p.rows * dim);
    assert!(p.dim >= runs.len() * RUN && p.f32.len() >= p.rows * p.dim);
    assert!(runs.iter().all(|(_, v)| v.len() == run_bytes));
    // SAFETY: shapes asserted above.
    unsafe {
        match dtype {
            KvType::Bf16 => weigh_rows::<true>(p, runs, dim, out.as_mut_ptr()),
            KvType::F32 => weigh_rows::<false>(p, runs, dim, out.as_mut_ptr()),
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn weigh_rows<const HALF: bool>(
    p: &Queries<'_>,
    runs: &Runs<'_>,
    dim: usize,
    out: *mut f32,
) {
    let mut row = 0;
    while row < p.rows {
        let rows = match p.rows - row {
            6.. => 6,
            3.. => 3,
            _ => 1,
        };
        let mut d0 = 0;
        while d0 < dim {
            // SAFETY: the tile covers rows of `p` only, and dimensions below `dim`.
            unsafe {
                let items = p.f32.as_ptr().add(row * p.dim);
                let out = out.add(row * dim + d0);
                d0 += match (rows, dim - d0) {
                    (6, _) => sums::<HALF, 6, 2>(items, p.dim, runs, dim, d0, out),
                    (3, _) => sums::<HALF, 3, 2>(items, p.dim, runs, dim, d0, out),
                    (_, 64..) => sums::<HALF, 1, 8>(items, p.dim, runs, dim, d0, out),
                    _ => sums::<HALF, 1, 2>(items, p.dim, runs, dim, d0, out),
                };
            }
        }
        row += rows;
    }
}

/// Weighted values of M rows for the N vectors of dims that start at `d0`. Returns the number of
/// dims.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn sums<const HALF: bool, const M: usize, const N: usize>(
    items: *const f32,
    row_len: usize,
    runs: &Runs<'_>,
    dim: usize,
    d0: usize,
    out: *mut f32,
) -> usize {
    let step = Step {
        vectors: dim * 4,
        rows: row_len,
        count: if HALF { RUN / 2 } else { RUN },
    };
    let mut sums = [[_mm256_setzero_ps(); N]; M];
    // SAFETY: a run has `count` steps of `dim` 4-byte items, `items` M rows with RUN items for each
    // run, `out` M rows of `dim`.
    unsafe {
        for (r, (_, values)) in runs.iter().enumerate() {
            let values = values.as_ptr().add(d0 * 4);
            let vectors = std::array::from_fn(|n| values.wrapping_add(n * LANES * 4));
            accumulate::<HALF, M, N>(&mut sums, vectors, items.add(r * RUN), &step);
        }
        store(&sums, out, dim);
    }
    N * LANES
}

/// Strides of a kernel's loop: bytes between the vectors of two steps, items between two rows, and
/// the number of steps.
struct Step {
    vectors: usize,
    rows: usize,
    count: usize,
}

/// `sums[row][n] += vectors[n] * items[row]` for each step: a pair of bf16 (first item, then
/// second) or one f32.
#[inline(always)]
unsafe fn accumulate<const HALF: bool, const M: usize, const N: usize>(
    sums: &mut Sums<M, N>,
    vectors: [*const u8; N],
    items: *const f32,
    step: &Step,
) {
    // A copy, so that the sums stay in registers.
    let mut acc = *sums;
    // SAFETY: the caller's vectors and rows have `count` steps; the CPU has AVX2 and FMA.
    unsafe {
        for s in 0..step.count {
            let at = |n: usize| vectors[n].add(s * step.vectors);
            if HALF {
                let items = items.add(2 * s);
                let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                fma(&mut acc, items, step.rows, |n| {
                    let pairs = _mm256_loadu_si256(at(n).cast());
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs))
                });
                fma(&mut acc, items.add(1), step.rows, |n| {
                    let pairs = _mm256_loadu_si256(at(n).cast());
                    _mm256_castsi256_ps(_mm256_and_si256(pairs, high))
                });
            } else {
                fma(&mut acc, items.add(s), step.rows, |n| {
                    _mm256_loadu_ps(at(n).cast())
                });
            }
        }
    }
    *sums = acc;
}

#[inline(always)]
unsafe fn fma<const M: usize, const N: usize>(
    acc: &mut Sums<M, N>,
    items: *const f32,
    row_len: usize,
    vector: impl Fn(usize) -> __m256,
) {
    // SAFETY: as in `accumulate`.
    unsafe {
        // Keeps the smaller side of the tile in registers and streams the other one.
        if M < N {
            let a: [__m256; M] =
                std::array::from_fn(|m| _mm256_broadcast_ss(&*items.add(m * row_len)));
            for n in 0..N {
                let v = vector(n);
                for m in 0..M {
                    acc[m][n] = _mm256_fmadd_ps(v, a[m], acc[m][n]);
                }
            }
        } else {
            let v: [__m256; N] = std::array::from_fn(&vector);
            for (m, acc) in acc.iter_mut().enumerate() {
                let a = _mm256_broadcast_ss(&*items.add(m * row_len));
                for n in 0..N {
                    acc[n] = _mm256_fmadd_ps(v[n], a, acc[n]);
                }
            }
        }
    }
}

/// Stores a tile's sums with a row stride of `row_len`.
#[inline(always)]
unsafe fn store<const M: usize, const N: usize>(sums: &Sums<M, N>, out: *mut f32, row_len: usize) {
    // A copy, because run-time indexing would force the sums themselves out of registers.
    let finished = *sums;
    for (m, row) in finished.iter().enumerate() {
        for (n, sum) in row.iter().enumerate() {
            // SAFETY: the caller's `out` has the tile's rows and vectors.
            unsafe { _mm256_storeu_ps(out.add(m * row_len + n * LANES), *sum) };
        }
    }
}
