//! Settings of a pool's flow control.

use serde::Deserialize;

/// Bounds of the queue, and when a replica has no room. Absent members have defaults: those of
/// llm-d where it has the same one.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlowSettings {
    /// Requests wait here while all replicas are saturated. Otherwise they are sent on, and only
    /// those of negative priority are refused.
    pub queue: bool,
    /// Requests of one priority that may wait.
    pub max_waiting: usize,
    /// Bytes of their bodies.
    pub max_waiting_bytes: usize,
    /// Seconds that a request may wait.
    pub max_wait_s: f64,
    /// A replica has no room at so many requests that it reported as waiting,
    pub waiting: f32,
    /// at this share of its KV blocks in use,
    pub kv_use: f32,
    /// at so many requests that were sent to it since its last report and have no first token,
    pub unreported: f32,
    /// or, where it reports nothing, at so many requests in flight.
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
    /// What is wrong with them.
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
