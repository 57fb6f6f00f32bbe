//! Turns on the threads that work on bodies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_api_types::ApiError;
use penstock_http::Limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const RETRY_S: u32 = 1;
/// Templates of requests, and trials of grammars, that run at once, each in a process of its own.
const TEMPLATES: usize = 2;
const TRIALS: usize = 2;
/// Grammars that are compiled here at once, of either size.
const GRAMMARS: usize = 2;
/// Threads that no lane has.
const SPARE: usize = 2;

/// Long bodies have a lane of their own, templates of requests another, and so have grammars by
/// what they may take: others do not wait behind them.
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

    /// Threads that all lanes take together, and some to spare.
    pub(crate) fn threads(limits: &Limits) -> usize {
        let bodies = limits.short_jobs.saturating_add(limits.long_jobs);
        bodies.saturating_add(TEMPLATES + TRIALS + 2 * GRAMMARS + SPARE)
    }

    /// Waits for a thread; dropping the future gives the place up.
    ///
    /// # Errors
    /// 503 when as many as may wait are waiting.
    pub(crate) async fn turn(&self, long: bool) -> Result<OwnedSemaphorePermit, ApiError> {
        let lane = if long { &self.long } else { &self.short };
        lane.turn().await
    }
}

impl Lanes {
    /// [`Self::turn`] of a request that brings a template.
    pub(crate) async fn template_turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.templates.turn().await
    }

    /// [`Self::turn`] of a grammar that is tried in a process of its own.
    pub(crate) async fn trial_turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.trials.turn().await
    }

    /// [`Self::turn`] of grammars that are compiled here, `large` ones after their trial.
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
        let _place = Place::take(self).ok_or_else(|| ApiError::bodies_full(RETRY_S))?;
        let turn = self.turns.clone().acquire_owned().await;
        turn.map_err(|_| ApiError::unavailable("The server is shutting down.", RETRY_S))
    }
}

/// A place among those that wait.
struct Place<'a>(&'a Lane);

impl<'a> Place<'a> {
    fn take(lane: &'a Lane) -> Option<Self> {
        let more = |waiting: usize| (waiting < lane.max_waiting).then_some(waiting + 1);
        let taken = lane
            .waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        // Made only where one is taken: the end of a `Place` gives one back.
        taken.is_ok().then(|| Self(lane))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
