//! Options, errors and statistics of the RAM tier's index.

use crate::eviction::cache_policy::Rule;

/// Size and bounds of an index.
#[derive(Clone, Debug)]
pub struct IndexOptions {
    /// Number of slots, at least 1; a slot has one block of every KV group.
    pub slots: usize,
    /// Maximum share of the slots per salt group, above 0; 1: unlimited.
    pub quota: f64,
    /// Maximum share of the slots that may be pinned.
    pub pin_share: f64,
    /// Eviction rule.
    pub rule: Rule,
}

/// Why the index rejected a call.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum IndexError {
    /// An option out of range.
    #[error("{name} is {value}; expected {expected}")]
    Option {
        name: &'static str,
        value: f64,
        expected: &'static str,
    },
    /// The slot is not readable.
    #[error("slot {slot} holds nothing; there are {slots} slots")]
    EmptySlot { slot: u32, slots: usize },
    /// More releases than holds.
    #[error("slot {slot} is not held")]
    NotHeld { slot: u32 },
    /// No store of this digest is in flight.
    #[error("{0} is not being stored: it was not admitted, or its store has ended already")]
    NotStoring(String),
    /// Too many pins.
    #[error(
        "{wanted} pinned blocks, {most} are allowed; unpin something or allow pins a larger share \
         of the tier"
    )]
    PinShare { wanted: usize, most: usize },
}

/// Current state, and event counts since the start.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexStats {
    /// Slots that hold a block or are being stored to.
    pub used: usize,
    pub pinned: usize,
    pub evictions: u64,
    /// Number of blocks that were not admitted.
    pub refused: u64,
    /// Whether the admission filter is active.
    pub gated: bool,
}

/// Returns an error unless `holds`.
pub(super) fn check(
    name: &'static str,
    value: f64,
    holds: bool,
    expected: &'static str,
) -> Result<(), IndexError> {
    let error = IndexError::Option {
        name,
        value,
        expected,
    };
    holds.then_some(()).ok_or(error)
}
