//! Mirroring: a share of a pool's requests is also sent to another pool once the response has
//! begun, and the two responses are compared. Mirroring never delays the client.
//!
//! ```text
//!  replica --bytes--> ResponseBody --bytes--> client
//!                          | Tap, never waits
//!                          v
//!  other pool --bytes--> task: Comparison --> metrics, log
//! ```
//!
//! [`Mirror`] holds a pool's settings, budget and counters; [`begin`] starts a request's task.

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
