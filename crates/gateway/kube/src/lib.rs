//! A small client of a Kubernetes API server: credentials, lists, watches that go on. Not what the
//! objects mean.
//!
//! ```text
//!  list --> objects and their version --> watch --> events change the objects
//!   ^                                      |  ^
//!   +-- the version is too old, an error --+  +-- cut off: from the last version on
//! ```
//!
//! A server that is away, refuses or answers nonsense changes nothing: the objects stay as they
//! were known, and the next attempt comes after a pause that grows.

mod api;
mod backoff;
mod cluster;
mod credentials;
mod event;
mod follow;
mod lines;
mod objects;
mod plugin;
mod watch_error;
mod watched;
mod watching;

pub use api::Api;
pub use cluster::{Cluster, Material};
pub use follow::Timing;
pub use objects::Objects;
pub use plugin::Plugin;
pub use watched::Watched;
pub use watching::Watching;
