//! Time-outs of the Redis tier.

use std::time::Duration;

/// Time-outs of a [`Redis`](super::Redis).
#[derive(Clone, Copy, Debug)]
pub struct RedisLimits {
    /// To connect, for each address of the name.
    pub connect: Duration,
    /// For a call with its whole payload, and for TLS and `AUTH` before the first.
    pub answer: Duration,
}

impl Default for RedisLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            answer: Duration::from_secs(5),
        }
    }
}
