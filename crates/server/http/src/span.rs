//! A finished span of a trace, and its format in OTLP's JSON.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::TraceContext;

/// Role of a span in a request, with OTLP's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    Internal = 1,
    Server = 2,
    Client = 3,
}

/// A part of the work on a request, with its start, end and attributes.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) context: TraceContext,
    pub(crate) parent: Option<u64>,
    pub(crate) name: String,
    pub(crate) kind: SpanKind,
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    /// `None` unless the work failed.
    pub(crate) error: Option<String>,
}

/// The body of an export request.
pub(crate) fn body(resource: &[(&'static str, Value)], spans: &[Span]) -> Vec<u8> {
    let spans: Vec<Value> = spans.iter().map(span).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": attributes(resource)},
        "scopeSpans": [{"scope": {"name": "penstock"}, "spans": spans}],
    }]})
    .to_string()
    .into_bytes()
}

fn span(span: &Span) -> Value {
    let context = &span.context;
    let mut object = json!({
        "traceId": context.trace_hex(),
        "spanId": format!("{:016x}", context.span_id),
        "traceState": context.state,
        "flags": context.flags,
        "name": span.name,
        "kind": span.kind as u8,
        "startTimeUnixNano": nanoseconds(span.start),
        "endTimeUnixNano": nanoseconds(span.end.max(span.start)),
        "attributes": attributes(&span.attributes),
    });
    if let Some(parent) = span.parent {
        object["parentSpanId"] = format!("{parent:016x}").into();
    }
    if let Some(message) = &span.error {
        object["status"] = json!({"code": 2, "message": message});
    }
    object
}

fn attributes(all: &[(&'static str, Value)]) -> Vec<Value> {
    let attribute = |(key, value): &(&str, Value)| json!({"key": key, "value": any(value)});
    all.iter().map(attribute).collect()
}

/// OTLP's `AnyValue`, whose 64-bit integers are strings.
fn any(value: &Value) -> Value {
    match value {
        Value::Bool(_) => json!({"boolValue": value}),
        Value::Number(number) if number.is_f64() => json!({"doubleValue": value}),
        Value::Number(number) => json!({"intValue": number.to_string()}),
        Value::Array(values) => {
            json!({"arrayValue": {"values": values.iter().map(any).collect::<Vec<_>>()}})
        }
        _ => json!({"stringValue": value}),
    }
}

fn nanoseconds(at: SystemTime) -> String {
    let since_1970 = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.as_nanos().to_string()
}
