//! Lanes: bounded queues for the blocking threads that handle bodies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_api_types::ApiError;
use penstock_http::Limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const RETRY_S: u32 = 1;
/// Maximum numbers of concurrent chat templates and grammar trials, each in a process of its own.
const TEMPLATES: usize = 2;
const TRIALS: usize = 2;
/// Maximum number of concurrent compilations in this process, separately for small and for large
/// grammars.
const GRAMMARS: usize = 2;
/// Number of threads that are not part of any lane.
const SPARE: usize = 2;

/// Separate lanes for long bodies, chat templates and grammars (by compile cost), so that cheap
/// jobs do not queue behind expensive ones.
pub(crate) struct Lanes {
    short: Lane,
    long: Lane,
    templates: Lane,
    trials: Lane,
    small_grammars: Lane,
    large_grammars: Lane,
}

struct Lane {
    turns: Arc<Semaphore>,
    waiting: AtomicUsize,
    max_waiting: usize,
}

impl Lanes {
    pub(crate) fn new(limits: &Limits) -> Self {
        let lane = |jobs: usize| Lane {
            turns: Arc::new(Semaphore::new(jobs)),
            waiting: AtomicUsize::new(0),
            max_waiting: limits.max_waiting_jobs,
        };
        Self {
            short: lane(limits.short_jobs),
            long: lane(limits.long_jobs),
            templates: lane(TEMPLATES),
            trials: lane(TRIALS),
            small_grammars: lane(GRAMMARS),
            large_grammars: lane(GRAMMARS),
        }
    }

    /// Threads of all lanes together, plus the spare ones.
    pub(crate) fn threads(limits: &Limits) -> usize {
        let bodies = limits.short_jobs.saturating_add(limits.long_jobs);
        bodies.saturating_add(TEMPLATES + TRIALS + 2 * GRAMMARS + SPARE)
    }

    /// Waits for a thread; dropping the future leaves the queue.
    ///
    /// # Errors
    /// 503 if the queue is full.
    pub(crate) async fn turn(&self, long: bool) -> Result<OwnedSemaphorePermit, ApiError> {
        let lane = if long { &self.long } else { &self.short };
        lane.turn().await
    }
}

impl Lanes {
    /// Like [`Self::turn`], for a request with a chat template.
    pub(crate) async fn template_turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.templates.turn().await
    }

    /// Like [`Self::turn`], for a grammar trial.
    pub(crate) async fn trial_turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.trials.turn().await
    }

    /// Like [`Self::turn`], for a grammar compiled in this process. A `large` one has passed a
    /// trial.
    pub(crate) async fn grammar_turn(&self, large: bool) -> Result<OwnedSemaphorePermit, ApiError> {
        let lane = match large {
            true => &self.large_grammars,
            false => &self.small_grammars,
        };
        lane.turn().await
    }
}

impl Lane {
    async fn turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if let Ok(turn) = self.turns.clone().try_acquire_owned() {
            return Ok(turn);
        }
        let _place = QueueSlot::take(self).ok_or_else(|| ApiError::bodies_full(RETRY_S))?;
        let turn = self.turns.clone().acquire_owned().await;
        turn.map_err(|_| ApiError::unavailable("The server is shutting down.", RETRY_S))
    }
}

/// A place in a lane's queue, released when dropped.
struct QueueSlot<'a>(&'a Lane);

impl<'a> QueueSlot<'a> {
    fn take(lane: &'a Lane) -> Option<Self> {
        let more = |waiting: usize| (waiting < lane.max_waiting).then_some(waiting + 1);
        let taken = lane
            .waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        // Constructed only after a successful increment, because dropping a `QueueSlot` decrements.
        taken.is_ok().then(|| Self(lane))
    }
}

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
