//! A persistent thread pool: fork-join over numbered tasks, for jobs of microseconds.
//!
//! A job is published by incrementing an epoch. Threads claim tasks one by one from an atomic word
//! that also contains the epoch, so a thread that wakes up late cannot run a stale task. Such a
//! thread does not delay the caller either: the caller claims tasks too, and waits only for claimed
//! ones. Waiting threads spin for a bounded time and then park, because they share the cores with
//! the API server and the scheduler.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};

/// Pause instructions before a waiting thread parks: about 20 to 40 us.
const SPINS: u32 = 1500;

type Task<'a> = dyn Fn(usize) + Sync + 'a;

struct Job {
    task: *const Task<'static>,
    count: u32,
}

struct PoolState {
    /// epoch << 32 | number of tasks not yet claimed.
    state: AtomicU64,
    job: UnsafeCell<Job>,
    done: AtomicU32,
    sleepers: AtomicUsize,
    stop: AtomicBool,
    caller_parked: AtomicBool,
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

// SAFETY: the caller writes `job` only while no task of the current epoch is unclaimed or
// unfinished; workers read it only between a successful claim and the matching `done` increment,
// for which the caller waits. `panic` and `caller` are behind mutexes.
unsafe impl Sync for PoolState {}
// SAFETY: the raw pointer in `job` is dereferenced only while the caller of `run` keeps its
// referent alive.
unsafe impl Send for PoolState {}

/// A pool of threads, which includes the thread that calls [`ThreadPool::run`].
pub struct ThreadPool {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
    running: AtomicBool,
}

impl ThreadPool {
    /// Starts `threads - 1` threads; the caller of [`ThreadPool::run`] is the last one.
    ///
    /// # Errors
    /// The operating system refused a thread.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(PoolState {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(Job {
                task: &|_| (),
                count: 0,
            }),
            done: AtomicU32::new(0),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            caller_parked: AtomicBool::new(false),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
        });
        // Built first: if a later thread cannot start, dropping the pool ends the started ones.
        let mut pool = Self {
            shared,
            workers: Vec::new(),
            running: AtomicBool::new(false),
        };
        for index in 1..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("penstock-cpu{index}"));
            pool.workers.push(thread.spawn(move || shared.work())?);
        }
        Ok(pool)
    }

    /// Number of threads that run a job.
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(0)` to `task(count - 1)`, in any order, on all threads. Returns after all have
    /// ended.
    ///
    /// # Panics
    /// Re-raises the first panic of a task, after the others have ended. Panics if a job is already
    /// running (jobs do not nest).
    pub fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || count <= 1 {
            (0..count).for_each(task);
            return;
        }
        assert!(
            !self.running.swap(true, Ordering::Acquire),
            "the pool runs one job at a time"
        );
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.shared.publish(task, count, &self.workers);
        self.shared.claim_all();
        self.shared.wait_done(count);
        self.running.store(false, Ordering::Release);
        let panic = self
            .shared
            .panic
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.state.fetch_add(1 << 32, Ordering::AcqRel);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's panic was already re-raised by `run`.
            let _ = worker.join();
        }
    }
}

impl PoolState {
    fn publish(&self, task: &Task<'_>, count: u32, workers: &[JoinHandle<()>]) {
        // SAFETY: the previous job has finished (`wait_done` returned), so no worker reads `job`.
        // The lifetime is erased; `run` keeps the closure alive until every claimed task has ended,
        // and later claims fail because the epoch has changed.
        unsafe {
            *self.job.get() = Job {
                task: std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task),
                count,
            };
        }
        self.done.store(0, Ordering::Relaxed);
        let epoch = (self.state.load(Ordering::Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
        self.state
            .store(epoch << 32 | u64::from(count), Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            workers.iter().for_each(|w| w.thread().unpark());
        }
    }

    /// Claims and runs tasks until all are claimed.
    fn claim_all(&self) {
        let mut state = self.state.load(Ordering::Acquire);
        while state & 0xffff_ffff != 0 {
            match self.state.compare_exchange_weak(
                state,
                state - 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    self.run_claimed((state & 0xffff_ffff) as u32);
                    state = self.state.load(Ordering::Acquire);
                }
                Err(seen) => state = seen,
            }
        }
    }

    fn run_claimed(&self, left: u32) {
        // SAFETY: a claim of the current epoch succeeded and its `done` increment is still to come,
        // so the job is alive and constant.
        let (task, count) = unsafe { ((*self.job.get()).task, (*self.job.get()).count) };
        // SAFETY: the job is alive until its `done` increment, and the closure outlives the job.
        let task = unsafe { &*task };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task((count - left) as usize))) {
            self.panic
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .get_or_insert(panic);
        }
        let last = self.done.fetch_add(1, Ordering::SeqCst) + 1 == count;
        if last
            && self.caller_parked.load(Ordering::SeqCst)
            && let Some(caller) = self
                .caller
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .as_ref()
        {
            caller.unpark();
        }
    }

    fn wait_done(&self, count: u32) {
        for _ in 0..SPINS {
            if self.done.load(Ordering::Acquire) == count {
                return;
            }
            std::hint::spin_loop();
        }
        *self.caller.lock().unwrap_or_else(|e| e.into_inner()) = Some(std::thread::current());
        self.caller_parked.store(true, Ordering::SeqCst);
        while self.done.load(Ordering::SeqCst) != count {
            std::thread::park();
        }
        self.caller_parked.store(false, Ordering::SeqCst);
    }

    fn work(&self) {
        let mut seen = 0;
        while !self.stop.load(Ordering::Acquire) {
            seen = self.wait_epoch(seen);
            self.claim_all();
        }
    }

    fn wait_epoch(&self, seen: u64) -> u64 {
        for _ in 0..SPINS {
            let epoch = self.state.load(Ordering::Acquire) >> 32;
            if epoch != seen {
                return epoch;
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.state.load(Ordering::SeqCst) >> 32 == seen && !self.stop.load(Ordering::Acquire)
        {
            std::thread::park();
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.state.load(Ordering::Acquire) >> 32
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_over_many_jobs() {
        let pool = ThreadPool::new(3).unwrap();
        for round in 0..3000usize {
            let hits: Vec<AtomicUsize> = (0..round % 17).map(|_| AtomicUsize::new(0)).collect();
            pool.run(hits.len(), &|i| {
                hits[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn sleeping_threads_wake_for_the_next_job() {
        let pool = ThreadPool::new(2).unwrap();
        let sum = AtomicUsize::new(0);
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            pool.run(8, &|i| {
                std::thread::sleep(std::time::Duration::from_micros(200));
                sum.fetch_add(i, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.load(Ordering::Relaxed), 5 * 28);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = ThreadPool::new(2).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(8, &|i| assert!(i != 5, "task five"))
        }));
        assert!(caught.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(4, &|i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 6);
    }
}
