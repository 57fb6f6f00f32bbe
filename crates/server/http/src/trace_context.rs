//! W3C trace context: the headers `traceparent` and `tracestate`.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

const LENGTH: usize = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".len();
pub(crate) const SAMPLED: u8 = 1;
/// Flags that are passed on: sampled, and a random trace id.
const KNOWN_FLAGS: u8 = 3;
/// Bounds of the list in `tracestate`, and of each key and value in it.
const MOST_MEMBERS: usize = 32;
const MOST_CHARS: usize = 256;

/// A place in a trace: the span that is the parent of what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// Not 0.
    pub trace_id: u128,
    /// Not 0.
    pub span_id: u64,
    pub flags: u8,
    /// Members of `tracestate`, separated by commas; may be empty.
    pub state: String,
}

impl TraceContext {
    /// The context that a client sent. A `traceparent` that is invalid or not alone counts as
    /// absent, and so does an invalid `tracestate`.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return None;
        };
        let (trace_id, span_id, flags) = parse(value.as_bytes())?;
        Some(Self {
            trace_id,
            span_id,
            flags: flags & KNOWN_FLAGS,
            state: state(headers).unwrap_or_default(),
        })
    }

    /// Replaces the context in `headers`.
    pub fn write(&self, headers: &mut HeaderMap) {
        let Self {
            trace_id,
            span_id,
            flags,
            state,
        } = self;
        headers.remove(TRACESTATE);
        let parent = format!("00-{trace_id:032x}-{span_id:016x}-{flags:02x}");
        if let Ok(value) = HeaderValue::try_from(parent) {
            headers.insert(TRACEPARENT, value);
        }
        if !state.is_empty()
            && let Ok(value) = HeaderValue::from_str(state)
        {
            headers.insert(TRACESTATE, value);
        }
    }

    /// The trace id as 32 hexadecimal digits.
    pub fn trace_hex(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// Whether the caller exports its part of the trace.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// Trace id, span id and flags. Later versions may append fields to those of version 0.
fn parse(text: &[u8]) -> Option<(u128, u64, u8)> {
    let (head, rest) = text.split_at_checked(LENGTH)?;
    let version = hex(&head[..2])?;
    let is_valid = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.is_empty() || rest[0] == b'-',
    };
    let dashes = [2, 35, 52].iter().all(|at| head[*at] == b'-');
    let (trace_id, span_id) = (hex(&head[3..35])?, hex(&head[36..52])? as u64);
    let flags = hex(&head[53..])? as u8;
    (is_valid && dashes && trace_id != 0 && span_id != 0).then_some((trace_id, span_id, flags))
}

/// Parses at most 32 hexadecimal digits. The standard allows them in lower case only.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

/// The list `tracestate`, which may be spread over several headers.
fn state(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(TRACESTATE).iter();
    let texts: Vec<&str> = values
        .map(|value| value.to_str().ok())
        .collect::<Option<_>>()?;
    let members = texts.iter().flat_map(|text| text.split(','));
    let members = members.map(|member| member.trim_matches([' ', '\t']));
    let members: Vec<&str> = members.filter(|member| !member.is_empty()).collect();
    let is_valid = members.len() <= MOST_MEMBERS && members.iter().all(|member| is_member(member));
    is_valid.then(|| members.join(","))
}

fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else {
        return false;
    };
    let lengths = 1..=MOST_CHARS;
    let first = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    lengths.contains(&key.len())
        && lengths.contains(&value.len())
        && first(key.as_bytes()[0])
        && key.bytes().all(|c| first(c) || b"_-*/@".contains(&c))
        && value
            .bytes()
            .all(|c| (b' '..=b'~').contains(&c) && c != b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0af7651916cd43dd8448eb211c80319c";
    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            (HeaderName::from_static(name), value)
        };
        pairs.iter().map(pair).collect()
    }

    fn of(parent: &str) -> Option<TraceContext> {
        TraceContext::of(&headers(&[("traceparent", parent)]))
    }

    #[test]
    fn a_valid_parent_is_read_and_written() {
        let context = of(VALID).unwrap();
        assert_eq!(context.trace_hex(), ID);
        assert_eq!(context.span_id, 0xb7ad_6b71_6920_3331);
        assert!(context.is_sampled());
        let mut sent = headers(&[("traceparent", "x"), ("tracestate", "of=another")]);
        context.write(&mut sent);
        assert_eq!(sent, headers(&[("traceparent", VALID)]));
    }

    #[test]
    fn later_versions_may_be_longer_and_unknown_flags_are_dropped() {
        for (parent, flags) in [
            (format!("00-{ID}-b7ad6b7169203331-00"), 0),
            (format!("00-{ID}-b7ad6b7169203331-ff"), 3),
            (format!("01-{ID}-b7ad6b7169203331-01"), 1),
            (format!("cc-{ID}-b7ad6b7169203331-09-more"), 1),
        ] {
            assert_eq!(of(&parent).unwrap().flags, flags, "{parent}");
        }
    }

    #[test]
    fn odd_parents_count_as_absent() {
        for parent in [
            "",
            "00",
            &VALID[..54],
            &VALID.to_uppercase(),
            &VALID.replacen("00", "ff", 1),
            &VALID.replacen("00", "0g", 1),
            &VALID.replace('-', "_"),
            &VALID.replace("b", "\u{e9}"),
            &VALID.replace(ID, &"0".repeat(32)),
            &VALID.replace("b7ad6b7169203331", &"0".repeat(16)),
            &VALID.replace("-01", "-0x"),
            &format!("{VALID}-more"),
            &format!("{VALID} "),
            &format!("01{}0", &VALID[2..]),
        ] {
            assert_eq!(of(parent), None, "{parent:?}");
        }
        let twice = headers(&[("traceparent", VALID), ("traceparent", VALID)]);
        assert_eq!(TraceContext::of(&twice), None);
    }

    #[test]
    fn a_state_is_joined_and_an_odd_one_is_dropped() {
        let of = |states: &[&str]| {
            let mut pairs = vec![("traceparent", VALID)];
            pairs.extend(states.iter().map(|state| ("tracestate", *state)));
            TraceContext::of(&headers(&pairs)).unwrap().state
        };
        assert_eq!(of(&["a=1, b@c=x y", "", "d/e=:"]), "a=1,b@c=x y,d/e=:");
        let many = |count: usize| vec!["k=v"; count].join(",");
        assert_eq!(of(&[&many(32)]), many(32));
        let long = format!("k={}", "v".repeat(257));
        for odd in ["a", "=1", "a=", "A=1", "-a=1", "a=b=c", &many(33), &long] {
            assert_eq!(of(&["a=1", odd]), "", "{odd}");
        }
    }
}
