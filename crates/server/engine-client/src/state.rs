use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use penstock_wire::Ready;

/// State of an engine.
#[derive(Debug, Clone)]
pub enum EngineState {
    /// Not ready yet.
    Starting,
    /// Accepts requests.
    Ready(Arc<Ready>),
    /// Lost; restarted after `retry_in`. For an external engine, the client waits for a new
    /// connection instead.
    Down { reason: String, retry_in: Duration },
    /// The first start failed permanently; no retry.
    Failed { reason: String },
    /// The supervisor task panicked, a bug; no retry.
    Unsupervised,
    /// Shut down on request.
    Stopped,
}

impl EngineState {
    /// The limits of a ready engine.
    pub fn ready(&self) -> Option<&Arc<Ready>> {
        match self {
            Self::Ready(ready) => Some(ready),
            _ => None,
        }
    }
}

impl fmt::Display for EngineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => write!(f, "the engine is starting"),
            Self::Ready(_) => write!(f, "the engine is ready"),
            Self::Down { reason, .. } => write!(f, "the engine is restarting: {reason}"),
            Self::Failed { reason } => write!(f, "the engine failed to start: {reason}"),
            Self::Unsupervised => write!(f, "the task that supervises the engine ended unasked"),
            Self::Stopped => write!(f, "the engine is stopped"),
        }
    }
}
