//! The memory of sequence states: the layout of its slots, and leases of them.

mod layout;
mod lease;

pub use layout::StateLayout;
pub use lease::{SequenceStates, StateError, StateLease, StateMemory};
