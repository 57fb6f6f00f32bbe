//! The fleet itself: views are made, requests begin.

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
use crate::shared::{Clock, Shared};
use crate::snapshot::Entry;
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

/// The replicas of one pool. Clones are the same fleet; its tasks end with the last one.
#[derive(Debug, Clone)]
pub struct Fleet {
    shared: Arc<Shared>,
    tasks: Option<Arc<Tasks>>,
}

/// The task above all others, and the list that it follows.
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

/// Another source of a fleet, checked and not in use yet.
#[derive(Debug)]
pub struct NextSource(List);

impl Fleet {
    /// Starts its tasks on the current tokio runtime. A static list and a file are read at once; a
    /// name that cannot be looked up is tried again.
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
        let shared = Arc::new(Shared::new(settings, Clock::runs()));
        let task = tokio::spawn(supervise(shared.clone(), client, followed));
        let task = task.abort_handle();
        Ok(Self {
            shared,
            tasks: Some(Arc::new(Tasks { task, list })),
        })
    }

    pub(crate) fn without_tasks(shared: Shared) -> Self {
        Self {
            shared: Arc::new(shared),
            tasks: None,
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Checks another source, and reads it as [`Fleet::start`] does.
    ///
    /// # Errors
    /// [`SourceError`]: the list that is there at once is wrong.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn next_source(&self, source: Source) -> Result<NextSource, SourceError> {
        let period = self.shared.settings.discovery_period_s;
        follow(source, Duration::from_secs_f64(period)).map(NextSource)
    }

    /// Follows another source from now on. What is known of replicas that both have stays; those
    /// that it lacks finish what they have, as soon as one that it has takes requests.
    pub fn follow(&self, next: NextSource) {
        if let Some(tasks) = &self.tasks {
            tasks.list.send_replace(next.0);
        }
    }

    /// The replicas now. Takes no lock.
    pub fn view(&self) -> View {
        let shared = &self.shared;
        let usual = shared.usual_tokens();
        View::new(shared.snapshot(), shared.now(), shared.stale(), usual)
    }

    /// Share of the requests at the replicas that other gateways send, 0 to 1; 1 before a report
    /// showed any request.
    pub fn others(&self) -> f32 {
        self.shared.others()
    }

    /// Reserves what a request takes, before it is sent: `uncached_tokens` have to be computed,
    /// `prompt_tokens` take room. One for a replica that is gone counts nowhere.
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

    /// Waits until each replica has been checked once and asked for its models, for at most
    /// `patience`. Returns whether one takes requests.
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
