//! A histogram in Prometheus' cumulative format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// A thread-safe histogram.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than `bounds`: the last counts values above all bounds.
    counts: Box<[AtomicU64]>,
    /// Sum of all values, as the bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    /// `bounds` must ascend; upper bounds are inclusive.
    pub fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self {
            bounds,
            counts,
            sum: AtomicU64::new(0f64.to_bits()),
        }
    }

    /// Counts a value.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // The closure always returns Some, so the update always succeeds.
        let _ = self
            .sum
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// The number of values so far.
    pub fn count(&self) -> u64 {
        let counts = self.counts.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Appends the sample lines of the metric `name`. `labels` is `a="b",c="d"`.
    pub fn render(&self, out: &mut String, name: &str, labels: &str) {
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        write_histogram(out, (name, labels), self.bounds, counts, sum);
    }
}

/// Writes the sample lines of a histogram; `counts` has one more item than `bounds`.
pub fn write_histogram(
    out: &mut String,
    (name, labels): (&str, &str),
    bounds: &[f64],
    counts: impl Iterator<Item = u64>,
    sum: f64,
) {
    let mut total = 0u64;
    for (index, count) in counts.enumerate() {
        total = total.wrapping_add(count);
        let bound = bounds
            .get(index)
            .map_or("+Inf".to_owned(), |&bound| label(bound));
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
    }
    let _ = writeln!(
        out,
        "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {total}"
    );
}

/// Formats a bound like prometheus_client: queries match the text, so 1 must be `1.0`.
fn label(bound: f64) -> String {
    let text = format!("{bound:?}");
    let point = text.find('.').unwrap_or(text.len());
    if point <= 6 {
        return text;
    }
    let digits = text[..point].trim_end_matches('0');
    let (first, rest) = digits.split_at(1);
    let mantissa = if rest.is_empty() {
        first.to_owned()
    } else {
        format!("{first}.{rest}")
    };
    format!("{mantissa}e+0{}", point - 1)
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
            "h_bucket{a=\"b\",le=\"1.0\"} 2\nh_bucket{a=\"b\",le=\"2.5\"} 3\n\
             h_bucket{a=\"b\",le=\"+Inf\"} 4\nh_sum{a=\"b\"} 102.5\nh_count{a=\"b\"} 4\n"
        );
    }

    /// The expected texts are from `prometheus_client.utils.floatToGoString`.
    #[test]
    fn bounds_are_written_as_by_prometheus_client() {
        for (bound, text) in [
            (0.0005, "0.0005"),
            (1.0, "1.0"),
            (7680.0, "7680.0"),
            (500_000.0, "500000.0"),
            (1e6, "1e+06"),
            (2_500_000.0, "2.5e+06"),
        ] {
            assert_eq!(label(bound), text);
        }
    }
}
