//! The handle of a fleet, the replicas of one pool: creates views and starts requests.

use std::sync::Arc;
use std::time::Duration;

use penstock_http::Client;
use penstock_routing::ReplicaId;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::backend::Source;
use crate::discovery::{List, SourceError, follow};
use crate::in_flight::InFlight;
use crate::settings::SettingsError;
use crate::shared::{Clock, FleetState};
use crate::snapshot::Entry;
use crate::status::{ReplicaStatus, statuses};
use crate::tasks::supervise;
use crate::{Settings, View};

/// Why a fleet cannot start.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("{0}")]
    Source(#[from] SourceError),
    #[error("{0}")]
    Settings(#[from] SettingsError),
}

/// The replicas of one pool. Clones share the fleet; a drop of the last clone ends its tasks.
#[derive(Debug, Clone)]
pub struct Fleet {
    shared: Arc<FleetState>,
    tasks: Option<Arc<Tasks>>,
}

/// Handle of the supervising task, and the list of backends that it follows.
#[derive(Debug)]
struct Tasks {
    task: AbortHandle,
    list: watch::Sender<List>,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A new source of backends for a fleet, read and validated, but not yet in use.
#[derive(Debug)]
pub struct NextSource(List);

impl Fleet {
    /// Starts its tasks on the current tokio runtime. A static list or a file is read immediately;
    /// a failed DNS lookup is retried.
    ///
    /// # Errors
    /// [`FleetError`]
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(source: Source, settings: Settings, client: Client) -> Result<Self, FleetError> {
        settings.check()?;
        let period = Duration::from_secs_f64(settings.discovery_period_s);
        let (list, followed) = watch::channel(follow(source, period)?);
        let shared = Arc::new(FleetState::new(settings, Clock::runs()));
        let task = tokio::spawn(supervise(shared.clone(), client, followed));
        let task = task.abort_handle();
        Ok(Self {
            shared,
            tasks: Some(Arc::new(Tasks { task, list })),
        })
    }

    pub(crate) fn without_tasks(shared: FleetState) -> Self {
        Self {
            shared: Arc::new(shared),
            tasks: None,
        }
    }

    pub(crate) fn shared(&self) -> &FleetState {
        &self.shared
    }

    /// Validates another source of backends and reads it as [`Fleet::start`] does.
    ///
    /// # Errors
    /// [`SourceError`]: the initial list is invalid.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn next_source(&self, source: Source) -> Result<NextSource, SourceError> {
        let period = self.shared.settings.discovery_period_s;
        follow(source, Duration::from_secs_f64(period)).map(NextSource)
    }

    /// Switches to another source of backends. Replicas in both lists keep their state. Replicas
    /// missing from the new list drain as soon as a replica from the new list accepts requests.
    pub fn follow(&self, next: NextSource) {
        if let Some(tasks) = &self.tasks {
            tasks.list.send_replace(next.0);
        }
    }

    /// The replicas with their load at this moment. Lock-free.
    pub fn view(&self) -> View {
        let shared = &self.shared;
        let usual = shared.usual_tokens();
        View::new(shared.snapshot(), shared.now(), shared.stale(), usual)
    }

    /// The state of every replica, with reasons, for operators.
    pub fn statuses(&self) -> Vec<ReplicaStatus> {
        statuses(&self.shared)
    }

    /// Share of the replicas' requests that other gateways sent, 0 to 1. Without any report of a
    /// request, the share is 1.
    pub fn others(&self) -> f32 {
        self.shared.others()
    }

    /// Reserves capacity at a replica before a request is sent. `uncached_tokens` is the number of
    /// tokens to compute; `prompt_tokens` is the number of tokens that occupy KV cache. A
    /// reservation at a removed replica has no effect.
    pub fn begin(&self, id: ReplicaId, uncached_tokens: f32, prompt_tokens: f32) -> InFlight {
        let shared = &self.shared;
        shared.saw_prompt(uncached_tokens);
        let snapshot = shared.snapshot();
        let gone;
        let entry = match snapshot.entry(id) {
            Some(entry) => entry,
            None => {
                gone = Entry::gone(id);
                &gone
            }
        };
        InFlight::begin(shared.clone(), entry, uncached_tokens, prompt_tokens)
    }

    /// Waits until each replica has had a health check and a query of its models, or until
    /// `patience` has passed. Returns whether at least one replica accepts requests.
    pub async fn ready(&self, patience: Duration) -> bool {
        let all_checked = async {
            loop {
                let checked = self.shared.checked.notified();
                if self.shared.all_checked() {
                    return;
                }
                checked.await;
            }
        };
        let _ = timeout(patience, all_checked).await;
        self.shared.any_takes_requests()
    }
}
