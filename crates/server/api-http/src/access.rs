//! The access log: one line for each request, when its response has ended.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use tracing::info;

/// Properties of a request besides its HTTP exchange. Counts are `None` while unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessFacts {
    /// The replica that began the response.
    pub replica: Option<Arc<str>>,
    /// The replicas that continued a stream after others had failed, in order.
    pub continued_on: Vec<Arc<str>>,
    pub pool: Option<Arc<str>>,
    /// Why the replica was picked.
    pub decision: Option<String>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    /// Prompt tokens whose KV came from a cache.
    pub cached_tokens: Option<u64>,
    /// From the request's arrival to its first output token.
    pub first_token: Option<Duration>,
    pub finish_reason: Option<&'static str>,
}

/// The facts of one request, which its endpoint fills in while it responds. An extension of
/// requests while the access log is on.
#[derive(Debug, Clone, Default)]
pub struct AccessRecord(Arc<Mutex<AccessFacts>>);

impl AccessRecord {
    /// The record of a request; `None` if it is not logged.
    pub fn of(request: &Request<Body>) -> Option<Self> {
        request.extensions().get::<Self>().cloned()
    }

    pub fn change(&self, change: impl FnOnce(&mut AccessFacts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn facts(&self) -> AccessFacts {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// One HTTP exchange, with the names that the log uses for it.
#[derive(Debug, Clone, Copy)]
pub struct AccessLine<'a> {
    pub id: &'a str,
    pub client: &'a str,
    pub method: &'a str,
    pub path: &'a str,
    /// Name of the API key.
    pub key: Option<&'a str>,
    pub status: u16,
    /// `None`: another proxy carries the response.
    pub bytes: Option<u64>,
    pub duration: Duration,
    /// False if the client disconnected early or the response failed.
    pub complete: bool,
    pub trace_id: Option<&'a str>,
}

/// Writes the line of one request.
pub fn log_access(line: &AccessLine<'_>, facts: &AccessFacts) {
    let AccessLine {
        id,
        client,
        method,
        path,
        key,
        status,
        bytes,
        complete,
        trace_id,
        ..
    } = *line;
    let continued_on = (!facts.continued_on.is_empty()).then(|| facts.continued_on.join(", "));
    info!(
        request_id = id,
        client,
        method,
        path,
        key,
        status,
        bytes,
        ms = milliseconds(line.duration),
        complete,
        pool = facts.pool.as_deref(),
        replica = facts.replica.as_deref(),
        continued_on,
        decision = facts.decision.as_deref(),
        prompt_tokens = facts.prompt_tokens,
        completion_tokens = facts.completion_tokens,
        cached_tokens = facts.cached_tokens,
        ttft_ms = facts.first_token.map(milliseconds),
        finish_reason = facts.finish_reason,
        trace_id,
        "{}",
        text(line, facts)
    );
}

/// Milliseconds with three decimals.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

/// The log line as text for human readers.
fn text(line: &AccessLine<'_>, facts: &AccessFacts) -> String {
    let AccessLine {
        id,
        client,
        method,
        path,
        status,
        ..
    } = line;
    let mut out = format!("{id}: {client} {method} {path}");
    if let Some(key) = line.key {
        let _ = write!(out, " by {key:?}");
    }
    let _ = write!(out, " {status}");
    if let Some(bytes) = line.bytes {
        let _ = write!(out, ", {bytes} bytes");
    }
    let _ = write!(out, ", {:.3} s", line.duration.as_secs_f64());
    if !line.complete {
        out.push_str(", client left");
    }
    if let (Some(prompt), output) = (facts.prompt_tokens, facts.completion_tokens) {
        let _ = write!(out, ", {prompt} + {} tokens", output.unwrap_or(0));
        if let Some(cached) = facts.cached_tokens.filter(|cached| *cached > 0) {
            let _ = write!(out, " ({cached} cached)");
        }
    }
    if let Some(first) = facts.first_token {
        let _ = write!(out, ", first token after {:.3} s", first.as_secs_f64());
    }
    if let Some(reason) = facts.finish_reason {
        let _ = write!(out, ", finish {reason}");
    }
    if let Some(replica) = &facts.replica {
        let _ = write!(out, ", from {replica}");
    }
    for next in &facts.continued_on {
        let _ = write!(out, ", continued on {next}");
    }
    if let Some(decision) = &facts.decision {
        let pool = facts.pool.as_deref().unwrap_or_default();
        let _ = write!(out, "; {pool}: {decision}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: AccessLine<'static> = AccessLine {
        id: "id-1",
        client: "10.0.0.9:4",
        method: "POST",
        path: "/v1/x",
        key: None,
        status: 200,
        bytes: Some(9),
        duration: Duration::from_micros(1_234_567),
        complete: true,
        trace_id: None,
    };

    #[test]
    fn a_line_has_what_is_known() {
        let none = AccessFacts::default();
        assert_eq!(
            text(&LINE, &none),
            "id-1: 10.0.0.9:4 POST /v1/x 200, 9 bytes, 1.235 s"
        );
        let left = AccessLine {
            key: Some("team"),
            bytes: None,
            complete: false,
            ..LINE
        };
        assert_eq!(
            text(&left, &none),
            "id-1: 10.0.0.9:4 POST /v1/x by \"team\" 200, 1.235 s, client left"
        );
        assert_eq!(milliseconds(LINE.duration), 1234.567);
    }

    #[test]
    fn replicas_and_tokens_are_named_in_order() {
        let facts = AccessFacts {
            replica: Some("a:1".into()),
            continued_on: vec!["b:1".into(), "c:1".into()],
            pool: Some("default".into()),
            decision: Some("a:1: the only replica (0 running, 0 waiting)".to_owned()),
            prompt_tokens: Some(12),
            completion_tokens: Some(30),
            cached_tokens: Some(8),
            first_token: Some(Duration::from_millis(120)),
            finish_reason: Some("stop"),
        };
        assert_eq!(
            text(&LINE, &facts),
            "id-1: 10.0.0.9:4 POST /v1/x 200, 9 bytes, 1.235 s, 12 + 30 tokens (8 cached), \
             first token after 0.120 s, finish stop, from a:1, continued on b:1, continued on c:1; \
             default: a:1: the only replica (0 running, 0 waiting)"
        );
    }

    #[test]
    fn a_record_is_one_for_all_its_handles() {
        let record = AccessRecord::default();
        let mut request = Request::new(Body::empty());
        assert!(AccessRecord::of(&request).is_none());
        request.extensions_mut().insert(record.clone());
        let other = AccessRecord::of(&request).unwrap();
        other.change(|facts| facts.prompt_tokens = Some(3));
        assert_eq!(record.facts().prompt_tokens, Some(3));
    }
}
