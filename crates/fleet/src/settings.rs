//! Settings of a fleet. Times in seconds.

use serde::Deserialize;

/// All settings; absent members have defaults.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    pub health: Health,
    pub metrics: Metrics,
    pub breaker: Breaker,
    pub outliers: Outliers,
    /// How long the share of requests of a replica that came (back) rises to all; 0: at once.
    pub slow_start_s: f64,
    /// Between two looks at a replica's models.
    pub models_period_s: f64,
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
        }
    }
}

/// Active health checks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Health {
    /// `None`: the first of `/ready`, `/health` and `/v1/models` that the replica has.
    pub path: Option<String>,
    pub period_s: f64,
    pub timeout_s: f64,
    /// Failed checks in a row that make a replica unhealthy.
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
    pub path: String,
    pub period_s: f64,
    pub timeout_s: f64,
    /// Values older than this do not count.
    pub stale_s: f64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            path: "/metrics".to_owned(),
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
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open the first time; doubled each time a trial fails.
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
    /// How often replicas are compared, and the time over which requests count.
    pub period_s: f64,
    /// Replicas with fewer requests than this in a period are not compared.
    pub min_requests: u32,
    /// How far the failed share of a replica's requests is above that of the others.
    pub excess: f64,
    /// The share of the fleet that may be ejected at once; one replica of two or more always may.
    pub max_share: f64,
    /// How long an ejection lasts; multiplied by the number of ejections in a row.
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
