//! Time-outs of the Redis tier.

use std::time::Duration;

/// Time-outs of a [`Redis`](super::Redis).
#[derive(Clone, Copy, Debug)]
pub struct RedisLimits {
    /// Connect time-out per address of the host.
    pub connect: Duration,
    /// Time-out of a call with its payload, and of TLS and `AUTH` before the first call.
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
