//! The bounds of a server, all in one place: docs/limits.md says what happens at each.

use std::time::Duration;

use serde::Deserialize;

/// Bounds on what clients may take. Sizes in bytes, times in seconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Open connections.
    pub max_connections: usize,
    /// Open connections from one address, of which a proxy may have many. `None`: three quarters
    /// of all.
    pub max_connections_per_address: Option<usize>,
    /// Requests at once on one connection of HTTP/2.
    pub max_streams: u32,
    /// For the whole header of a request, and for an idle connection to send its next one.
    pub header_timeout_s: f64,
    pub max_headers: usize,
    /// The header block, and what one connection buffers.
    pub max_header_bytes: usize,
    /// For a client to take the next bytes of its answer.
    pub write_timeout_s: f64,
    /// For a whole request body.
    pub body_timeout_s: f64,
    /// One body. `None`: the longest text that the model takes, and `json_bytes`.
    pub max_body_bytes: Option<usize>,
    /// What a body may hold beside its text.
    pub json_bytes: usize,
    /// All bodies together, from the first byte that arrives until they are token ids. The first
    /// `free_body_bytes` of each are not counted.
    pub bodies_bytes: usize,
    pub free_body_bytes: usize,
    /// Bodies up to this are parsed and tokenized where they stand, in about a millisecond; larger
    /// ones on threads of their own, so that other streams go on.
    pub inline_body_bytes: usize,
    /// Larger bodies are long: they wait for one another, and others do not wait for them.
    pub short_body_bytes: usize,
    /// Threads for bodies that are not long.
    pub short_jobs: usize,
    pub long_jobs: usize,
    /// Bodies that may wait for a thread, of either kind.
    pub max_waiting_jobs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 4096,
            max_connections_per_address: None,
            max_streams: 1024,
            header_timeout_s: 75.0,
            max_headers: 100,
            max_header_bytes: 64 << 10,
            write_timeout_s: 60.0,
            body_timeout_s: 60.0,
            max_body_bytes: None,
            json_bytes: 1 << 20,
            bodies_bytes: 64 << 20,
            free_body_bytes: 16 << 10,
            inline_body_bytes: 4 << 10,
            short_body_bytes: 64 << 10,
            short_jobs: 2,
            long_jobs: 1,
            max_waiting_jobs: 256,
        }
    }
}

impl Limits {
    pub(crate) fn header_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.header_timeout_s)
    }

    pub(crate) fn write_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.write_timeout_s)
    }

    pub(crate) fn body_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.body_timeout_s)
    }
}
