//! One engine's connection from HELLO to its end: turns frames into state, progress and outputs.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_wire::{EngineFrame, Ready, Step, StepStats};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::connection::EngineConnection;
use crate::failure::EngineFailure;
use crate::requests::Requests;
use crate::{EngineState, Observer};

/// Engine state, written by its connection and read by its handles.
#[derive(Debug)]
pub(crate) struct SessionState {
    pub(crate) state: watch::Sender<EngineState>,
    pub(crate) requests: Arc<Requests>,
    observer: Arc<dyn Observer>,
    pub(crate) progress: watch::Sender<Progress>,
    /// `None` until the engine's first report.
    tiers: Mutex<Option<Arc<str>>>,
    /// Engines that became ready.
    starts: AtomicU64,
    stalls: AtomicU64,
}

/// Silence of a ready engine that counts as a stall. A ready engine reports each step, and sends a
/// heartbeat every second while idle.
const STALL: Duration = Duration::from_secs(10);

/// The counters of the last STEP, and its time of arrival. A new engine resets both: zeros and now.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    pub stats: StepStats,
    pub at: Instant,
}

impl SessionState {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            state: watch::Sender::new(EngineState::Starting),
            requests: Arc::default(),
            observer,
            progress: watch::Sender::new(Progress::new()),
            tiers: Mutex::default(),
            starts: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
        }
    }

    /// Engines that became ready after the first one.
    pub(crate) fn restarts(&self) -> u64 {
        self.starts.load(Ordering::Relaxed).saturating_sub(1)
    }

    pub(crate) fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// Counts a stall if the engine is ready and the silence that ends now was long enough.
    pub(crate) fn silence_ends(&self) {
        if self.state.borrow().ready().is_some() && self.progress().at.elapsed() > STALL {
            self.stalls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for the end of the supervisor. If the supervisor panicked, sets the state and fails
    /// the open requests, which would otherwise never end.
    pub(crate) async fn outlive(self: Arc<Self>, supervisor: JoinHandle<()>) {
        if supervisor.await.is_err_and(|error| error.is_panic()) {
            self.state.send_replace(EngineState::Unsupervised);
            self.requests
                .fail_all(&EngineState::Unsupervised.to_string());
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    pub(crate) fn tiers(&self) -> Option<Arc<str>> {
        self.lock_tiers().clone()
    }

    fn set_ready(&self, ready: Ready, connection: &EngineConnection) {
        self.progress.send_replace(Progress::new());
        *self.lock_tiers() = None;
        self.requests.attach(connection.outbox().clone());
        self.starts.fetch_add(1, Ordering::Relaxed);
        self.state.send_replace(EngineState::Ready(Arc::new(ready)));
    }

    fn take_step(&self, step: Step) {
        self.silence_ends();
        self.progress.send_replace(Progress {
            stats: step.stats,
            at: Instant::now(),
        });
        self.observer.step(&step.stats);
        self.requests.deliver(step.outputs);
    }

    fn lock_tiers(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.tiers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    fn new() -> Self {
        Self {
            stats: StepStats::default(),
            at: Instant::now(),
        }
    }
}

/// Receives an engine's HELLO, and its stages until READY.
pub(crate) async fn handshake(
    shared: &SessionState,
    mut connection: EngineConnection,
) -> Result<EngineConnection, EngineFailure> {
    match connection.next_frame().await? {
        EngineFrame::Hello(_) => {}
        other => {
            return Err(EngineFailure::OutOfOrder {
                got: other.name(),
                when: "before HELLO",
            });
        }
    }
    loop {
        match connection.next_frame().await? {
            EngineFrame::Stage(stage) => shared.observer.stage(&stage),
            EngineFrame::Fatal(fatal) => return Err(EngineFailure::Fatal(fatal.message)),
            EngineFrame::Ready(ready) => {
                shared.set_ready(ready, &connection);
                return Ok(connection);
            }
            other => {
                return Err(EngineFailure::OutOfOrder {
                    got: other.name(),
                    when: "before READY",
                });
            }
        }
    }
}

/// Dispatches all frames of a ready engine until it is lost.
pub(crate) async fn serve(
    shared: &SessionState,
    connection: &mut EngineConnection,
) -> Result<Infallible, EngineFailure> {
    loop {
        match connection.next_frame().await? {
            EngineFrame::Step(step) => shared.take_step(step),
            EngineFrame::Tiers(report) => {
                *shared.lock_tiers() = Some(report.into());
            }
            EngineFrame::KvReply(reply) => shared.requests.answer(reply),
            EngineFrame::Fatal(fatal) => return Err(EngineFailure::Fatal(fatal.message)),
            other => {
                return Err(EngineFailure::OutOfOrder {
                    got: other.name(),
                    when: "after READY",
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::testing::small_engine;

    #[tokio::test(start_paused = true)]
    async fn long_silences_of_a_ready_engine_are_stalls() {
        let shared = SessionState::new(Arc::new(()));
        advance(STALL * 2).await;
        shared.take_step(Step::default());
        assert_eq!(shared.stalls(), 0, "no engine was ready");
        let ready = EngineState::Ready(Arc::new(small_engine()));
        shared.state.send_replace(ready);
        for silence in [STALL, STALL * 2, STALL / 2] {
            advance(silence).await;
            shared.take_step(Step::default());
        }
        assert_eq!(shared.stalls(), 1);
        advance(STALL * 2).await;
        shared.silence_ends();
        assert_eq!(shared.stalls(), 2, "the engine is lost");
    }
}
