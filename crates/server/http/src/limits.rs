//! The limits of a server; docs/limits.md describes the behaviour at each.

use std::time::Duration;

use serde::Deserialize;

/// Limits on the resources of clients. Sizes in bytes, times in seconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Open connections.
    pub max_connections: usize,
    /// Open connections per address; a proxy may need many. `None`: three quarters of
    /// `max_connections`.
    pub max_connections_per_address: Option<usize>,
    /// Concurrent requests per HTTP/2 connection.
    pub max_streams: u32,
    /// Time-out for a whole request header, and for the next request on an idle connection.
    pub header_timeout_s: f64,
    pub max_headers: usize,
    /// Size of the header block, and read buffer of one connection.
    pub max_header_bytes: usize,
    /// Time-out for a client to accept the next bytes of a response.
    pub write_timeout_s: f64,
    /// Time-out for a whole request body.
    pub body_timeout_s: f64,
    /// Size of one body. `None`: the longest text that fits the model, plus `json_bytes`.
    pub max_body_bytes: Option<usize>,
    /// Bytes of a body allowed for everything besides its text.
    pub json_bytes: usize,
    /// Size of all bodies together, from their first byte until they are tokenized. The first
    /// `free_body_bytes` of each are not counted.
    pub bodies_bytes: usize,
    pub free_body_bytes: usize,
    /// Bodies up to this size are parsed and tokenized inline, in about a millisecond; larger ones
    /// on blocking threads, so that streams do not stall.
    pub inline_body_bytes: usize,
    /// Bodies above this size use the lane for long bodies, so short ones do not queue behind them.
    pub short_body_bytes: usize,
    /// Threads for short bodies.
    pub short_jobs: usize,
    pub long_jobs: usize,
    /// Queue length per lane: bodies that may wait for a thread.
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
