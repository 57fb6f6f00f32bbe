//! Reasons for the failure of requests.

use std::error::Error;
use std::time::Duration;

/// Kinds of failures. Results count each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// No connection could be opened, or it ended before the request was sent.
    Connect,
    /// The response has a status other than 200.
    HttpStatus,
    /// The server reported an error in the response.
    ErrorEvent,
    /// The response ended without a finish_reason or without `[DONE]`.
    NoFinish,
    /// The response has fewer tokens than the request requires.
    Short,
    /// The response is not HTTP, is not an event stream, or has an event that is not a completion
    /// chunk.
    Malformed,
    /// No bytes were transferred within the timeout.
    Timeout,
    /// The load was stopped after the request was sent.
    Interrupted,
    /// The load was stopped before the request was sent.
    Unsent,
}

impl FailureKind {
    /// The name of the kind in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::HttpStatus => "http_status",
            Self::ErrorEvent => "error_event",
            Self::NoFinish => "no_finish",
            Self::Short => "short",
            Self::Malformed => "malformed",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
            Self::Unsent => "unsent",
        }
    }
}

/// A failure: its kind, with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    pub detail: String,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
        }
    }

    pub(crate) fn connect(error: &std::io::Error) -> Self {
        let mut detail = causes(error);
        if rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::MFILE) {
            detail.push_str("; raise the limit of open files (ulimit -n) or send fewer at once");
        }
        Self::new(FailureKind::Connect, detail)
    }

    pub(crate) fn connect_timeout(limit: Duration) -> Self {
        let detail = format!("no connection after {} s", limit.as_secs_f64());
        Self::new(FailureKind::Connect, detail)
    }

    pub(crate) fn silence(limit: Duration) -> Self {
        let detail = format!("nothing received for {} s", limit.as_secs_f64());
        Self::new(FailureKind::Timeout, detail)
    }

    pub(crate) fn error_event(message: impl Into<String>) -> Self {
        Self::new(FailureKind::ErrorEvent, message)
    }

    pub(crate) fn no_finish(detail: impl Into<String>) -> Self {
        Self::new(FailureKind::NoFinish, detail)
    }

    pub(crate) fn short(detail: impl Into<String>) -> Self {
        Self::new(FailureKind::Short, detail)
    }

    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(FailureKind::Malformed, detail)
    }

    /// A failure of the HTTP connection. `place` is the stage at which it occurred: "before the
    /// answer", "in the middle of the stream".
    pub(crate) fn http(error: &hyper::Error, place: &str) -> Self {
        use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        let source = error
            .source()
            .and_then(|e| e.downcast_ref::<std::io::Error>());
        match source.map(std::io::Error::kind) {
            // The data is not HTTP, rather than HTTP that was cut off.
            Some(InvalidData | InvalidInput) => Self::malformed(causes(error)),
            _ if error.is_parse() => Self::malformed(causes(error)),
            Some(UnexpectedEof) => Self::closed(place),
            _ if error.is_incomplete_message() => Self::closed(place),
            _ => Self::no_finish(format!(
                "the connection broke {place}: {}",
                innermost(error)
            )),
        }
    }

    fn closed(place: &str) -> Self {
        Self::no_finish(format!("the connection was closed {place}"))
    }
}

fn innermost(error: &hyper::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// The text of an error and of its causes. A cause whose text is included already is left out.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}
