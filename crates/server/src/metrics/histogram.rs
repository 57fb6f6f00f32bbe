//! A histogram in Prometheus' cumulative form, and its buckets.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// From vLLM, so that dashboards line up.
pub(super) const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// vLLM's, with buckets below 10 ms: small models give a token in 1 ms.
pub(super) const TOKEN_GAP: &[f64] = &[
    0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
    0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
/// vLLM's, with buckets below 300 ms.
pub(super) const LATENCY: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0,
    30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
];
pub(super) const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5,
    5e5, 1e6,
];
pub(super) const STEP_TOKENS: &[f64] = &[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];
pub(super) const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// One more than `bounds`: the last holds what is above all of them.
    counts: Box<[AtomicU64]>,
    /// Bits of an f64.
    sum: AtomicU64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self {
            bounds,
            counts,
            sum: AtomicU64::new(0f64.to_bits()),
        }
    }

    pub(super) fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // The closure always returns Some, so the update always succeeds.
        let _ = self
            .sum
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// The sample lines. `labels` is `a="b",c="d"`.
    pub(super) fn render(&self, out: &mut String, name: &str, labels: &str) {
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        write_lines(out, (name, labels), self.bounds, counts, sum);
    }
}

/// The sample lines of any histogram: `counts` has one more item than `bounds`.
pub(super) fn write_lines(
    out: &mut String,
    (name, labels): (&str, &str),
    bounds: &[f64],
    counts: impl Iterator<Item = u64>,
    sum: f64,
) {
    let mut total = 0u64;
    for (index, count) in counts.enumerate() {
        total = total.wrapping_add(count);
        let bound = bounds.get(index).map_or("+Inf".to_owned(), f64::to_string);
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
    }
    let _ = writeln!(
        out,
        "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {total}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_bounds_inclusive() {
        let histogram = Histogram::new(&[1.0, 2.5]);
        for value in [0.5, 1.0, 2.0, 99.0] {
            histogram.observe(value);
        }
        let mut out = String::new();
        histogram.render(&mut out, "h", "a=\"b\"");
        assert_eq!(
            out,
            "h_bucket{a=\"b\",le=\"1\"} 2\nh_bucket{a=\"b\",le=\"2.5\"} 3\nh_bucket{a=\"b\",le=\"+Inf\"} 4\n\
             h_sum{a=\"b\"} 102.5\nh_count{a=\"b\"} 4\n"
        );
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [
            FIRST_TOKEN,
            TOKEN_GAP,
            LATENCY,
            TOKENS,
            STEP_TOKENS,
            CHOICES,
        ] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
        }
    }
}
