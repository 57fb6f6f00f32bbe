use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_wire::{EngineFrame, FrontFrame, Ready, Shutdown, Step, StepStats, TierReport};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::backoff::Backoff;
use crate::connection::Connection;
use crate::failure::EngineFailure;
use crate::process::EngineProcess;
use crate::requests::Requests;
use crate::socket::EngineSocket;
use crate::{EngineConfig, EngineState, Observer};

/// What the supervisor tells the handles.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: watch::Sender<EngineState>,
    pub(crate) requests: Arc<Requests>,
    observer: Arc<dyn Observer>,
    progress: Mutex<Progress>,
    /// `None` until a new engine reports.
    tiers: Mutex<Option<Arc<TierReport>>>,
}

/// The last STEP and when it came; a new engine counts as progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) stats: StepStats,
    pub(crate) at: Instant,
}

impl Shared {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            state: watch::Sender::new(EngineState::Starting),
            requests: Arc::default(),
            observer,
            progress: Mutex::new(Progress::new()),
            tiers: Mutex::default(),
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        *self.lock_progress()
    }

    pub(crate) fn tiers(&self) -> Option<Arc<TierReport>> {
        self.lock_tiers().clone()
    }

    fn set_ready(&self, ready: Ready, connection: &Connection) {
        *self.lock_progress() = Progress::new();
        *self.lock_tiers() = None;
        self.requests.attach(connection.outbox().clone());
        self.state.send_replace(EngineState::Ready(Arc::new(ready)));
    }

    fn take_step(&self, step: Step) {
        *self.lock_progress() = Progress {
            stats: step.stats,
            at: Instant::now(),
        };
        self.observer.step(&step.stats);
        self.requests.deliver(step.outputs);
    }

    fn lock_tiers(&self) -> MutexGuard<'_, Option<Arc<TierReport>>> {
        self.tiers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The wish to end the engine.
#[derive(Debug)]
pub(crate) struct Stop {
    /// How long the engine may take to end its requests and exit.
    pub(crate) deadline: Instant,
    /// Dropped when the engine has ended.
    pub(crate) done: Option<oneshot::Sender<()>>,
}

/// Owns the engine's process and connection, and brings them back when they are lost.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) config: EngineConfig,
    pub(crate) socket: EngineSocket,
    pub(crate) shared: Arc<Shared>,
}

/// How the life of one engine process ended.
enum End {
    Stopped(Stop),
    Failed {
        failure: EngineFailure,
        ready_for: Option<Duration>,
    },
}

/// How long the rest of a dying engine's words, or its exit code, may take to come.
const LAST_WORDS: Duration = Duration::from_millis(200);

impl Supervisor {
    /// Runs until a stop is asked for or every handle is gone.
    pub(crate) async fn run(self, mut stops: mpsc::Receiver<Stop>) {
        let stop = self.run_engines(&mut stops).await;
        self.shared.state.send_replace(EngineState::Stopped);
        self.shared.requests.fail_all("the engine was shut down");
        drop(self.socket);
        drop(stop.done);
    }

    async fn run_engines(&self, stops: &mut mpsc::Receiver<Stop>) -> Stop {
        let mut backoff = Backoff::new(self.config.restart_backoff);
        let mut was_ready = false;
        loop {
            let mut process = EngineProcess::external();
            let (failure, ready_for) = match self.run_engine(&mut process, stops).await {
                End::Stopped(stop) => {
                    process.end(stop.deadline).await;
                    return stop;
                }
                End::Failed { failure, ready_for } => (failure, ready_for),
            };
            was_ready |= ready_for.is_some();
            if !was_ready && self.config.argv.is_some() && failure.is_final_before_ready() {
                self.lose(
                    &failure,
                    EngineState::Failed {
                        reason: failure.to_string(),
                    },
                );
                process.kill().await;
                return next_stop(stops).await;
            }
            let retry_in = backoff.after(ready_for.unwrap_or_default());
            self.lose(
                &failure,
                EngineState::Down {
                    reason: failure.to_string(),
                    retry_in,
                },
            );
            process.kill().await;
            if self.config.argv.is_some() {
                self.socket.discard_waiting().await;
            }
            tokio::select! {
                stop = next_stop(stops) => return stop,
                () = sleep(retry_in) => {}
            }
        }
    }

    /// The state comes first: whoever submits after its request failed must be told why.
    fn lose(&self, failure: &EngineFailure, state: EngineState) {
        self.shared.state.send_replace(state);
        self.shared.requests.fail_all(&failure.to_string());
    }

