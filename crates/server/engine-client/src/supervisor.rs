use std::sync::Arc;
use std::time::Duration;

use penstock_wire::{FrontFrame, Shutdown};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::backoff::Backoff;
use crate::connection::{EngineConnection, OutgoingFrame};
use crate::failure::EngineFailure;
use crate::process::EngineProcess;
use crate::session::{self, SessionState};
use crate::socket::EngineSocket;
use crate::{EngineConfig, EngineState};

/// Request to shut down the engine.
#[derive(Debug)]
pub(crate) struct Stop {
    /// Deadline for the engine to end its requests and exit.
    pub(crate) deadline: Instant,
    /// Dropped when the engine has ended.
    pub(crate) done: Option<oneshot::Sender<()>>,
}

/// Owns the engine's process and connection, and restarts them after a loss.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) config: EngineConfig,
    pub(crate) socket: EngineSocket,
    pub(crate) shared: Arc<SessionState>,
}

/// Outcome of one engine run.
enum End {
    Stopped(Stop),
    Failed {
        failure: EngineFailure,
        ready_for: Option<Duration>,
    },
}

/// Maximum wait for the last frames of a dying engine, or for its exit code.
const LAST_WORDS: Duration = Duration::from_millis(200);

impl Supervisor {
    /// Runs until a stop or until every handle is gone.
    pub(crate) async fn run(self, mut stops: mpsc::Receiver<Stop>) {
        let stop = self.run_engines(&mut stops).await;
        self.shared.state.send_replace(EngineState::Stopped);
        self.shared.requests.fail_all("the server was stopped");
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
                return match end_lost(&mut process, stops).await {
                    Some(stop) => stop,
                    None => next_stop(stops).await,
                };
            }
            let retry_in = backoff.after(ready_for.unwrap_or_default());
            self.lose(
                &failure,
                EngineState::Down {
                    reason: failure.to_string(),
                    retry_in,
                },
            );
            if let Some(stop) = end_lost(&mut process, stops).await {
                return stop;
            }
            if self.config.argv.is_some() {
                self.socket.discard_waiting().await;
            }
            tokio::select! {
                stop = next_stop(stops) => return stop,
                () = sleep(retry_in) => {}
            }
        }
    }

    /// Sets the state before it fails the requests, so that a later submit gets the reason.
    fn lose(&self, failure: &EngineFailure, state: EngineState) {
        self.shared.silence_ends();
        self.shared.state.send_replace(state);
        self.shared.requests.fail_all(&failure.to_string());
    }

    /// Runs one engine from start to end. Does not end `process`: a lost engine may still be
    /// running.
    async fn run_engine(
        &self,
        process: &mut EngineProcess,
        stops: &mut mpsc::Receiver<Stop>,
    ) -> End {
        self.shared.state.send_replace(EngineState::Starting);
        // A stop does not interrupt the launch, which must end the process that it has started.
        if let Err(failure) = self.launch(process).await {
            return End::Failed {
                failure,
                ready_for: None,
            };
        }
        let mut connection = tokio::select! {
            stop = next_stop(stops) => {
                return End::Stopped(Stop { deadline: Instant::now(), ..stop });
            }
            greeted = self.wait_ready(process) => match greeted {
                Ok(connection) => connection,
                Err(failure) => return End::Failed { failure, ready_for: None },
            },
        };
        let ready_at = Instant::now();
        let stop = tokio::select! {
            stop = next_stop(stops) => stop,
            Err(failure) = or_exit(process, session::serve(&self.shared, &mut connection)) => {
                return End::Failed { failure, ready_for: Some(ready_at.elapsed()) };
            }
        };
        send_shutdown(&connection);
        // Read further frames: requests that now end as cancelled still have outputs.
        let _ = timeout_at(
            stop.deadline,
            or_exit(process, session::serve(&self.shared, &mut connection)),
        )
        .await;
        End::Stopped(stop)
    }

    async fn launch(&self, process: &mut EngineProcess) -> Result<(), EngineFailure> {
        if let Some(argv) = &self.config.argv {
            let input = self.config.input.clone();
            let started = EngineProcess::start(argv, input, self.socket.path()).await;
            *process = started.map_err(|source| EngineFailure::Spawn {
                program: argv[0].clone(),
                source,
            })?;
        }
        Ok(())
    }

    /// Waits until an engine has connected and is ready. An external engine may connect at any
    /// time.
    async fn wait_ready(
        &self,
        process: &mut EngineProcess,
    ) -> Result<EngineConnection, EngineFailure> {
        let limit = self.config.start_timeout;
        let in_time = if self.config.argv.is_some() {
            let handshake = async { session::handshake(&self.shared, self.accept().await?).await };
            timeout(limit, or_exit(process, handshake)).await
        } else {
            timeout(
                limit,
                session::handshake(&self.shared, self.accept().await?),
            )
            .await
        };
        in_time.unwrap_or(Err(EngineFailure::StartTimeout(limit)))
    }

    async fn accept(&self) -> Result<EngineConnection, EngineFailure> {
        self.socket
            .accept()
            .await
            .map(EngineConnection::new)
            .map_err(EngineFailure::Accept)
    }
}

/// Serves an engine inside this process until it is lost or a stop is requested.
pub(crate) async fn follow(
    shared: Arc<SessionState>,
    connection: EngineConnection,
    mut stops: mpsc::Receiver<Stop>,
) {
    let served = async {
        let mut connection = session::handshake(&shared, connection).await?;
        session::serve(&shared, &mut connection).await
    };
    let (state, reason) = tokio::select! {
        Err(failure) = served => {
            let reason = failure.to_string();
            (EngineState::Failed { reason: reason.clone() }, reason)
        }
        _stop = next_stop(&mut stops) => {
            (EngineState::Stopped, "the server was stopped".to_owned())
        }
    };
    shared.state.send_replace(state);
    shared.requests.fail_all(&reason);
}

/// Runs `work`, which reads the engine's connection, and watches the process at the same time. If
/// both end, reports the more precise cause: a FATAL frame, else the exit status.
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

/// Kills the process of a lost engine. Returns early on a stop request, even if the kernel cannot
/// end the process.
async fn end_lost(process: &mut EngineProcess, stops: &mut mpsc::Receiver<Stop>) -> Option<Stop> {
    let stop = tokio::select! {
        biased;
        () = process.kill() => return None,
        stop = next_stop(stops) => stop,
    };
    process.end(Instant::now()).await;
    Some(stop)
}

fn send_shutdown(connection: &EngineConnection) {
    let mut frame = Vec::new();
    if FrontFrame::Shutdown(Shutdown).encode(&mut frame).is_ok() {
        // Fails only if the connection has just ended, which also ends the engine.
        let _ = connection.outbox().send(OutgoingFrame::new(frame));
    }
}

/// The next stop request. If all handles were dropped, a request without a waiting caller.
async fn next_stop(stops: &mut mpsc::Receiver<Stop>) -> Stop {
    stops.recv().await.unwrap_or_else(|| Stop {
        deadline: Instant::now(),
        done: None,
    })
}
