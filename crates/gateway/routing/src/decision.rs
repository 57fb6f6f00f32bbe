//! The result of a routing decision (a ranking of replicas with its reasons), and its errors.

use std::sync::Arc;

use crate::{Condition, Load, Picker, ReplicaId};

/// A ranking of the candidates, best first, and the replicas that were filtered out. `words.rs`
/// renders it as text.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Never empty.
    pub ranked: Vec<Ranked>,
    pub removed: Vec<Removed>,
    /// Prompt length in tokens, as routing estimated it.
    pub prompt_tokens: f32,
    /// The picker that ranked the candidates by their totals.
    pub picker: Picker,
}

/// A replica that passed the filters, with its scores.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranked {
    pub replica: ReplicaId,
    pub address: Arc<str>,
    /// Index of the replica in the slice that was passed to [`crate::pick`].
    pub place: usize,
    /// Weighted sum of the scores.
    pub total: f32,
    /// Name, score and weight of each scorer of the profile.
    pub parts: Vec<(&'static str, f32, f32)>,
    pub load: Load,
    /// Estimated number of the prompt's tokens that the replica has cached.
    pub cached_tokens: f32,
}

/// A replica that a filter removed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Removed {
    pub replica: ReplicaId,
    /// The filter's name.
    pub filter: &'static str,
    pub condition: Condition,
}

impl Decision {
    /// The replica with the highest rank, which gets the request.
    pub fn first(&self) -> &Ranked {
        &self.ranked[0]
    }
}

/// Reason why no replica can take a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unroutable {
    #[error("there are no replicas")]
    Empty,
    #[error("no replica is healthy")]
    Unhealthy,
    #[error("every healthy replica has been tried")]
    Tried,
    #[error("none of the replicas in the request's subset is healthy")]
    Subset,
}
