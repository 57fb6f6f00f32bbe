//! Choice of a replica: [`pick`] takes a request and the replicas with their load, and returns a
//! ranking with its reasons. Pure and synchronous: no clock, no random number generator, no I/O, no
//! HTTP. Used by the proxy and by Envoy's endpoint picker.
//!
//! ```text
//!  replicas --filters--> candidates --scorers in [0, 1] x weights--> totals --picker--> ranking
//! ```
//!
//! A [`Profile`] (the configuration of a pool's decisions) names filters, scorers with weights and
//! the picker. Each scorer has a small file of its own.

mod decision;
mod filters;
mod home;
mod load;
mod pick;
mod picker;
mod profile;
mod replica;
mod request;
mod scorers;
mod words;

pub use decision::{Decision, Ranked, Removed, Unroutable};
pub use filters::{FILTERS, Filter};
pub use load::Load;
pub use pick::pick;
pub use picker::Picker;
pub use profile::{Profile, ProfileError, ProfileSpec, ScorerSpec, SloSpec};
pub use replica::{Condition, Pace, Replica, ReplicaId, TIERS};
pub use request::{CacheState, Request, Slo, Unknown};
pub use scorers::{Candidate, SCORERS, Score};
