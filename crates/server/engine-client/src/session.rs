//! One engine's connection from HELLO to its loss: frames become state, progress and outputs.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
pub(crate) struct Shared {
    pub(crate) state: watch::Sender<EngineState>,
    pub(crate) requests: Arc<Requests>,
    observer: Arc<dyn Observer>,
    pub(crate) progress: watch::Sender<Progress>,
    /// `None` until the engine's first report.
    tiers: Mutex<Option<Arc<str>>>,
}

/// The counters of the last STEP, and its time of arrival. A new engine resets both: zeros and now.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    pub stats: StepStats,
    pub at: Instant,
}

impl Shared {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            state: watch::Sender::new(EngineState::Starting),
            requests: Arc::default(),
            observer,
            progress: watch::Sender::new(Progress::new()),
            tiers: Mutex::default(),
        }
    }

    /// Waits for the end of the supervisor. After a panic of the supervisor, sets the state and
    /// fails the open requests, which would otherwise stay open forever.
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
        self.state.send_replace(EngineState::Ready(Arc::new(ready)));
    }

    fn take_step(&self, step: Step) {
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
    shared: &Shared,
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
    shared: &Shared,
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
