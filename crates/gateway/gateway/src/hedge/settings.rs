//! Settings of a pool's hedging.

use serde::Deserialize;

/// When a second replica gets a request, and how many requests.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HedgeSettings {
    /// Milliseconds without an answer.
    #[serde(default)]
    pub after_ms: Option<f64>,
    /// Or the time in which this share of the pool's recent streams had begun.
    #[serde(default)]
    pub percentile: Option<f64>,
    /// Most of the pool's requests that have a second attempt, as a share.
    #[serde(default = "share")]
    pub share: f64,
    /// Longer bodies are sent once.
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
    /// What is wrong with them.
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
