//! The choice of a replica, with its reasons.

use std::fmt;

use penstock_routing::Decision;

use crate::exact::TokensByTier;

/// A decision, and the cached tokens that the chosen replica has published.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) decision: Decision,
    pub(crate) held: Option<TokensByTier>,
}

/// `10.0.0.1:8000: least expected work (2 running, 0 waiting) of 4; cached: pool 512 + ram 256`
impl fmt::Display for Choice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.decision)?;
        match self.held {
            Some(held) => write!(out, "; cached: {held}"),
            None => Ok(()),
        }
    }
}
