//! The result of a routing decision (a ranking of replicas with its reasons), and its errors.

use std::fmt;
use std::sync::Arc;

use crate::ReplicaId;

/// A ranking of the candidates, best first, and the replicas that were filtered out.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Never empty.
    pub ranked: Vec<Ranked>,
    /// Replicas that a filter removed, each with that filter's name.
    pub removed: Vec<(ReplicaId, &'static str)>,
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
}

impl Decision {
    /// The replica with the highest rank, which gets the request.
    pub fn first(&self) -> &Ranked {
        &self.ranked[0]
    }
}

/// One line: address, total, and each scorer's score and weight, as in
/// `10.0.0.1:8000 4.20 (queue 1.00 x 2, prefix 0.73 x 3)`.
impl fmt::Display for Ranked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {:.2} (", self.address, self.total)?;
        for (at, (name, score, weight)) in self.parts.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(out, "{comma}{name} {score:.2} x {weight}")?;
        }
        write!(out, ")")
    }
}

/// The winner's line, the number of candidates, and the number of replicas filtered out.
impl fmt::Display for Decision {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (of, removed) = (self.ranked.len(), self.removed.len());
        write!(out, "{} of {of}", self.first())?;
        match removed {
            0 => Ok(()),
            _ => write!(out, ", {removed} filtered"),
        }
    }
}

/// Why no replica can take a request.
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
