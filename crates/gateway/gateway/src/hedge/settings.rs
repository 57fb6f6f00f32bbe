//! Settings of a pool's hedging.

use serde::Deserialize;

/// When to send a request to a second replica, and for how many requests.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HedgeSettings {
    /// Delay before the second attempt, in milliseconds.
    #[serde(default)]
    pub after_ms: Option<f64>,
    /// Alternative: the delay is this percentile of the time to first byte of the pool's recent
    /// streams.
    #[serde(default)]
    pub percentile: Option<f64>,
    /// Upper bound of hedged requests, as a share of the pool's requests.
    #[serde(default = "share")]
    pub share: f64,
    /// Maximum body size in bytes of a hedged request.
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
    /// Description of the first invalid setting.
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
