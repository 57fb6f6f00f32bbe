//! Settings of a fleet. All times are in seconds.

use serde::Deserialize;

/// All settings; absent members have defaults.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    pub health: Health,
    pub metrics: Metrics,
    pub breaker: Breaker,
    pub outliers: Outliers,
    /// Duration of a slow start, in which the share of requests of a new or recovered replica rises
    /// to 1. 0 disables it.
    pub slow_start_s: f64,
    /// Interval between queries of a replica's models.
    pub models_period_s: f64,
    /// Interval between reads of the file or host name that lists the backends.
    pub discovery_period_s: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            health: Health::default(),
            metrics: Metrics::default(),
            breaker: Breaker::default(),
            outliers: Outliers::default(),
            slow_start_s: 10.0,
            models_period_s: 30.0,
            discovery_period_s: 2.0,
        }
    }
}

/// A setting outside its bounds.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{name} is {value}; {least} to {most} is possible")]
pub struct SettingsError {
    name: &'static str,
    value: f64,
    least: f64,
    most: f64,
}

impl Settings {
    /// # Errors
    /// [`SettingsError`]: a number outside its bounds.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        let (health, metrics) = (&self.health, &self.metrics);
        let (breaker, outliers) = (&self.breaker, &self.outliers);
        let day = 86_400.0;
        let bounds = [
            ("slow_start_s", self.slow_start_s, 0.0, day),
            ("models_period_s", self.models_period_s, 0.1, day),
            ("discovery_period_s", self.discovery_period_s, 0.01, day),
            ("health.period_s", health.period_s, 0.01, day),
            ("health.timeout_s", health.timeout_s, 0.001, day),
            ("metrics.period_s", metrics.period_s, 0.01, day),
            ("metrics.timeout_s", metrics.timeout_s, 0.001, day),
            ("metrics.stale_s", metrics.stale_s, 0.01, day),
            ("breaker.open_s", breaker.open_s, 0.01, day),
            ("breaker.max_open_s", breaker.max_open_s, 0.01, day),
            ("outliers.period_s", outliers.period_s, 0.1, day),
            ("outliers.excess", outliers.excess, 0.01, 1.0),
            ("outliers.max_share", outliers.max_share, 0.0, 1.0),
            ("outliers.eject_s", outliers.eject_s, 0.01, day),
            ("outliers.max_eject_s", outliers.max_eject_s, 0.01, day),
        ];
        for (name, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                return Err(SettingsError {
                    name,
                    value,
                    least,
                    most,
                });
            }
        }
        Ok(())
    }
}

/// Active health checks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Health {
    /// `None`: the first existing path of `/ready`, `/health` and `/v1/models`.
    pub path: Option<String>,
    pub period_s: f64,
    pub timeout_s: f64,
    /// Number of consecutive failed checks that make a replica unhealthy.
    pub failures: u32,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            path: None,
            period_s: 2.0,
            timeout_s: 2.0,
            failures: 2,
        }
    }
}

/// Scrapes of the metrics pages.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// `None`: the first of `/metrics` and `/prometheus/metrics` that has load metrics.
    pub path: Option<String>,
    pub period_s: f64,
    pub timeout_s: f64,
    /// Maximum age of a report; older ones are ignored.
    pub stale_s: f64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            path: None,
            period_s: 0.2,
            timeout_s: 1.0,
            stale_s: 2.0,
        }
    }
}

/// The circuit breaker of a replica.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Breaker {
    /// Number of consecutive failures that open the circuit breaker.
    pub failures: u32,
    /// Initial time for which the circuit breaker stays open; doubled after each failed trial.
    pub open_s: f64,
    pub max_open_s: f64,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            failures: 5,
            open_s: 1.0,
            max_open_s: 30.0,
        }
    }
}

/// Ejection of replicas that fail far more often than the others.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outliers {
    /// Interval between comparisons; each one counts the requests since the previous one.
    pub period_s: f64,
    /// Minimum number of requests in the interval for a replica to be compared.
    pub min_requests: u32,
    /// A replica is ejected if its share of failed requests exceeds the median of the other
    /// replicas by more than this value.
    pub excess: f64,
    /// Maximum share of the fleet that is ejected at once. In a fleet of two or more replicas, one
    /// may always be ejected.
    pub max_share: f64,
    /// Duration of an ejection, multiplied by the number of consecutive ejections.
    pub eject_s: f64,
    pub max_eject_s: f64,
}

impl Default for Outliers {
    fn default() -> Self {
        Self {
            period_s: 10.0,
            min_requests: 20,
            excess: 0.3,
            max_share: 0.3,
            eject_s: 30.0,
            max_eject_s: 300.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), SettingsError> {
        serde_json::from_str::<Settings>(text).unwrap().check()
    }

    #[test]
    fn absent_members_have_defaults_and_numbers_have_bounds() {
        assert_eq!(check("{}"), Ok(()));
        assert_eq!(
            check(r#"{"slow_start_s": 0, "health": {"path": "/up"}}"#),
            Ok(())
        );
        let error = check(r#"{"metrics": {"period_s": 0}}"#).unwrap_err();
        assert!(
            error.to_string().starts_with("metrics.period_s is 0;"),
            "{error}"
        );
        assert!(check(r#"{"outliers": {"max_share": -1}}"#).is_err());
        assert!(serde_json::from_str::<Settings>(r#"{"helth": {}}"#).is_err());
    }
}
