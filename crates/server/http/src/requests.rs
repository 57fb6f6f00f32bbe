//! Request metrics by handler, method and status. Names and status classes follow
//! prometheus-fastapi-instrumentator, which vLLM's dashboards use.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use crate::{Exchange, ExchangeEnd, Histogram, escaped};

/// Bucket bounds of the request durations, in seconds.
const DURATIONS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];
const RESPONSES: &str = "penstock:http_responses_total";
const DURATION: &str = "http_request_duration_seconds";

/// Counts of completed exchanges, without probes and scrapes, as in vLLM.
#[derive(Debug, Default)]
pub struct RequestCounts {
    series: Mutex<BTreeMap<Labels, Histogram>>,
    /// Number of responses by status code.
    codes: Mutex<BTreeMap<u16, u64>>,
}

/// Handler, method and status class. The number of series is bounded by the routes, whatever
/// clients send.
type Labels = (String, &'static str, u16);

const LEFT_OUT: [&str; 7] = [
    "/health",
    "/metrics",
    "/metrics/stream",
    "/ping",
    "/ready",
    "/replicas",
    "/version",
];

impl RequestCounts {
    /// Counts an exchange that has ended.
    pub fn count(&self, exchange: &Exchange, end: &ExchangeEnd) {
        if LEFT_OUT.contains(&exchange.handler.as_str()) {
            return;
        }
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        *codes.entry(end.status).or_default() += 1;
        drop(codes);
        let labels = (exchange.handler.clone(), exchange.method, end.status / 100);
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let histogram = series
            .entry(labels)
            .or_insert_with(|| Histogram::new(DURATIONS));
        histogram.observe(end.duration.as_secs_f64());
    }

    /// Appends the samples to a metrics page.
    pub fn render(&self, out: &mut String) {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let labels = |(handler, method, class): &Labels| {
            let handler = escaped(handler);
            format!("handler=\"{handler}\",method=\"{method}\",status=\"{class}xx\"")
        };
        let _ = writeln!(
            out,
            "# HELP http_requests_total Requests by handler, method and status.\n\
             # TYPE http_requests_total counter"
        );
        for (key, histogram) in series.iter() {
            let (labels, count) = (labels(key), histogram.count());
            let _ = writeln!(out, "http_requests_total{{{labels}}} {count}");
        }
        let _ = writeln!(
            out,
            "# HELP {DURATION} From the arrival of a request to the end of its answer.\n\
             # TYPE {DURATION} histogram"
        );
        for (key, histogram) in series.iter() {
            histogram.render(out, DURATION, &labels(key));
        }
        let _ = writeln!(
            out,
            "# HELP {RESPONSES} Responses by status code, without probes and scrapes.\n\
             # TYPE {RESPONSES} counter"
        );
        let codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        for (code, count) in codes.iter() {
            let _ = writeln!(out, "{RESPONSES}{{code=\"{code}\"}} {count}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn probes_are_left_out_and_statuses_are_classes() {
        let counts = RequestCounts::default();
        for (handler, status) in [
            ("/v1/x", 200),
            ("/v1/x", 204),
            ("/v1/x", 503),
            ("/ping", 200),
        ] {
            let exchange = Exchange {
                handler: handler.to_owned(),
                method: "GET",
                arrived: Instant::now(),
                peer: None,
            };
            let end = ExchangeEnd {
                status,
                duration: Duration::from_millis(20),
                bytes: 1,
                complete: true,
            };
            counts.count(&exchange, &end);
        }
        let mut out = String::new();
        counts.render(&mut out);
        let samples: Vec<&str> = out.lines().filter(|l| l.starts_with("http_r")).collect();
        let ok = "handler=\"/v1/x\",method=\"GET\",status=\"2xx\"";
        assert_eq!(samples[0], format!("http_requests_total{{{ok}}} 2"));
        assert!(samples[1].ends_with("status=\"5xx\"} 1"));
        let within = format!("{DURATION}_bucket{{{ok},le=\"0.025\"}} 2");
        assert!(samples.contains(&within.as_str()), "{out}");
        assert!(!out.contains("/ping"));
        let codes = [(200, 1), (204, 1), (503, 1)];
        for (code, count) in codes {
            let sample = format!("{RESPONSES}{{code=\"{code}\"}} {count}\n");
            assert!(out.contains(&sample), "{out}");
        }
    }
}
