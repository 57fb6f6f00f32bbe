//! The decoder's thread: a queue of plans as input, futures of results as output.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use penstock_kernels::PoolHandle;
use penstock_wire::StepPlan;

use crate::error::DecoderError;
use crate::loaded::Loaded;
use crate::runner::{Outcome, Runner};

type Promise = Arc<(Mutex<Option<Outcome>>, Condvar)>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn fulfil(promise: &Promise, outcome: Outcome) {
    *lock(&promise.0) = Some(outcome);
    promise.1.notify_all();
}

/// A step in flight.
pub struct StepFuture {
    promise: Promise,
}

impl StepFuture {
    pub(crate) fn failed(error: DecoderError) -> Self {
        let promise = Promise::default();
        fulfil(&promise, Err(error));
        Self { promise }
    }

    /// Waits for the result. Returns `None` after `timeout`; the call can then be repeated. Also
    /// returns `None` if the result was already taken.
    ///
    /// # Errors
    /// The plan is invalid, or the forward pass failed.
    pub fn result(&self, timeout: Duration) -> Option<Outcome> {
        let (outcome, ready) = &*self.promise;
        let (mut outcome, _) = ready
            .wait_timeout_while(lock(outcome), timeout, |o| o.is_none())
            .unwrap_or_else(|e| e.into_inner());
        outcome.take()
    }
}

/// The decoder's thread with its queue of plans. When the value is dropped, the thread finishes the
/// queue and exits.
pub(crate) struct Running {
    /// One handle per KV group.
    pub(crate) pools: Vec<PoolHandle>,
    /// Number of expert weight reads by completed steps.
    pub(crate) experts_read: Arc<AtomicU64>,
    jobs: Option<mpsc::Sender<(StepPlan, Promise)>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Creates a KV pool of `blocks[group]` blocks per group and starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(loaded: Loaded, blocks: &[usize]) -> Result<Self, DecoderError> {
        let runner = Runner::new(loaded, blocks);
        let pools = runner.pools();
        let (jobs, queue) = mpsc::channel();
        let experts_read = Arc::<AtomicU64>::default();
        let count = Arc::clone(&experts_read);
        let thread = std::thread::Builder::new()
            .name("penstock-cpu0".into())
            .spawn(move || serve(runner, &queue, &count))?;
        Ok(Self {
            pools,
            experts_read,
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    pub(crate) fn submit(&self, plan: StepPlan) -> StepFuture {
        let promise = Promise::default();
        if let Some(jobs) = &self.jobs {
            // The thread runs until the sender is dropped, so sending cannot fail.
            let _ = jobs.send((plan, Arc::clone(&promise)));
        }
        StepFuture { promise }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the affected step has already returned the error.
            let _ = thread.join();
        }
    }
}

/// Runs the plans one by one. An invalid plan fails only its own step. Any other failure shuts down
/// the collectives, and a panic makes the decoder unusable.
fn serve(
    mut runner: Runner,
    queue: &mpsc::Receiver<(StepPlan, Promise)>,
    experts_read: &AtomicU64,
) {
    let mut broken = false;
    while let Ok((plan, promise)) = queue.recv() {
        if broken {
            let earlier = "an earlier step failed".into();
            fulfil(&promise, Err(DecoderError::Failed(earlier)));
            continue;
        }
        let result = catch_unwind(AssertUnwindSafe(|| runner.step(plan)));
        broken = result.is_err();
        let result = result.unwrap_or_else(|panic| Err(DecoderError::Failed(message(&*panic))));
        if let Err(error @ (DecoderError::Failed(_) | DecoderError::Group(_))) = &result {
            runner.end(&error.to_string());
        }
        experts_read.store(runner.experts_read(), Ordering::Relaxed);
        fulfil(&promise, result);
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "unknown panic".into())
}
