//! Settings of a pool's hedging.

use serde::Deserialize;

/// Delay before a request is sent to a second replica, and limits of these second attempts.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HedgeSettings {
    /// Delay before the second attempt, in milliseconds. Either this or `percentile` is set.
    #[serde(default)]
    pub after_ms: Option<f64>,
    /// Percentile (0.95 is the 95th) of the time to the first byte, over recent streams of the
    /// pool, that is used as the delay.
    #[serde(default)]
    pub percentile: Option<f64>,
    /// Maximum share of the pool's requests that get a second attempt.
    #[serde(default = "share")]
    pub share: f64,
    /// Maximum size in bytes of the body of a request that gets a second attempt.
    #[serde(default = "max_bytes")]
    pub max_bytes: usize,
}

fn share() -> f64 {
    0.05
}

fn max_bytes() -> usize {
    64 << 10
}

impl HedgeSettings {
    /// Describes the first invalid setting; `None` if all are valid.
    pub(crate) fn complaint(&self) -> Option<String> {
        if self.after_ms.is_some() == self.percentile.is_some() {
            return Some("hedge needs one of after_ms and percentile".to_owned());
        }
        let bounds = [
            ("after_ms", self.after_ms.unwrap_or(1.0), 1.0, 3_600_000.0),
            ("percentile", self.percentile.unwrap_or(0.5), 0.5, 0.999),
            ("share", self.share, 0.0, 1.0),
        ];
        let wrong = bounds
            .into_iter()
            .find(|(_, value, least, most)| !(least..=most).contains(&value));
        wrong.map(|(name, value, least, most)| {
            format!("hedge.{name} is {value}; {least} to {most} is possible")
        })
    }
}
