//! Attention kernels on AVX-512, equivalent to `generic`; up to 6 rows x 4 vectors in registers.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::{Queries, Runs, SPLIT, Span};
use crate::kv::{KvType, RUN};
use crate::ops::EXP2;

/// Vectors of scores (runs) or of value dims in one register tile.
const WIDTH: usize = 4;

/// # Safety
/// The CPU has AVX-512 with BF16; `q` and `out` have the shapes of `generic::scores`, and every run
/// has its full length.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
pub(super) unsafe fn scores(dtype: KvType, q: &Queries<'_>, runs: &Runs<'_>, out: &mut [f32]) {
    let half = dtype == KvType::Bf16;
    assert!(out.len() >= q.rows * SPLIT && runs.len() <= SPLIT / RUN);
    assert!(if half { q.bf16.len() } else { q.f32.len() } >= q.rows * q.dim);
    let run_bytes = RUN * q.dim * dtype.size();
    for (first, runs) in runs.chunks(WIDTH).enumerate() {
        assert!(runs.iter().all(|(k, _)| k.len() == run_bytes));
        let keys: [*const u8; WIDTH] =
            std::array::from_fn(|i| runs[i.min(runs.len() - 1)].0.as_ptr());
        // SAFETY: shapes asserted above; `out` has room for WIDTH runs from `first` on because
        // SPLIT is a multiple of WIDTH runs.
        unsafe {
            let out = out.as_mut_ptr().add(first * WIDTH * RUN);
            match (half, q.rows) {
                (true, 6) => dots::<true, 6>(q, keys, out),
                (true, 5) => dots::<true, 5>(q, keys, out),
                (true, 4) => dots::<true, 4>(q, keys, out),
                (true, 3) => dots::<true, 3>(q, keys, out),
                (true, 2) => dots::<true, 2>(q, keys, out),
                (true, _) => {
                    (0..q.rows).for_each(|r| dots::<true, 1>(&row(q, r), keys, out.add(r * SPLIT)))
                }
                (false, 6) => dots::<false, 6>(q, keys, out),
                (false, 3) => dots::<false, 3>(q, keys, out),
                (false, _) => {
                    (0..q.rows).for_each(|r| dots::<false, 1>(&row(q, r), keys, out.add(r * SPLIT)))
                }
            }
        }
    }
}

fn row<'a>(q: &Queries<'a>, row: usize) -> Queries<'a> {
    let cut = |len: usize| (row * q.dim).min(len);
    Queries {
        bf16: &q.bf16[cut(q.bf16.len())..],
        f32: &q.f32[cut(q.f32.len())..],
        rows: 1,
        dim: q.dim,
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
unsafe fn dots<const HALF: bool, const M: usize>(
    q: &Queries<'_>,
    keys: [*const u8; WIDTH],
    out: *mut f32,
) {
    let steps = if HALF { q.dim / 2 } else { q.dim };
    let mut sums = [[_mm512_setzero_ps(); WIDTH]; M];
    // SAFETY: a run has `steps` vectors of 64 bytes, `q` has M rows of `dim`, `out` has M rows of
    // SPLIT.
    unsafe {
        for step in 0..steps {
            let k: [__m512; WIDTH] =
                std::array::from_fn(|i| _mm512_loadu_ps(keys[i].add(step * 64).cast()));
            for m in 0..M {
                accumulate::<HALF>(&mut sums[m], &k, q, m * q.dim, step);
            }
        }
        // A copy, because run-time indexing would force the sums themselves out of registers.
        let finished = sums;
        for (m, sums) in finished.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(out.add(m * SPLIT + i * RUN), *sum);
            }
        }
    }
}

/// `sums += vectors * item`, where the broadcast item at `base` is a pair of bf16 or one f32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
unsafe fn accumulate<const HALF: bool>(
    sums: &mut [__m512; WIDTH],
    vectors: &[__m512; WIDTH],
    q: &Queries<'_>,
    base: usize,
    step: usize,
) {
    // SAFETY: the caller's row has `step`.
    unsafe {
        if HALF {
            let pair = q
                .bf16
                .as_ptr()
                .add(base + 2 * step)
                .cast::<i32>()
                .read_unaligned();
            let a: __m512bh = transmute(_mm512_set1_epi32(pair));
            for i in 0..WIDTH {
                sums[i] = _mm512_dpbf16_ps(sums[i], transmute::<__m512, __m512bh>(vectors[i]), a);
            }
        } else {
            let a = _mm512_set1_ps(*q.f32.as_ptr().add(base + step));
            for i in 0..WIDTH {
                sums[i] = _mm512_fmadd_ps(vectors[i], a, sums[i]);
            }
        }
    }
}

