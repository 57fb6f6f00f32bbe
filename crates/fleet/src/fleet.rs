//! The fleet itself: members come and go, views are made, requests begin.

use std::sync::Arc;
use std::time::Duration;

use penstock_http::Client;
use penstock_routing::{Condition, ReplicaId};

use crate::backend::{Backend, BackendError, Source, targets};
use crate::in_flight::InFlight;
use crate::shared::Shared;
use crate::{Settings, View};

/// Why a fleet cannot start.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("{0}")]
    Backend(#[from] BackendError),
    #[error("a list of backends from this source is not possible yet")]
    Source,
}

/// The replicas of one pool. Clones are the same fleet; its tasks end with the last one.
#[derive(Debug, Clone)]
pub struct Fleet {
    shared: Arc<Shared>,
}

impl Fleet {
    /// Starts its tasks on the current tokio runtime.
    ///
    /// # Errors
    /// [`FleetError`]
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(source: Source, settings: Settings, client: Client) -> Result<Self, FleetError> {
        let Source::Static(backends) = &source else {
            return Err(FleetError::Source);
        };
        let shared = Arc::new(Shared::new(settings));
        shared.replace_members(targets(backends)?);
        let _ = client;
        Ok(Self { shared })
    }

    /// As [`Self::start`] with a static list.
    ///
    /// # Errors
    /// [`FleetError`]
    pub fn of(urls: &[&str], settings: Settings, client: Client) -> Result<Self, FleetError> {
        let backends = urls.iter().map(|url| Backend::new(*url)).collect();
        Self::start(Source::Static(backends), settings, client)
    }

    /// The replicas now. Takes no lock.
    pub fn view(&self) -> View {
        let shared = &self.shared;
        let stale = Duration::from_secs_f64(shared.settings.metrics.stale_s);
        let usual = shared.usual_tokens();
        View::new(shared.snapshot(), shared.now(), stale, usual)
    }

    /// Reserves what a request takes, before it is sent: `uncached_tokens` have to be computed,
    /// `prompt_tokens` take room. One for a replica that is gone counts nowhere.
    pub fn begin(&self, id: ReplicaId, uncached_tokens: f32, prompt_tokens: f32) -> InFlight {
        let snapshot = self.shared.snapshot();
        let live = snapshot.entry(id).map(|entry| entry.live.clone());
        self.shared.saw_prompt(uncached_tokens);
        let live = live.unwrap_or_default();
        InFlight::begin(self.shared.clone(), live, uncached_tokens, prompt_tokens)
    }

    /// Waits until each replica has been checked once, for at most `patience`. Returns whether
    /// one takes requests.
    pub async fn ready(&self, _patience: Duration) -> bool {
        let snapshot = self.shared.snapshot();
        let mut conditions = snapshot.entries.iter().map(|entry| entry.live.condition());
        conditions.any(Condition::takes_requests)
    }
}