    /// One engine from its start to its end. `process` is left as it is: a lost engine may still
    /// run.
    async fn run_engine(
        &self,
        process: &mut EngineProcess,
        stops: &mut mpsc::Receiver<Stop>,
    ) -> End {
        self.shared.state.send_replace(EngineState::Starting);
        // Not given up half-way: who asks for a stop waits until the process is gone.
        if let Err(failure) = self.launch(process).await {
            return End::Failed {
                failure,
                ready_for: None,
            };
        }
        let mut connection = tokio::select! {
            stop = next_stop(stops) => return End::Stopped(Stop { deadline: Instant::now(), ..stop }),
            greeted = self.wait_ready(process) => match greeted {
                Ok(connection) => connection,
                Err(failure) => return End::Failed { failure, ready_for: None },
            },
        };
        let ready_at = Instant::now();
        let stop = tokio::select! {
            stop = next_stop(stops) => stop,
            Err(failure) = or_exit(process, self.serve(&mut connection)) => {
                return End::Failed { failure, ready_for: Some(ready_at.elapsed()) };
            }
        };
        send_shutdown(&connection);
        // The outputs of requests that now end as cancelled still arrive.
        let _ = timeout_at(stop.deadline, or_exit(process, self.serve(&mut connection))).await;
        End::Stopped(stop)
    }

    async fn launch(&self, process: &mut EngineProcess) -> Result<(), EngineFailure> {
        if let Some(argv) = &self.config.argv {
            let started = EngineProcess::start(argv, self.socket.path()).await;
            *process = started.map_err(|source| EngineFailure::Spawn {
                program: argv[0].clone(),
                source,
            })?;
        }
        Ok(())
    }

    /// Waits until an engine has connected and is ready. When somebody else starts it, it may
    /// connect at any time.
    async fn wait_ready(&self, process: &mut EngineProcess) -> Result<Connection, EngineFailure> {
        let limit = self.config.start_timeout;
        let in_time = if self.config.argv.is_some() {
            let handshake = async { self.shake_hands(self.accept().await?).await };
            timeout(limit, or_exit(process, handshake)).await
        } else {
            timeout(limit, self.shake_hands(self.accept().await?)).await
        };
        in_time.unwrap_or(Err(EngineFailure::StartTimeout(limit)))
    }

    async fn accept(&self) -> Result<Connection, EngineFailure> {
        self.socket
            .accept()
            .await
            .map(Connection::new)
            .map_err(EngineFailure::Accept)
    }

    async fn shake_hands(&self, mut connection: Connection) -> Result<Connection, EngineFailure> {
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
                EngineFrame::Stage(stage) => self.shared.observer.stage(&stage),
                EngineFrame::Fatal(fatal) => return Err(EngineFailure::Fatal(fatal.message)),
                EngineFrame::Ready(ready) => {
                    self.shared.set_ready(ready, &connection);
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

    async fn serve(&self, connection: &mut Connection) -> Result<Infallible, EngineFailure> {
        loop {
            match connection.next_frame().await? {
                EngineFrame::Step(step) => self.shared.take_step(step),
                EngineFrame::Tiers(report) => {
                    *self.shared.lock_tiers() = Some(Arc::new(report));
                }
                EngineFrame::KvReply(reply) => self.shared.requests.answer(reply),
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
}

/// `work` reads the engine's connection; this also watches its process, and finds the better of the
/// two names for the cause when both end: a FATAL that was sent, else the exit status.
async fn or_exit<T>(
    process: &mut EngineProcess,
    work: impl Future<Output = Result<T, EngineFailure>>,
) -> Result<T, EngineFailure> {
    tokio::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => match done {
            Err(end @ (EngineFailure::Closed | EngineFailure::Broken(_))) => {
                Err(timeout(LAST_WORDS, process.exited()).await.map_or(end, EngineFailure::Exited))
            }
            other => other,
        },
        status = process.exited() => match timeout(LAST_WORDS, work).await {
            Ok(Err(fatal @ EngineFailure::Fatal(_))) => Err(fatal),
            _ => Err(EngineFailure::Exited(status)),
        },
    }
}

fn send_shutdown(connection: &Connection) {
    let mut frame = Vec::new();
    if FrontFrame::Shutdown(Shutdown).encode(&mut frame).is_ok() {
        // Fails when the connection has just ended, which is what is wanted.
        let _ = connection.outbox().send(frame);
    }
}

/// A stop that was asked for, or, when every handle is gone, one that nobody waits for.
async fn next_stop(stops: &mut mpsc::Receiver<Stop>) -> Stop {
    stops.recv().await.unwrap_or_else(|| Stop {
        deadline: Instant::now(),
        done: None,
    })
}
