//! A small client of the Kubernetes API: credentials, requests, lists, and watches that reconnect.
//! It does not interpret objects.
//!
//! ```text
//!  list --> objects and their version --> watch --> events change the objects
//!   ^                                      |  ^
//!   +-- the version is too old, an error --+  +-- cut off: from the last version on
//! ```
//!
//! If the server is unreachable, refuses a request or sends malformed data, the last known objects
//! stay in use and the client retries with backoff.

mod api;
mod api_error;
mod backoff;
mod cluster;
mod credentials;
mod event;
mod follow;
mod lines;
mod objects;
mod plugin;
mod watched;
mod watching;

pub use api::Api;
pub use api_error::ApiError;
pub use cluster::{Cluster, Material};
pub use follow::Timing;
pub use objects::Objects;
pub use plugin::Plugin;
pub use watched::Watched;
pub use watching::Watching;
