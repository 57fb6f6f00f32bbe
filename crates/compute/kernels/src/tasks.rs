//! Division of a matrix multiplication into tasks: panels x chunks of rows.
//!
//! Each thread gets a contiguous segment of the panels, so that it reads its weights as one stream.
//! A thread that finishes early, because cores are shared, steals small tasks from other segments.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::threads::ThreadPool;

/// Rows per task: enough to reuse a block of weights in the L1 cache.
pub(crate) const ROWS: usize = 128;
/// Panels per task of the thread's own segment.
const OWN: usize = 4;
/// Panels per stolen task.
const STOLEN: usize = 2;
/// Panels per task of the thread's own segment for blocks of at most [`FEW_ROWS`] rows, where each
/// panel is little work.
const OWN_FEW_ROWS: usize = 12;
/// Maximum number of rows for [`OWN_FEW_ROWS`].
const FEW_ROWS: usize = 4;

/// Minimum cost of a panel, in rows: reading its weights takes as long as multiplying this number
/// of rows.
const READING: usize = 6;

/// Product of some rows with all panels of one matrix.
pub(crate) struct Block {
    /// Index of the matrix.
    pub(crate) part: usize,
    pub(crate) panels: usize,
    pub(crate) rows: Range<usize>,
}

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

/// Splits rows into chunks of at most [`ROWS`].
pub(crate) fn chunks(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    let chunk = move |first| first..end.min(first + ROWS);
    rows.step_by(ROWS).map(chunk)
}

impl Block {
    /// Panels per task: from the thread's own segment if `own`, else from another thread's segment.
    fn claimed(&self, own: bool) -> usize {
        match own {
            true if self.rows.len() <= FEW_ROWS => OWN_FEW_ROWS,
            true => OWN,
            false => STOLEN,
        }
    }

    fn cost(&self) -> usize {
        self.rows.len().max(READING)
    }
}

/// The blocks of one job.
struct Job<'a> {
    blocks: &'a [Block],
    /// For each block, the index of its first panel among all panels of the job; then the total.
    starts: Vec<usize>,
}

/// Runs `body` for tasks that together cover all panels of all blocks.
pub(crate) fn run(pool: &ThreadPool, blocks: &[Block], body: &(dyn Fn(Task) + Sync)) {
    let mut starts = vec![0];
    starts.extend(blocks.iter().scan(0, |end, block| {
        *end += block.panels;
        Some(*end)
    }));
    let job = Job { blocks, starts };
    let threads = pool.count();
    let cuts = job.cuts(threads);
    let segments: Vec<Segment> = cuts
        .windows(2)
        .map(|cut| Segment {
            next: AtomicUsize::new(cut[0]),
            end: cut[1],
        })
        .collect();
    pool.run(threads, &|thread| {
        for offset in 0..threads {
            let segment = &segments[(thread + offset) % threads];
            while let Some(task) = job.claim(segment, offset == 0) {
                body(task);
            }
        }
    });
}

impl Job<'_> {
    /// Boundaries of `threads` segments of equal cost, as indices of panels of the job.
    fn cuts(&self, threads: usize) -> Vec<usize> {
        let total: usize = self.blocks.iter().map(|b| b.cost() * b.panels).sum();
        let (mut block, mut before) = (0, 0);
        let mut cut = |thread: usize| {
            let target = total * thread / threads;
            while let Some(b) = self.blocks.get(block) {
                if before + b.cost() * b.panels > target {
                    return self.starts[block] + (target - before) / b.cost();
                }
                before += b.cost() * b.panels;
                block += 1;
            }
            self.starts[block]
        };
        (0..=threads).map(&mut cut).collect()
    }

    /// Claims the next panels of a thread's segment, as one task; all of them belong to one block.
    fn claim(&self, segment: &Segment, own: bool) -> Option<Task> {
        let mut at = segment.next.load(Ordering::Relaxed);
        loop {
            if at >= segment.end {
                return None;
            }
            let index = self.starts.partition_point(|&start| start <= at) - 1;
            let (block, first) = (&self.blocks[index], at - self.starts[index]);
            let left = (block.panels - first).min(segment.end - at);
            let count = block.claimed(own).min(left);
            match segment.next.compare_exchange_weak(
                at,
                at + count,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    return Some(Task {
                        part: block.part,
                        panels: first..first + count,
                        rows: block.rows.clone(),
                    });
                }
                Err(seen) => at = seen,
            }
        }
    }
}
