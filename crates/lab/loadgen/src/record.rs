//! Records of requests, and their columns.

use crate::failure::{Failure, FailureKind};

/// Token counts reported by the server; -1 = not reported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) prompt: i64,
    pub(crate) completion: i64,
    pub(crate) cached: i64,
}

/// Record of one request. Times are seconds after the start; NaN = missing.
#[derive(Debug)]
pub(crate) struct Record {
    /// Index in the order of addition.
    pub(crate) index: usize,
    pub(crate) due: f64,
    /// Required number of tokens in the answer; 0 = unchecked.
    pub(crate) must_produce: u32,
    pub(crate) sent: f64,
    /// Whether it was sent a second time because the reused connection had ended.
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

    /// Sets the failure, unless one is already set.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Prepares a retry: the next send time replaces a previous one.
    pub(crate) fn send_again(&mut self) {
        self.resent = !self.sent.is_nan();
        self.sent = f64::NAN;
    }

    pub(crate) fn unsent(mut self) -> Self {
        self.fail(Failure::new(FailureKind::Unsent, "stopped"));
        self
    }
}

/// All requests in the order of addition, one column per property.
#[derive(Debug, Default)]
pub struct Columns {
    pub due: Vec<f64>,
    /// Time of the first write to the socket that received the answer.
    pub sent: Vec<f64>,
    /// Whether it had been sent before, on a reused connection that ended without a byte.
    pub resent: Vec<bool>,
    /// Time at which its connection was established.
    pub connected: Vec<f64>,
    pub ended: Vec<f64>,
    /// HTTP status; 0 = none.
    pub status: Vec<u16>,
    pub prompt_tokens: Vec<i64>,
    pub completion_tokens: Vec<i64>,
    pub cached_tokens: Vec<i64>,
    pub event_counts: Vec<u32>,
    /// Receipt times of events from the first one with output on, request by request.
    pub event_times: Vec<f64>,
    pub text_events: Vec<u32>,
    /// Name of the [`FailureKind`]; empty = success.
    pub failure: Vec<String>,
    pub detail: Vec<String>,
    pub finish: Vec<String>,
    pub text: Vec<String>,
    /// Seconds from the start to the last end.
    pub duration: f64,
    /// CPU seconds of the client's thread.
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
