//! Time-outs of the Redis tier.

use std::time::Duration;

/// Time-outs of a [`Redis`](super::Redis).
#[derive(Clone, Copy, Debug)]
pub struct RedisLimits {
    /// Connect time-out for each address of the host.
    pub connect: Duration,
    /// Time-out of a call including its payload. Also the time-out of TLS and `AUTH` before the
    /// first call.
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
