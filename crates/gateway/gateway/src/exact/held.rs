//! Number of a prompt's tokens that a replica has published as cached, by storage tier.

use std::fmt;

use penstock_prefix::TIERS;
use serde_json::{Value, json};

const NAMES: [&str; TIERS] = ["pool", "ram", "disk", "shared"];

/// Numbers of tokens by tier, the KV pool first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokensByTier(pub(super) [usize; TIERS]);

impl TokensByTier {
    /// Equivalent number of tokens in the KV pool. `worth` is the value of a token in each tier,
    /// relative to 1 in the pool.
    pub(super) fn weighted(self, worth: [f32; TIERS]) -> f32 {
        let tiers = self.0.iter().zip(worth);
        tiers.map(|(tokens, worth)| *tokens as f32 * worth).sum()
    }

    /// `{"pool": 512, "ram": 256, "disk": 0, "shared": 0}`
    pub(crate) fn json(self) -> Value {
        let tiers = NAMES.iter().zip(self.0);
        tiers
            .map(|(name, tokens)| ((*name).to_owned(), json!(tokens)))
            .collect()
    }
}

/// `pool 512 + ram 256`
impl fmt::Display for TokensByTier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tiers = NAMES.iter().zip(self.0).filter(|(_, tokens)| *tokens > 0);
        let parts: Vec<String> = tiers
            .map(|(name, tokens)| format!("{name} {tokens}"))
            .collect();
        match parts.as_slice() {
            [] => write!(out, "none"),
            _ => write!(out, "{}", parts.join(" + ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_have_names_and_weights() {
        let held = TokensByTier([512, 256, 0, 16]);
        assert_eq!(held.to_string(), "pool 512 + ram 256 + shared 16");
        assert_eq!(held.weighted([1.0, 0.5, 0.3, 0.25]), 644.0);
        let named = json!({"pool": 512, "ram": 256, "disk": 0, "shared": 16});
        assert_eq!(held.json(), named);
        assert_eq!(TokensByTier([0; TIERS]).to_string(), "none");
    }
}
