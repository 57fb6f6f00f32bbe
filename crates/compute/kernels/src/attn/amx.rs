//! Attention over bf16 keys and values on AMX: 16 rows and up to 4 sum tiles at a time.
//!
//! A run of 16 keys is stored in the tile layout of a right operand of 32 dims. A right operand of
//! values is a pair of runs: an even run and the odd run after it. Runs are counted from the start
//! of the sequence, so that a row's sums do not depend on the start of a chunk or window. A run
//! whose partner is missing is a half product, with the same bits as a full product in which the
//! missing run has zero weights.

use super::{MOST_ROWS, Queries, Runs, SPLIT};
use crate::amx::{DEPTH, HEIGHT, HalfTiles, LINE, WIDTH};
use crate::buffer::Aligned;
use crate::kv::RUN;

const _: () = assert!(MOST_ROWS == HEIGHT);

/// Like `generic::scores`, for bf16 keys.
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
    // SAFETY: shapes asserted above; a run has `dim / 2` lines.
    unsafe {
        unit.configure(q.rows, rest);
        for (first, runs) in runs.chunks(WIDTH).enumerate() {
            let mut keys = [std::ptr::null(); WIDTH];
            let mut outs = [std::ptr::null_mut(); WIDTH];
            for (i, (k, _)) in runs.iter().enumerate() {
                keys[i] = k.as_ptr();
                outs[i] = out.as_mut_ptr().add((first * WIDTH + i) * RUN);
            }
            unit.clear();
            for step in 0..whole {
                let keys = keys.map(|k: *const u8| k.wrapping_add(step * DEPTH / 2 * LINE));
                let left = (q.bf16.as_ptr().add(step * DEPTH), q.dim * 2);
                unit.add::<false>(left, &keys[..runs.len()], LINE);
            }
            if rest {
                let keys = keys.map(|k: *const u8| k.wrapping_add(whole * DEPTH / 2 * LINE));
                let left = (q.bf16.as_ptr().add(whole * DEPTH), q.dim * 2);
                unit.add::<true>(left, &keys[..runs.len()], LINE);
            }
            unit.store(&outs[..runs.len()], SPLIT * 4);
        }
    }
}

/// Right operands of values, each as (first run within the stretch, number of runs). The number is
/// 2 for a pair and 1 for a run without its partner.
fn sides(odd: bool, runs: usize) -> impl Iterator<Item = (usize, usize)> {
    let lone = usize::from(odd).min(runs);
    let pairs = (lone..runs).step_by(2).map(move |r| (r, 2.min(runs - r)));
    (0..lone).map(|r| (r, 1)).chain(pairs)
}

/// Copies the values of a stretch to contiguous memory unless the runs of every pair are adjacent.
/// `odd`: the first run is the second of its pair.
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

/// Like `generic::weigh`, for bf16 values that [`join`] has arranged.
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
        unit.configure(p.rows, sides().any(|(_, count)| count == 1));
        for d0 in (0..dim).step_by(WIDTH * 16) {
            let width = WIDTH.min((dim - d0) / 16);
            let outs: [*mut f32; WIDTH] =
                std::array::from_fn(|i| out.as_mut_ptr().wrapping_add(d0 + i * 16));
            unit.clear();
            for (r, count) in sides() {
                let values = runs[r].1.as_ptr();
                let values: [*const u8; WIDTH] =
                    std::array::from_fn(|i| values.wrapping_add(d0 * 4 + i * LINE));
                let left = (p.bf16.as_ptr().add(r * RUN), p.dim * 2);
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