/// # Safety
/// The CPU has AVX-512 with BF16; shapes as in `generic::weigh`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
pub(super) unsafe fn weigh(
    dtype: KvType,
    p: &Queries<'_>,
    runs: &Runs<'_>,
    dim: usize,
    out: &mut [f32],
) {
    let half = dtype == KvType::Bf16;
    let run_bytes = RUN * dim * dtype.size();
    assert!(dim.is_multiple_of(16) && out.len() >= p.rows * dim && p.dim >= runs.len() * RUN);
    assert!(if half { p.bf16.len() } else { p.f32.len() } >= p.rows * p.dim);
    assert!(runs.iter().all(|(_, v)| v.len() == run_bytes));
    let mut d0 = 0;
    while d0 < dim {
        let wide = dim - d0 >= 64;
        // SAFETY: shapes asserted above; a tile covers dims d0 .. d0 + 64 (wide) or d0 .. d0 + 16.
        unsafe {
            let out = out.as_mut_ptr().add(d0);
            match (half, wide, p.rows) {
                (true, true, 6) => sums::<true, 6, 4>(p, runs, dim, d0, out),
                (true, true, 5) => sums::<true, 5, 4>(p, runs, dim, d0, out),
                (true, true, 4) => sums::<true, 4, 4>(p, runs, dim, d0, out),
                (true, true, 3) => sums::<true, 3, 4>(p, runs, dim, d0, out),
                (true, true, 2) => sums::<true, 2, 4>(p, runs, dim, d0, out),
                (true, true, _) => (0..p.rows)
                    .for_each(|r| sums::<true, 1, 4>(&row(p, r), runs, dim, d0, out.add(r * dim))),
                (true, false, _) => (0..p.rows)
                    .for_each(|r| sums::<true, 1, 1>(&row(p, r), runs, dim, d0, out.add(r * dim))),
                (false, true, 6) => sums::<false, 6, 4>(p, runs, dim, d0, out),
                (false, true, _) => (0..p.rows)
                    .for_each(|r| sums::<false, 1, 4>(&row(p, r), runs, dim, d0, out.add(r * dim))),
                (false, false, _) => (0..p.rows)
                    .for_each(|r| sums::<false, 1, 1>(&row(p, r), runs, dim, d0, out.add(r * dim))),
            }
        }
        d0 += if wide { 64 } else { 16 };
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
unsafe fn sums<const HALF: bool, const M: usize, const N: usize>(
    p: &Queries<'_>,
    runs: &Runs<'_>,
    dim: usize,
    d0: usize,
    out: *mut f32,
) {
    let steps = if HALF { RUN / 2 } else { RUN };
    let mut acc = [[_mm512_setzero_ps(); N]; M];
    // SAFETY: a run has `steps` rows of `dim` 4-byte items, `p` has M rows with 16 items for each
    // run, `out` has M rows of `dim`.
    unsafe {
        for (r, (_, values)) in runs.iter().enumerate() {
            let values = values.as_ptr().add(d0 * 4);
            for step in 0..steps {
                let mut v = [_mm512_setzero_ps(); N];
                for (n, v) in v.iter_mut().enumerate() {
                    *v = _mm512_loadu_ps(values.add((step * dim + n * 16) * 4).cast());
                }
                for m in 0..M {
                    let at = m * p.dim + r * RUN;
                    if HALF {
                        let pair = p
                            .bf16
                            .as_ptr()
                            .add(at + 2 * step)
                            .cast::<i32>()
                            .read_unaligned();
                        let a: __m512bh = transmute(_mm512_set1_epi32(pair));
                        for n in 0..N {
                            acc[m][n] =
                                _mm512_dpbf16_ps(acc[m][n], transmute::<__m512, __m512bh>(v[n]), a);
                        }
                    } else {
                        let a = _mm512_set1_ps(*p.f32.as_ptr().add(at + step));
                        for n in 0..N {
                            acc[m][n] = _mm512_fmadd_ps(v[n], a, acc[m][n]);
                        }
                    }
                }
            }
        }
        // A copy as in `dots`.
        let finished = acc;
        for (m, acc) in finished.iter().enumerate() {
            for (n, sum) in acc.iter().enumerate() {
                _mm512_storeu_ps(out.add(m * dim + n * 16), *sum);
            }
        }
    }
}

/// Number of rows whose maxima and sums are reduced at once.
const REDUCED: usize = 4;

/// Like `generic::softmax` for all rows of `spans`, at a stride of [`SPLIT`]. Rounds the
/// probabilities to bf16 into `rounded` unless it is empty. Computes all maxima first, so that the
/// rows' dependency chains overlap.
///
/// # Safety
/// The CPU has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
pub(super) unsafe fn softmax(
    (scores, rounded, stats): (&mut [f32], &mut [u16], &mut [(f32, f32)]),
    (scale, keys): (f32, usize),
    spans: &[Span],
) {
    assert!(keys.is_multiple_of(RUN) && keys <= SPLIT && stats.len() >= spans.len());
    let stats = &mut stats[..spans.len()];
    assert!(scores.len() >= spans.len() * SPLIT);
    assert!(rounded.is_empty() || rounded.len() >= spans.len() * SPLIT);
    let row = |i: usize| i * SPLIT..i * SPLIT + keys;
    for (first, stats) in (0..).step_by(REDUCED).zip(stats.chunks_mut(REDUCED)) {
        let mut largest = [_mm512_set1_ps(f32::NEG_INFINITY); REDUCED];
        for (i, largest) in (first..spans.len()).zip(&mut largest) {
            *largest = if full(spans[i], keys) {
                maxima::<true>(&scores[row(i)], spans[i])
            } else {
                maxima::<false>(&scores[row(i)], spans[i])
            };
        }
        for (max, (out, _)) in reduce_max(largest).into_iter().zip(stats) {
            *out = scale * max;
        }
    }
    for (first, stats) in (0..).step_by(REDUCED).zip(stats.chunks_mut(REDUCED)) {
        let mut sums = [_mm512_setzero_ps(); REDUCED];
        for (i, (sums, (max, _))) in (first..spans.len()).zip(sums.iter_mut().zip(&*stats)) {
            let scores = &mut scores[row(i)];
            let rounded = rounded.get_mut(row(i)).unwrap_or(&mut []);
            let factors = (
                scale * std::f32::consts::LOG2_E,
                -*max * std::f32::consts::LOG2_E,
            );
            // SAFETY: the CPU has AVX-512 with BF16; the lengths were asserted.
            *sums = unsafe {
                match (full(spans[i], keys), rounded.is_empty()) {
                    (true, true) => exponentials::<true, false>(scores, rounded, factors, spans[i]),
                    (true, false) => exponentials::<true, true>(scores, rounded, factors, spans[i]),
                    (false, true) => {
                        exponentials::<false, false>(scores, rounded, factors, spans[i])
                    }
                    (false, false) => {
                        exponentials::<false, true>(scores, rounded, factors, spans[i])
                    }
                }
            };
        }
        for (sum, (_, out)) in add_lanes(sums).into_iter().zip(stats) {
            *out = sum;
        }
    }
}

/// Transposes 4 x 4 blocks: lanes `4 q + j` of four rows become lanes `4 q` to `4 q + 3` of vector
/// `j`.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512; REDUCED]) -> [__m512d; 4] {
    let pairs = |a, b| {
        let (low, high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        (_mm512_castps_pd(low), _mm512_castps_pd(high))
    };
    let (first, last) = (pairs(rows[0], rows[1]), pairs(rows[2], rows[3]));
    [
        _mm512_unpacklo_pd(first.0, last.0),
        _mm512_unpackhi_pd(first.0, last.0),
        _mm512_unpacklo_pd(first.1, last.1),
        _mm512_unpackhi_pd(first.1, last.1),
    ]
}

/// Maximum of each row's lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn reduce_max(rows: [__m512; REDUCED]) -> [f32; REDUCED] {
    let [a, b, c, d] = transposed(rows).map(|lanes| _mm512_castpd_ps(lanes));
    let max = _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d));
    let max = _mm512_max_ps(max, _mm512_shuffle_f32x4::<0b01_00_11_10>(max, max));
    let max = _mm512_max_ps(max, _mm512_shuffle_f32x4::<0b10_11_00_01>(max, max));
    // SAFETY: both types are four f32.
    unsafe { transmute::<__m128, [f32; REDUCED]>(_mm512_castps512_ps128(max)) }
}

