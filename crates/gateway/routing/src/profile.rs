//! Profiles: the filters, scorers and picker that route the requests of a pool.

use serde::Deserialize;

use crate::Slo;
use crate::filters::Filter;
use crate::picker::Picker;
use crate::scorers::{SCORERS, Score, scorer};

/// Upper bound of a latency target in milliseconds: one hour.
const MOST_MS: f32 = 3_600_000.0;

/// A profile as written in the configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProfileSpec {
    pub filters: Vec<Filter>,
    pub scorers: Vec<ScorerSpec>,
    pub picker: Picker,
    pub slo: SloSpec,
}

/// Default latency targets in milliseconds, for requests without targets.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SloSpec {
    pub ttft_ms: Option<f32>,
    pub tpot_ms: Option<f32>,
}

impl SloSpec {
    fn checked(self) -> Result<Slo, ProfileError> {
        let seconds = |name, target: Option<f32>| match target {
            Some(value) if !(value > 0.0 && value <= MOST_MS) => {
                Err(ProfileError::Target { name, value })
            }
            _ => Ok(target.map(|value| value / 1e3)),
        };
        Ok(Slo {
            ttft_s: seconds("ttft_ms", self.ttft_ms)?,
            tpot_s: seconds("tpot_ms", self.tpot_ms)?,
        })
    }
}

/// A scorer by its name, one of [`SCORERS`], and its weight in the total.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScorerSpec {
    pub name: String,
    #[serde(default = "one")]
    pub weight: f32,
}

fn one() -> f32 {
    1.0
}

impl Default for ProfileSpec {
    /// The `cost` scorer alone.
    fn default() -> Self {
        let cost = ScorerSpec {
            name: "cost".to_owned(),
            weight: 1.0,
        };
        Self {
            filters: Vec::new(),
            scorers: vec![cost],
            picker: Picker::MaxScore,
            slo: SloSpec::default(),
        }
    }
}

/// Why a profile is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProfileError {
    #[error("there is no scorer {name:?}; there are {}", SCORERS.join(", "))]
    NoScorer { name: String },
    #[error("the weight of scorer {name} is {weight}; 0 to 1000 is possible")]
    Weight { name: String, weight: f32 },
    #[error("slo.{name} is {value}; it has to be above 0 and at most {MOST_MS} ms")]
    Target { name: &'static str, value: f32 },
}

/// A validated profile.
#[derive(Debug)]
pub struct Profile {
    pub(crate) filters: Vec<Filter>,
    pub(crate) scorers: Vec<(Box<dyn Score>, f32)>,
    pub(crate) picker: Picker,
}

impl Profile {
    /// # Errors
    /// [`ProfileError`]
    pub fn new(spec: ProfileSpec) -> Result<Self, ProfileError> {
        let slo = spec.slo.checked()?;
        let scorers = spec.scorers.into_iter().map(|one| {
            let ScorerSpec { name, weight } = one;
            if !(0.0..=1000.0).contains(&weight) {
                return Err(ProfileError::Weight { name, weight });
            }
            let found = scorer(&name, slo).ok_or(ProfileError::NoScorer { name })?;
            Ok((found, weight))
        });
        Ok(Self {
            scorers: scorers.collect::<Result<_, _>>()?,
            filters: spec.filters,
            picker: spec.picker,
        })
    }

    /// Whether any scorer with a weight above 0 uses cached prefixes, so that they must be looked
    /// up.
    pub fn needs_prefixes(&self) -> bool {
        let mut used = self.scorers.iter().filter(|(_, weight)| *weight > 0.0);
        used.any(|(scorer, _)| scorer.needs_prefixes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(text: &str) -> Result<Profile, ProfileError> {
        Profile::new(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn absent_members_have_defaults_and_names_are_checked() {
        assert!(profile("{}").unwrap().needs_prefixes());
        let load = profile(r#"{"scorers": [{"name": "queue", "weight": 2}]}"#).unwrap();
        assert!(!load.needs_prefixes());
        let error = profile(r#"{"scorers": [{"name": "quue"}]}"#).unwrap_err();
        assert!(error.to_string().contains("queue, running"), "{error}");
        let error = profile(r#"{"scorers": [{"name": "queue", "weight": -1}]}"#).unwrap_err();
        assert!(error.to_string().contains("-1"), "{error}");
        assert!(serde_json::from_str::<ProfileSpec>(r#"{"scorer": []}"#).is_err());
        let error = profile(r#"{"slo": {"tpot_ms": 0}}"#).unwrap_err();
        assert!(error.to_string().contains("slo.tpot_ms is 0"), "{error}");
        assert!(profile(r#"{"slo": {"ttft_ms": 500, "tpot_ms": 30}}"#).is_ok());
    }
}
