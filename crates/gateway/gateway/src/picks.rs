//! The most recent picks of replicas, for `GET /replicas`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::choice::Choice;
use crate::pool::Routed;

/// Number of picks that are kept.
const KEPT: usize = 32;

/// One pick. Formatted as text only when it is read.
#[derive(Debug, Clone)]
pub(crate) struct Pick {
    pub(crate) at: SystemTime,
    pub(crate) request_id: String,
    pub(crate) pool: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) choice: Arc<Choice>,
}

/// A ring buffer of the most recent picks.
#[derive(Debug, Default)]
pub(crate) struct Picks(Mutex<VecDeque<Pick>>);

impl Picks {
    pub(crate) fn add(&self, request_id: &str, pool: &Arc<str>, routed: &Routed) {
        let pick = Pick {
            at: SystemTime::now(),
            request_id: request_id.to_owned(),
            pool: pool.clone(),
            name: routed.name.clone(),
            choice: routed.choice.clone(),
        };
        let mut picks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        picks.truncate(KEPT - 1);
        picks.push_front(pick);
    }

    /// Newest first.
    pub(crate) fn list(&self) -> Vec<Pick> {
        let picks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        picks.iter().cloned().collect()
    }
}
