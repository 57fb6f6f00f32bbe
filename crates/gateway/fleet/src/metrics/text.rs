//! Parser for the subset of Prometheus' text format that gauges use. Malformed lines are skipped,
//! because the page may come from a broken server. Most lines are histogram buckets, of which only
//! the name is parsed.

use std::borrow::Cow;

/// Maximum number of labels parsed in one sample.
const MAX_LABELS: usize = 64;

/// A line `name{labels} value`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample<'a> {
    pub name: &'a str,
    /// The text between the braces.
    labels: &'a str,
    /// The text after the labels: the value and an optional timestamp.
    rest: &'a str,
}

/// The samples of a page whose metric name `wanted` maps to a value, each with that value.
pub(crate) fn samples<'a, T: Copy>(
    page: &'a str,
    wanted: impl Fn(&'a str) -> Option<T>,
) -> impl Iterator<Item = (T, Sample<'a>)> {
    // samples of one metric are adjacent, so the name is compared with the previous one first
    let mut before: (&str, Option<T>) = ("", None);
    page.lines().filter_map(move |line| {
        if line.starts_with('#') {
            return None;
        }
        let bytes = line.as_bytes();
        let end = |byte: &u8| matches!(byte, b'{' | b' ' | b'\t');
        let known = bytes.get(before.0.len()).is_some_and(end) && line.starts_with(before.0);
        if !known {
            let name = &line[..bytes.iter().position(end)?];
            before = (name, wanted(name));
        }
        let (name, found) = before;
        Some((found?, Sample::read(name, &line[name.len()..])?))
    })
}

impl<'a> Sample<'a> {
    fn read(name: &'a str, rest: &'a str) -> Option<Self> {
        let Some(inside) = rest.strip_prefix('{') else {
            let labels = "";
            return Some(Self { name, labels, rest });
        };
        let close = closing_brace(inside)?;
        Some(Self {
            name,
            labels: &inside[..close],
            rest: &inside[close + 1..],
        })
    }

    /// The value, if it is a finite number.
    pub(crate) fn value(&self) -> Option<f64> {
        let word = self.rest.split_ascii_whitespace().next()?;
        word.parse().ok().filter(|value: &f64| value.is_finite())
    }

    /// The value of a label, unescaped; `None` if the sample lacks the label.
    pub(crate) fn label(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut rest = self.labels;
        for _ in 0..MAX_LABELS {
            let (key, after) = rest.split_once('=')?;
            let inside = after.trim_start().strip_prefix('"')?;
            let end = closing_quote(inside)?;
            if key.trim_matches([',', ' ', '\t']) == name {
                return Some(unescaped(&inside[..end]));
            }
            rest = &inside[end + 1..];
        }
        None
    }

    /// The value of a label, if it is a finite number of at least 0.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        let value: f64 = self.label(name)?.parse().ok()?;
        (value.is_finite() && value >= 0.0).then_some(value)
    }
}

/// Index of the first closing brace outside quoted values.
fn closing_brace(labels: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    labels.bytes().position(|byte| {
        let here = byte == b'}' && !quoted;
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            _ => {}
        }
        here
    })
}

fn closing_quote(value: &str) -> Option<usize> {
    let mut escaped = false;
    value.bytes().position(|byte| {
        let here = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        here
    })
}

fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(one) = chars.next() {
        match (one, one == '\\') {
            (_, true) => match chars.next() {
                Some('n') => out.push('\n'),
                Some(other) => out.push(other),
                None => {}
            },
            (one, false) => out.push(one),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(line: &str) -> Option<Sample<'_>> {
        samples(line, Some).next().map(|(_, sample)| sample)
    }

    #[test]
    fn a_sample_has_name_labels_and_value() {
        let sample = one(r#"a:b{x="1",y="q\"}\\\n"} 2.5e3 1700000000"#).unwrap();
        assert_eq!((sample.name, sample.value()), ("a:b", Some(2500.0)));
        assert_eq!(sample.number("x"), Some(1.0));
        assert_eq!(sample.label("y").unwrap(), "q\"}\\\n");
        assert_eq!(sample.label("z"), None);
        assert_eq!(one("plain 3").unwrap().value(), Some(3.0));
        assert_eq!(
            one("a{x=\"1\", y=\"2\",} 3").unwrap().label("y").unwrap(),
            "2"
        );
    }

    #[test]
    fn what_is_no_sample_is_skipped() {
        for line in ["", "name", "a{x=\"1\" 2", "a{x=\"}"] {
            assert_eq!(one(line), None, "{line}");
        }
        for line in ["a NaN", "a +Inf", "a x", "a{} ", "a{x=1} y"] {
            assert_eq!(one(line).unwrap().value(), None, "{line}");
        }
        assert_eq!(one("a{x=1} 2").unwrap().label("x"), None);
        assert_eq!(one("a{x} 2").unwrap().label("x"), None);
    }

    #[test]
    fn only_lines_with_a_wanted_name_are_read() {
        let page = "# HELP a x\na 1\na{b=\"c\"} 2\nb 2\na_c 3\n  \na\t4\n";
        let wanted = |name: &str| ["a", "a_c"].iter().position(|one| *one == name);
        let found = samples(page, wanted).map(|(at, one)| (at, one.name, one.value()));
        let value = |at, name, value: f64| (at, name, Some(value));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [
                value(0, "a", 1.0),
                value(0, "a", 2.0),
                value(1, "a_c", 3.0),
                value(0, "a", 4.0)
            ]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(page in "[a-c{}=\",\\\\ \n0-9é.:_#-]{0,200}") {
            for (_, sample) in samples(&page, Some) {
                sample.value();
                sample.label("a");
                sample.number("b");
            }
        }

        #[test]
        fn labels_come_back_as_they_were(value in "\\PC{0,20}", number in -1e6f64..1e6) {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"");
            let line = format!("name{{first=\"}}\",label=\"{escaped}\"}} {number}");
            let sample = one(&line).unwrap();
            prop_assert_eq!(sample.label("label").unwrap(), value);
            prop_assert_eq!(sample.value(), Some(number));
        }
    }
}