/// Sum of each row's lanes, in ascending order.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_lanes(rows: [__m512; REDUCED]) -> [f32; REDUCED] {
    let lanes = transposed(rows).map(|lanes| _mm512_castpd_ps(lanes));
    let mut sums = _mm_setzero_ps();
    for lanes in lanes {
        sums = _mm_add_ps(sums, _mm512_castps512_ps128(lanes));
    }
    for lanes in lanes {
        sums = _mm_add_ps(sums, _mm512_extractf32x4_ps::<1>(lanes));
    }
    for lanes in lanes {
        sums = _mm_add_ps(sums, _mm512_extractf32x4_ps::<2>(lanes));
    }
    for lanes in lanes {
        sums = _mm_add_ps(sums, _mm512_extractf32x4_ps::<3>(lanes));
    }
    // SAFETY: both types are four f32.
    unsafe { transmute::<__m128, [f32; REDUCED]>(sums) }
}

/// Whether a row sees all keys.
fn full((low, high): Span, keys: usize) -> bool {
    low == 0 && high >= keys
}

/// Maximum per lane of a row's scores: of all if `ALL`, else of those in the span.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
fn maxima<const ALL: bool>(scores: &[f32], (low, high): Span) -> __m512 {
    let mut max = [_mm512_set1_ps(f32::NEG_INFINITY); 2];
    for (pair, runs) in scores.chunks(2 * RUN).enumerate() {
        for (half, run) in runs.chunks_exact(RUN).enumerate() {
            // SAFETY: a run has 16 items.
            let run = unsafe { _mm512_loadu_ps(run.as_ptr()) };
            max[half] = if ALL {
                _mm512_max_ps(max[half], run)
            } else {
                let seen = lanes((2 * pair + half) * RUN, low, high);
                _mm512_mask_max_ps(max[half], seen, max[half], run)
            };
        }
    }
    _mm512_max_ps(max[0], max[1])
}

