use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use penstock_wire::Ready;

/// Where an engine stands.
#[derive(Debug, Clone)]
pub enum EngineState {
    /// Not ready yet.
    Starting,
    /// Takes requests.
    Ready(Arc<Ready>),
    /// Lost; is started again after `retry_in`, or waited for when nothing is started here.
    Down { reason: String, retry_in: Duration },
    /// It could not start the first time and would not the second: nothing is tried any more.
    Failed { reason: String },
    /// The task that supervises it ended unasked: a fault of ours, and nothing is tried any more.
    Unsupervised,
    /// Shut down by us.
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
