//! Division of a matrix multiplication into tasks: panels x chunks of rows.
//!
//! Each thread gets a contiguous segment, so that its weights are one stream of memory. A thread
//! that ends early (the cores are shared) steals small pieces of another's segment.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::threads::ThreadPool;

/// Rows of one task: enough to make good use of a block of weights brought to the first cache.
const ROWS: usize = 96;
/// Panels of a task of one's own segment, and of another's.
const OWN: usize = 4;
const STOLEN: usize = 2;
/// The same with few rows, where a panel is little work.
const OWN_FEW_ROWS: usize = 12;
const FEW_ROWS: usize = 4;

/// One task: some panels of one matrix times some rows.
pub(crate) struct Task {
    pub(crate) part: usize,
    pub(crate) panels: Range<usize>,
    pub(crate) rows: Range<usize>,
}

struct Segment {
    next: AtomicUsize,
    end: usize,
}

/// Runs `body` over all panels of all parts (`panels[part]` of them) times `rows` rows.
pub(crate) fn run(pool: &ThreadPool, panels: &[usize], rows: usize, body: &(dyn Fn(Task) + Sync)) {
    let width: usize = panels.iter().sum();
    let total = width * rows.div_ceil(ROWS);
    let threads = pool.count();
    let segments: Vec<Segment> = (0..threads)
        .map(|t| Segment {
            next: AtomicUsize::new(total * t / threads),
            end: total * (t + 1) / threads,
        })
        .collect();
    let own = if rows <= FEW_ROWS { OWN_FEW_ROWS } else { OWN };
    pool.run(threads, &|thread| {
        for offset in 0..threads {
            let segment = &segments[(thread + offset) % threads];
            let most = if offset == 0 { own } else { STOLEN };
            while let Some(task) = claim(segment, panels, width, rows, most) {
                body(task);
            }
        }
    });
}

/// Takes up to `most` panels from the front of a segment, of one part and one chunk of rows.
fn claim(
    segment: &Segment,
    panels: &[usize],
    width: usize,
    rows: usize,
    most: usize,
) -> Option<Task> {
    let mut at = segment.next.load(Ordering::Relaxed);
    loop {
        if at >= segment.end {
            return None;
        }
        let (chunk, mut first, mut part) = (at / width, at % width, 0);
        while first >= panels[part] {
            first -= panels[part];
            part += 1;
        }
        let count = most.min(panels[part] - first).min(segment.end - at);
        match segment.next.compare_exchange_weak(
            at,
            at + count,
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            Ok(_) => {
                let rows = chunk * ROWS..rows.min((chunk + 1) * ROWS);
                return Some(Task {
                    part,
                    panels: first..first + count,
                    rows,
                });
            }
            Err(seen) => at = seen,
        }
    }
}
