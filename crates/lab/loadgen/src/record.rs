//! Records of requests, and the columns that they are turned into.

use crate::failure::{Failure, FailureKind};

/// Token counts that the server reported; -1: not reported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) prompt: i64,
    pub(crate) completion: i64,
    pub(crate) cached: i64,
}

/// Record of one request. Times are in seconds since the start of the load; NaN: missing.
#[derive(Debug)]
pub(crate) struct Record {
    /// Position of the request in the order in which requests were added.
    pub(crate) index: usize,
    pub(crate) due: f64,
    /// Number of tokens that the response must have; 0: unchecked.
    pub(crate) must_produce: u32,
    pub(crate) sent: f64,
    /// Whether the request was sent a second time because the reused connection had ended.
    pub(crate) resent: bool,
    pub(crate) connected: f64,
    pub(crate) ended: f64,
    pub(crate) status: u16,
    pub(crate) usage: Usage,
    pub(crate) event_times: Vec<f64>,
    pub(crate) text_events: u32,
    pub(crate) failure: Option<Failure>,
    pub(crate) finish: String,
    pub(crate) text: String,
}

impl Record {
    pub(crate) fn new(index: usize, due: f64, must_produce: u32) -> Self {
        Self {
            index,
            due,
            must_produce,
            sent: f64::NAN,
            resent: false,
            connected: f64::NAN,
            ended: f64::NAN,
            status: 0,
            usage: Usage {
                prompt: -1,
                completion: -1,
                cached: -1,
            },
            event_times: Vec::new(),
            text_events: 0,
            failure: None,
            finish: String::new(),
            text: String::new(),
        }
    }

    /// Sets the failure, unless one is set already.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Prepares a second attempt: the time of its first write replaces that of the first attempt.
    pub(crate) fn send_again(&mut self) {
        self.resent = !self.sent.is_nan();
        self.sent = f64::NAN;
    }

    pub(crate) fn unsent(mut self) -> Self {
        self.fail(Failure::new(FailureKind::Unsent, "stopped"));
        self
    }
}

/// One column for each property of the requests. Rows are in the order in which requests were
/// added.
#[derive(Debug, Default)]
pub struct Columns {
    pub due: Vec<f64>,
    /// Time of the first write to the socket on which the response came.
    pub sent: Vec<f64>,
    /// Whether the request had been sent before, on a reused connection that ended without any
    /// response.
    pub resent: Vec<bool>,
    /// Time when the request's connection was established.
    pub connected: Vec<f64>,
    pub ended: Vec<f64>,
    /// HTTP status; 0: there was no response.
    pub status: Vec<u16>,
    pub prompt_tokens: Vec<i64>,
    pub completion_tokens: Vec<i64>,
    pub cached_tokens: Vec<i64>,
    pub event_counts: Vec<u32>,
    /// Times at which events were received, the events of one request after those of the previous
    /// one. Those of a response count from its first one with output.
    pub event_times: Vec<f64>,
    pub text_events: Vec<u32>,
    /// Name of each request's [`FailureKind`]; an empty text: success.
    pub failure: Vec<String>,
    pub detail: Vec<String>,
    pub finish: Vec<String>,
    pub text: Vec<String>,
    /// Seconds from the start of the load to the end of its last request.
    pub duration: f64,
    /// CPU time of the client's thread in seconds.
    pub cpu_s: f64,
}

impl Columns {
    pub(crate) fn new(mut records: Vec<Record>) -> Self {
        records.sort_unstable_by_key(|record| record.index);
        let mut columns = Self::default();
        let events = records.iter().map(|record| record.event_times.len()).sum();
        columns.event_times.reserve_exact(events);
        for record in records {
            columns.push(record);
        }
        columns
    }

    fn push(&mut self, record: Record) {
        let (failure, detail) = match record.failure {
            Some(failure) => (failure.kind.name(), failure.detail),
            None => ("", String::new()),
        };
        self.due.push(record.due);
        self.sent.push(record.sent);
        self.resent.push(record.resent);
        self.connected.push(record.connected);
        self.ended.push(record.ended);
        self.status.push(record.status);
        self.prompt_tokens.push(record.usage.prompt);
        self.completion_tokens.push(record.usage.completion);
        self.cached_tokens.push(record.usage.cached);
        self.event_counts
            .push(u32::try_from(record.event_times.len()).unwrap_or(u32::MAX));
        self.event_times.extend_from_slice(&record.event_times);
        self.text_events.push(record.text_events);
        self.failure.push(failure.to_owned());
        self.detail.push(detail);
        self.finish.push(record.finish);
        self.text.push(record.text);
        self.duration = self.duration.max(record.ended);
    }
}
