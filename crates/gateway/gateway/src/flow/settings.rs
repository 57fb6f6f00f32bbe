//! Settings of a pool's flow control.

use serde::Deserialize;

/// Limits of the queue, and thresholds from which a replica counts as saturated. Settings that
/// llm-d also has use llm-d's default values.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlowSettings {
    /// Whether requests are queued while all replicas are saturated. If not, requests of negative
    /// priority are refused and all others are forwarded.
    pub queue: bool,
    /// Maximum number of queued requests of one priority.
    pub max_waiting: usize,
    /// Maximum total size in bytes of the bodies of queued requests of one priority.
    pub max_waiting_bytes: usize,
    /// Maximum wait of a request, in seconds.
    pub max_wait_s: f64,
    /// Saturation threshold: number of waiting requests in a replica's last report.
    pub waiting: f32,
    /// Saturation threshold: share of a replica's KV blocks in use, 0 to 1.
    pub kv_use: f32,
    /// Saturation threshold: number of requests that were sent to a replica since its last report
    /// and have no first token yet.
    pub unreported: f32,
    /// Saturation threshold for a replica without a fresh report: number of its requests in flight.
    pub in_flight: f32,
}

impl Default for FlowSettings {
    fn default() -> Self {
        Self {
            queue: false,
            max_waiting: 5_000,
            max_waiting_bytes: 1 << 30,
            max_wait_s: 60.0,
            waiting: 5.0,
            kv_use: 0.8,
            unreported: 32.0,
            in_flight: 100.0,
        }
    }
}

impl FlowSettings {
    /// Describes the first invalid setting; `None` if all are valid.
    pub(crate) fn complaint(&self) -> Option<String> {
        let day = 86_400.0;
        let bounds = [
            ("max_wait_s", self.max_wait_s, 0.001, day),
            ("waiting", f64::from(self.waiting), 1.0, 1e6),
            ("kv_use", f64::from(self.kv_use), 0.01, 1.0),
            ("unreported", f64::from(self.unreported), 1.0, 1e6),
            ("in_flight", f64::from(self.in_flight), 1.0, 1e6),
        ];
        let wrong = bounds
            .into_iter()
            .find(|(_, value, least, most)| !(least..=most).contains(&value));
        wrong.map(|(name, value, least, most)| {
            format!("flow.{name} is {value}; {least} to {most} is possible")
        })
    }
}
