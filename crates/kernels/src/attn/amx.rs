//! Attention over bf16 keys and values on AMX: 16 rows and up to 4 tiles of sums at a time.
//!
//! A run of 16 keys is a right side of 32 dims as it lies in the pool. Of values a right side is
//! two runs, an even one and the odd one after it, counted from the sequence's start, so that a
//! row's sums do not depend on where a chunk or a window begins. A pair with one run alone is half
//! a product: the bits are those of the whole one with weights of zero for the other run.

use super::{Queries, Runs, SPLIT};
use crate::amx::{DEPTH, HEIGHT, HalfTiles, LINE, WIDTH};
use crate::buffer::Aligned;
use crate::kv::RUN;

/// Cuts rows into products: the first row of each, and the rows of all. The last one ends with the
/// rows, so that some may be computed twice.
fn products(rows: usize) -> (impl Iterator<Item = usize> + Clone, usize) {
    let height = rows.min(HEIGHT);
    let first = move |row: usize| row.min(rows - height);
    ((0..rows).step_by(HEIGHT).map(first), height)
}

/// As `generic::scores`, of bf16 keys.
///
/// # Safety
/// The CPU has the unit, which the caller releases; every run has its full length.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn scores<U: HalfTiles>(
    unit: &mut U,
    q: &Queries<'_>,
    runs: &Runs<'_>,
    out: &mut [f32],
) {
    assert!(q.dim.is_multiple_of(16) && q.bf16.len() >= q.rows * q.dim);
    assert!(out.len() >= q.rows * SPLIT && runs.len() <= SPLIT / RUN);
    assert!(runs.iter().all(|(k, _)| k.len() == RUN * q.dim * 2));
    let (whole, rest) = (q.dim / DEPTH, !q.dim.is_multiple_of(DEPTH));
    let (rows, height) = products(q.rows);
    // SAFETY: shapes asserted above; a run has `dim / 2` lines.
    unsafe {
        unit.configure(height, rest);
        for (first, runs) in runs.chunks(WIDTH).enumerate() {
            let mut keys = [std::ptr::null(); WIDTH];
            for (key, (k, _)) in keys.iter_mut().zip(runs) {
                *key = k.as_ptr();
            }
            for row in rows.clone() {
                let (left, bytes) = (q.bf16.as_ptr().add(row * q.dim), q.dim * 2);
                let out = out.as_mut_ptr().add(row * SPLIT + first * WIDTH * RUN);
                let outs: [*mut f32; WIDTH] = std::array::from_fn(|i| out.wrapping_add(i * RUN));
                unit.clear();
                for step in 0..whole {
                    let keys = keys.map(|k: *const u8| k.wrapping_add(step * DEPTH / 2 * LINE));
                    let left = (left.add(step * DEPTH), bytes);
                    unit.add::<false>(left, &keys[..runs.len()], LINE);
                }
                if rest {
                    let keys = keys.map(|k: *const u8| k.wrapping_add(whole * DEPTH / 2 * LINE));
                    let left = (left.add(whole * DEPTH), bytes);
                    unit.add::<true>(left, &keys[..runs.len()], LINE);
                }
                unit.store(&outs[..runs.len()], SPLIT * 4);
            }
        }
    }
}

/// Right sides of values: the first run of each, counted in the stretch, and its runs.
fn sides(odd: bool, runs: usize) -> impl Iterator<Item = (usize, usize)> {
    let lone = usize::from(odd).min(runs);
    let pairs = (lone..runs).step_by(2).map(move |r| (r, 2.min(runs - r)));
    (0..lone).map(|r| (r, 1)).chain(pairs)
}

/// Copies the values of a stretch together if the two runs of some pair are apart; `odd` = the
/// first run is the second of its pair.
pub(super) fn join<'r>(odd: bool, runs: &mut [(&'r [u8], &'r [u8])], values: &'r mut Aligned<u8>) {
    let apart = |(r, count): (usize, usize)| count == 2 && !adjacent(runs[r].1, runs[r + 1].1);
    if !sides(odd, runs.len()).any(apart) {
        return;
    }
    let bytes = runs[0].1.len();
    values.ensure(SPLIT / RUN * bytes);
    for (run, part) in runs.iter_mut().zip(values.chunks_exact_mut(bytes)) {
        part.copy_from_slice(run.1);
        run.1 = part;
    }
}

fn adjacent(a: &[u8], b: &[u8]) -> bool {
    std::ptr::eq(a.as_ptr_range().end, b.as_ptr())
}

/// As `generic::weigh`, of bf16 values that were joined.
///
/// # Safety
/// The CPU has the unit, which the caller releases.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn weigh<U: HalfTiles>(
    unit: &mut U,
    p: &Queries<'_>,
    odd: bool,
    runs: &Runs<'_>,
    dim: usize,
    out: &mut [f32],
) {
    assert!(dim.is_multiple_of(16) && out.len() >= p.rows * dim);
    assert!(p.dim >= runs.len() * RUN && p.bf16.len() >= p.rows * p.dim);
    assert!(runs.iter().all(|(_, v)| v.len() == RUN * dim * 2));
    let sides = || sides(odd, runs.len());
    let together = |(r, count): (usize, usize)| count == 1 || adjacent(runs[r].1, runs[r + 1].1);
    assert!(sides().all(together), "the runs of a pair are apart");
    // SAFETY: shapes asserted above; a run has `RUN / 2` rows of `dim` pairs, and the second run
    // of a pair follows the first.
    unsafe {
        let (rows, height) = products(p.rows);
        unit.configure(height, sides().any(|(_, count)| count == 1));
        for (d0, row) in (0..dim)
            .step_by(WIDTH * 16)
            .flat_map(|d0| rows.clone().map(move |row| (d0, row)))
        {
            let width = WIDTH.min((dim - d0) / 16);
            let out = out.as_mut_ptr().add(row * dim + d0);
            let outs: [*mut f32; WIDTH] = std::array::from_fn(|i| out.wrapping_add(i * 16));
            unit.clear();
            for (r, count) in sides() {
                let values = runs[r].1.as_ptr();
                let values: [*const u8; WIDTH] =
                    std::array::from_fn(|i| values.wrapping_add(d0 * 4 + i * LINE));
                let left = (p.bf16.as_ptr().add(row * p.dim + r * RUN), p.dim * 2);
                if count == 2 {
                    unit.add::<false>(left, &values[..width], dim * 4);
                } else {
                    unit.add::<true>(left, &values[..width], dim * 4);
                }
            }
            unit.store(&outs[..width], dim * 4);
        }
    }
}
