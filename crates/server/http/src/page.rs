//! The text of a Prometheus metrics page.

use std::fmt::{Display, Write};

use crate::Histogram;

/// A metrics page under construction; every sample carries the same labels.
#[derive(Debug)]
pub struct Page<'a> {
    /// The text so far.
    pub out: String,
    labels: &'a str,
}

impl<'a> Page<'a> {
    /// `labels` is `a="b",c="d"`, values escaped.
    pub fn new(labels: &'a str) -> Self {
        Self {
            out: String::with_capacity(32 << 10),
            labels,
        }
    }

    /// The labels of every sample.
    pub fn labels(&self) -> &'a str {
        self.labels
    }

    /// Appends the HELP and TYPE lines of a metric.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Appends one sample. `more`: further labels; begins with a comma unless empty.
    pub fn sample(&mut self, name: &str, more: &str, value: impl Display) {
        let labels = self.labels;
        let _ = writeln!(self.out, "{name}{{{labels}{more}}} {value}");
    }

    /// Appends a gauge with one sample.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.sample(name, "", value);
    }

    /// Appends a counter with one sample.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        self.sample(name, "", value);
    }

    /// Appends a counter with one sample for each value of `label`.
    pub fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: [(&str, u64); N],
    ) {
        self.head(name, "counter", help);
        for (word, value) in values {
            self.sample(name, &format!(",{label}=\"{word}\""), value);
        }
    }

    /// Appends a histogram.
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        histogram.render(&mut self.out, name, self.labels);
    }
}

/// A label value with backslashes, quotes and newlines escaped.
pub fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
