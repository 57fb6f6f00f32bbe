//! Settings of a pool's mirror.

use serde::Deserialize;

/// Selection of the requests to mirror, their target pool, and limits.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorSettings {
    /// Name of the pool to which requests are mirrored; must be another pool.
    pub pool: String,
    /// The model's name in that pool; `None`: the name that was sent to the replica.
    #[serde(default)]
    pub model: Option<String>,
    /// Share of the text requests that are mirrored, 0 to 1.
    pub share: f64,
    /// Maximum number of mirrored requests in flight.
    #[serde(default = "in_flight")]
    pub in_flight: usize,
    /// Maximum memory in bytes for the request bodies and the text that is not compared yet.
    #[serde(default = "held_bytes")]
    pub held_bytes: usize,
    /// Time-out of a mirrored request, in seconds.
    #[serde(default = "timeout")]
    pub timeout_s: f64,
}

fn in_flight() -> usize {
    8
}

fn held_bytes() -> usize {
    16 << 20
}

fn timeout() -> f64 {
    120.0
}

impl MirrorSettings {
    /// Describes the first invalid setting; `None` if all are valid. `own` is the name of the
    /// mirrored pool; `pools` has the names of all pools.
    pub(crate) fn complaint(&self, own: &str, pools: &[&str]) -> Option<String> {
        let pool = &self.pool;
        if pool == own {
            return Some("mirror.pool is the pool itself".to_owned());
        }
        if !pools.contains(&pool.as_str()) {
            let known = pools.join(", ");
            return Some(format!("mirror names pool {pool:?}; there are {known}"));
        }
        if self.model.as_deref() == Some("") {
            return Some("mirror.model is empty".to_owned());
        }
        let bounds = [
            ("share", self.share, 0.0, 1.0),
            ("in_flight", self.in_flight as f64, 1.0, 1e6),
            ("held_bytes", self.held_bytes as f64, 1024.0, 1e12),
            ("timeout_s", self.timeout_s, 0.1, 86_400.0),
        ];
        let wrong = bounds
            .into_iter()
            .find(|(_, value, least, most)| !(least..=most).contains(&value));
        wrong.map(|(name, value, least, most)| {
            format!("mirror.{name} is {value}; {least} to {most} is possible")
        })
    }
}