/// Writes a row's exponentials relative to its maximum, and returns their sum per lane.
///
/// # Safety
/// The CPU has AVX-512 with BF16; `rounded` is as long as `scores` if `HALF`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
unsafe fn exponentials<const ALL: bool, const HALF: bool>(
    scores: &mut [f32],
    rounded: &mut [u16],
    (log2, shift): (f32, f32),
    (low, high): Span,
) -> __m512 {
    let (log2, shift) = (_mm512_set1_ps(log2), _mm512_set1_ps(shift));
    let mut sums = _mm512_setzero_ps();
    for (r, run) in scores.chunks_exact_mut(RUN).enumerate() {
        // SAFETY: a run has 16 items, in `rounded` too.
        unsafe {
            let mut p = exp2(_mm512_fmadd_ps(_mm512_loadu_ps(run.as_ptr()), log2, shift));
            if !ALL {
                p = _mm512_maskz_mov_ps(lanes(r * RUN, low, high), p);
            }
            sums = _mm512_add_ps(sums, p);
            if HALF {
                let p: __m256i = transmute(_mm512_cvtneps_pbh(p));
                _mm256_storeu_si256(rounded.as_mut_ptr().add(r * RUN).cast(), p);
            } else {
                _mm512_storeu_ps(run.as_mut_ptr(), p);
            }
        }
    }
    sums
}

/// Mask of the lanes of the run at `first` that lie in `low..high`.
#[inline]
fn lanes(first: usize, low: usize, high: usize) -> __mmask16 {
    let below = |limit: usize| ((1u32 << limit.saturating_sub(first).min(RUN)) - 1) as __mmask16;
    below(high) & !below(low)
}

/// `ops::exp2` on 16 lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,fma")]
fn exp2(x: __m512) -> __m512 {
    let x = _mm512_max_ps(x, _mm512_set1_ps(-126.0));
    let n = _mm512_roundscale_ps::<8>(x);
    let r = _mm512_sub_ps(x, n);
    let mut p = _mm512_set1_ps(EXP2[0]);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP2[1]));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP2[2]));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP2[3]));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP2[4]));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP2[5]));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0));
    _mm512_scalef_ps(p, n)
}
