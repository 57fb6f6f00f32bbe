//! Thread pool tests: many short jobs, panics and sleeps.
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use penstock_kernels::ThreadPool;

use super::common::Rng;

/// Short jobs of varying size, some with panics, some after a pause in which the threads park.
/// Every task of every job runs exactly once, and exactly the jobs with a panic re-raise one.
#[test]
fn thousands_of_jobs_with_panics_lose_nothing() {
    for threads in [1, 2, 3, 5] {
        let pool = ThreadPool::new(threads).unwrap();
        assert_eq!(pool.count(), threads);
        let mut rng = Rng(threads as u64);
        for job in 0..4000 {
            let hits: Vec<AtomicU32> = (0..rng.below(40)).map(|_| AtomicU32::new(0)).collect();
            let broken = if rng.below(50) == 0 && !hits.is_empty() {
                Some(rng.below(hits.len()))
            } else {
                None
            };
            if rng.below(400) == 0 {
                std::thread::sleep(Duration::from_micros(300));
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(hits.len(), &|i| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                    if Some(i) == broken {
                        resume_unwind(Box::new("on purpose")); // a panic without its message
                    }
                });
            }));
            assert_eq!(outcome.is_err(), broken.is_some(), "job {job}");
            // A single thread stops at the panic; several threads finish the remaining tasks.
            let whole = if threads == 1 || hits.len() <= 1 {
                broken.map_or(hits.len(), |b| b + 1)
            } else {
                hits.len()
            };
            assert!(
                hits.iter()
                    .take(whole)
                    .all(|h| h.load(Ordering::Relaxed) == 1),
                "job {job} with {threads} threads"
            );
            assert!(
                hits.iter()
                    .skip(whole)
                    .all(|h| h.load(Ordering::Relaxed) == 0),
                "job {job} with {threads} threads"
            );
        }
    }
}

/// A task much longer than the others keeps the job open until it ends.
#[test]
fn a_job_ends_after_its_last_task() {
    let pool = ThreadPool::new(3).unwrap();
    for slow in 0..8 {
        let done = AtomicU32::new(0);
        pool.run(8, &|i| {
            std::thread::sleep(if i == slow {
                Duration::from_millis(3)
            } else {
                Duration::ZERO
            });
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 8);
    }
}

/// The caller sees the tasks' writes without further synchronisation, job after job.
#[test]
fn results_are_visible_after_the_job() {
    let pool = ThreadPool::new(4).unwrap();
    let mut cells = vec![0u64; 64];
    for round in 1..2000u64 {
        let slots: Vec<_> = cells.iter_mut().map(std::sync::Mutex::new).collect();
        pool.run(slots.len(), &|i| {
            **slots[i].lock().unwrap() += round + i as u64
        });
        drop(slots);
    }
    let sum: u64 = (1..2000).sum();
    assert!(
        cells
            .iter()
            .enumerate()
            .all(|(i, &c)| c == sum + 1999 * i as u64)
    );
}

#[test]
fn pools_come_and_go() {
    for threads in (1..8).cycle().take(100) {
        let pool = ThreadPool::new(threads).unwrap();
        let count = AtomicU32::new(0);
        pool.run(threads % 3 * 5, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed) as usize, threads % 3 * 5);
    }
}
