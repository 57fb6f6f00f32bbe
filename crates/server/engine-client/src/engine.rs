use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use penstock_wire::{Ready, StepStats, TokenRequest};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::connection::EngineConnection;
use crate::session::{Progress, SessionState};
use crate::socket::EngineSocket;
use crate::supervisor::{Stop, Supervisor, follow};
use crate::{EngineConfig, EngineError, EngineState, Observer, RequestStream, SubmitError};

/// A handle to one engine. Clones share the engine; dropping the last one kills the engine and
/// removes its socket.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) handle: Arc<Handle>,
}

/// Statistics of a handle's engines since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineHistory {
    /// Engines that became ready after the first one.
    pub restarts: u64,
    /// Number of stalls: times when a ready engine sent no step or heartbeat for more than 10 s.
    pub stalls: u64,
    /// Time since the last step or heartbeat; `None` while no engine is ready.
    pub silence: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) shared: Arc<SessionState>,
    stops: mpsc::Sender<Stop>,
    stall_timeout: Duration,
    socket_path: PathBuf,
}

impl Engine {
    /// Creates the socket and starts the engine in the background. Must be called inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// The socket cannot be created or `argv` is empty. A failed engine start shows in
    /// [`Engine::state`].
    pub fn start(config: EngineConfig) -> Result<Self, EngineError> {
        Self::start_observed(config, Arc::new(()))
    }

    /// Like [`Engine::start`], with an observer of all stages and steps.
    ///
    /// # Errors
    /// Same as for [`Engine::start`].
    pub fn start_observed(
        config: EngineConfig,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, EngineError> {
        if config.argv.as_ref().is_some_and(Vec::is_empty) {
            return Err(EngineError::EmptyArgv);
        }
        let socket = EngineSocket::bind(&config.socket)?;
        let shared = Arc::new(SessionState::new(observer));
        let (stops, wanted_stops) = mpsc::channel(1);
        let handle = Handle {
            shared: Arc::clone(&shared),
            stops,
            stall_timeout: config.stall_timeout,
            socket_path: socket.path().to_owned(),
        };
        let supervisor = Supervisor {
            config,
            socket,
            shared: Arc::clone(&shared),
        };
        let supervised = tokio::spawn(supervisor.run(wanted_stops));
        tokio::spawn(shared.outlive(supervised));
        Ok(Self {
            handle: Arc::new(handle),
        })
    }

    /// An engine inside this process at the other end of `stream`. It is not restarted after a
    /// loss. Must be called inside a tokio runtime.
    pub fn over(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let shared = Arc::new(SessionState::new(observer));
        let (stops, wanted_stops) = mpsc::channel(1);
        let connection = EngineConnection::new(stream);
        tokio::spawn(follow(Arc::clone(&shared), connection, wanted_stops));
        let handle = Handle {
            shared,
            stops,
            stall_timeout: Duration::MAX,
            socket_path: PathBuf::new(),
        };
        Self {
            handle: Arc::new(handle),
        }
    }

    /// Sends a request to the engine. Never waits.
    ///
    /// # Errors
    /// No engine is ready, or the request is invalid on the wire.
    pub fn submit(&self, request: TokenRequest) -> Result<RequestStream, SubmitError> {
        self.submit_holding(request, ())
    }

    /// Like [`Engine::submit`]. `hold` is dropped when the engine has ended the request. That may
    /// be later than a drop of the stream: the engine stays busy until it has processed the
    /// cancellation.
    ///
    /// # Errors
    /// Same as for [`Engine::submit`].
    pub fn submit_holding(
        &self,
        request: TokenRequest,
        hold: impl Send + 'static,
    ) -> Result<RequestStream, SubmitError> {
        let stream = self
            .handle
            .shared
            .requests
            .submit(request, Box::new(hold))?;
        stream.ok_or_else(|| SubmitError::NotReady {
            reason: self.handle.shared.state.borrow().to_string(),
        })
    }

    /// Current state of the engine.
    pub fn state(&self) -> EngineState {
        self.handle.shared.state.borrow().clone()
    }

    /// Watches the state. Intermediate states may be skipped; the latest is always delivered.
    pub fn watch(&self) -> watch::Receiver<EngineState> {
        self.handle.shared.state.subscribe()
    }

    /// Waits for a ready engine and returns its limits.
    ///
    /// # Errors
    /// The engine failed for good or was stopped.
    pub async fn wait_ready(&self) -> Result<Arc<Ready>, EngineError> {
        let mut states = self.watch();
        let settled = states
            .wait_for(|state| {
                matches!(
                    state,
                    EngineState::Ready(_)
                        | EngineState::Failed { .. }
                        | EngineState::Unsupervised
                        | EngineState::Stopped
                )
            })
            .await
            .map_or(EngineState::Stopped, |state| state.clone());
        settled
            .ready()
            .cloned()
            .ok_or_else(|| EngineError::NotReady {
                reason: settled.to_string(),
            })
    }

    /// Counters of the last step; zeros until a new engine's first step.
    pub fn stats(&self) -> StepStats {
        self.handle.shared.progress().stats
    }

    /// Statistics of the engines since the start.
    pub fn history(&self) -> EngineHistory {
        let shared = &self.handle.shared;
        let is_ready = shared.state.borrow().ready().is_some();
        EngineHistory {
            restarts: shared.restarts(),
            stalls: shared.stalls(),
            silence: is_ready.then(|| shared.progress().at.elapsed()),
        }
    }

    /// Watches the counters. They change with each STEP message (heartbeats included) and when an
    /// engine becomes ready. Intermediate values may be skipped; the latest is always delivered.
    pub fn watch_progress(&self) -> watch::Receiver<Progress> {
        self.handle.shared.progress.subscribe()
    }

    /// Latest report of the KV tiers, at most about a second old; `None` if the engine has no tiers
    /// or has not reported yet.
    pub fn tiers(&self) -> Option<Arc<str>> {
        self.handle.shared.tiers()
    }

    /// Checks that the engine is ready and that its last STEP (heartbeats included) is within the
    /// stall time-out; otherwise returns the reason.
    ///
    /// A stalled engine keeps its requests and its process, because it may only be paused or short
    /// of CPU time. An external health check decides whether to wait, to route requests to other
    /// replicas, or to restart it.
    pub fn healthy(&self) -> Result<(), String> {
        let state = self.handle.shared.state.borrow();
        if state.ready().is_none() {
            return Err(state.to_string());
        }
        let silence = self.handle.shared.progress().at.elapsed();
        if silence > self.handle.stall_timeout {
            return Err(format!(
                "the engine is stuck: no progress for {:.0} s",
                silence.as_secs_f64()
            ));
        }
        Ok(())
    }

    /// Socket path for engines; empty for an engine inside this process.
    pub fn socket_path(&self) -> &Path {
        &self.handle.socket_path
    }

    /// Shuts down the engine and removes its socket: sends SHUTDOWN, and SIGKILL after `timeout`.
    /// An engine that is not ready gets SIGKILL at once. Requests in flight end as cancelled, or as
    /// failed if the engine does not end them in time.
    pub async fn shutdown(&self, timeout: Duration) {
        let (done, is_done) = oneshot::channel();
        let stop = Stop {
            deadline: Instant::now() + timeout,
            done: Some(done),
        };
        if self.handle.stops.send(stop).await.is_ok() {
            // No value is ever sent; the sender is dropped when the engine has ended.
            let _ = is_done.await;
        }
    }
}
