//! Mirroring: a share of a pool's requests goes to another pool, too, when their answer has begun,
//! and both answers are compared. The client waits for nothing of it.
//!
//! ```text
//!  replica --bytes--> Relayed --bytes--> client
//!                        | Tap, never waits
//!                        v
//!  other pool --bytes--> task: Comparison --> metrics, log
//! ```
//!
//! [`Mirror`] has settings, budget and counts of a pool, [`begin`] starts the task of a request.

mod budget;
mod compare;
mod counts;
mod page;
mod run;
mod settings;

pub(crate) use budget::Mirror;
pub(crate) use page::mirror_page;
pub(crate) use run::{Tap, begin};
pub use settings::MirrorSettings;
