//! What a tier keeps when it cannot keep everything.
//!
//! Downward: [`Policy`] is a bounded set of keys with sizes and costs (a disk's chunks);
//! [`TierIndex`] is the same for a tier of equal slots with owners, stores in flight and pins
//! (RAM). Both hold their entries in a `Shelf` and ask a `Chooser` how to rank and whom to let in.
//! The chooser runs its candidate rules in miniature on a sample of the keys (`contest`) and
//! follows the one that saves most recomputation; `curve` says what another capacity would save.
//! Nothing here reads a clock or draws a random number: samples are chosen by the keys' own bits.

mod chooser;
mod contest;
mod curve;
mod heap;
mod index;
mod keeper;
mod key;
mod ranker;
mod shelf;
mod sketch;

pub use curve::CurvePoint;
pub use index::{GroupStats, IndexError, IndexOptions, IndexStats, PRESENT, REFUSED, TierIndex};
pub use keeper::{Item, Policy};
pub use key::Key;
pub use ranker::RuleChoice;
