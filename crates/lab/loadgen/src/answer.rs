//! Parses a streamed response into a record of the request.

use bytes::Bytes;
use penstock_api_types::sse_reader::{Event, EventReader};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::fields::{Count, Text};
use crate::record::Record;

/// Maximum size of one event in bytes.
const EVENT_LIMIT: usize = 16 << 20;
/// Maximum number of characters of a body or an event that a failure quotes.
const EXCERPT: usize = 200;

/// The fields of a completion chunk (one event of a response) that are parsed; others are skipped.
#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    usage: Option<UsageField>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    finish_reason: Option<Text<'a>>,
}

/// The new output in an event. Reasoning, refusals and tool calls count as output; servers use two
/// names for reasoning.
#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Text<'a>>,
    #[serde(borrow)]
    reasoning_content: Option<Text<'a>>,
    #[serde(borrow)]
    reasoning: Option<Text<'a>>,
    #[serde(borrow)]
    refusal: Option<Text<'a>>,
    tool_calls: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
struct UsageField {
    prompt_tokens: Option<Count>,
    completion_tokens: Option<Count>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<Count>,
}

impl Choice<'_> {
    fn texts(&self) -> impl Iterator<Item = &str> {
        let delta = self.delta.as_ref();
        let thought = delta.and_then(|d| d.reasoning_content.as_ref().or(d.reasoning.as_ref()));
        let said = delta.and_then(|d| d.content.as_ref());
        let refused = delta.and_then(|d| d.refusal.as_ref());
        let parts = [thought, said, refused, self.text.as_ref()];
        parts.into_iter().flatten().map(|text| text.0.as_ref())
    }

    /// Whether the event has output, or ends the response. A role alone or an empty text is not
    /// output.
    fn has_output(&self) -> bool {
        let delta = self.delta.as_ref();
        let calls = delta.and_then(|d| d.tool_calls.as_ref());
        self.texts().any(|text| !text.is_empty())
            || calls.is_some_and(|calls| !calls.is_empty())
            || self.finish_reason.is_some()
    }
}

/// Fills a record from a response's event stream.
pub(crate) struct Answer<'r> {
    record: &'r mut Record,
    reader: EventReader,
    start: Instant,
    keep_text: bool,
    done: bool,
}

impl<'r> Answer<'r> {
    pub(crate) fn new(record: &'r mut Record, start: Instant, keep_text: bool) -> Self {
        Self {
            record,
            reader: EventReader::new(EVENT_LIMIT),
            start,
            keep_text,
            done: false,
        }
    }

    /// Whether `[DONE]` has been received.
    pub(crate) fn done(&self) -> bool {
        self.done
    }

    /// Parses bytes received at time `at`. Returns the number of new events whose times count.
    pub(crate) fn take(&mut self, bytes: &Bytes, at: Instant) -> Result<usize, Failure> {
        let before = self.record.event_times.len();
        let seconds = at.saturating_duration_since(self.start).as_secs_f64();
        let mut sink = EventSink {
            record: self.record,
            done: &mut self.done,
            keep_text: self.keep_text,
            seconds,
        };
        self.reader.push(bytes.clone());
        for event in &mut self.reader {
            sink.event(&event)?;
        }
        let checked = self.reader.check();
        checked.map_err(|error| Failure::malformed(error.to_string()))?;
        Ok(self.record.event_times.len() - before)
    }

    /// Decides the outcome of a response, after the end of its body or `[DONE]`.
    pub(crate) fn judge(self) {
        let must = i64::from(self.record.must_produce);
        let produced = self.record.usage.completion;
        if self.record.finish.is_empty() {
            let detail = "the stream ended without a finish_reason";
            self.record.fail(Failure::no_finish(detail));
        } else if !self.done {
            let detail = "the stream ended without [DONE], after a finish_reason";
            self.record.fail(Failure::no_finish(detail));
        } else if (0..must).contains(&produced) {
            let detail = format!(
                "{produced} tokens of {must}, finish_reason {}",
                self.record.finish
            );
            self.record.fail(Failure::short(detail));
        }
    }
}

/// Records the events of one read; all get the time of that read.
struct EventSink<'a> {
    record: &'a mut Record,
    done: &'a mut bool,
    keep_text: bool,
    seconds: f64,
}

impl EventSink<'_> {
    fn event(&mut self, event: &Event) -> Result<(), Failure> {
        let Some(data) = event.data().filter(|_| !*self.done) else {
            return Ok(());
        };
        if data.trim_ascii_end() == b"[DONE]" {
            *self.done = true;
            return Ok(());
        }
        if event.name() == b"error" {
            self.record.fail(Failure::error_event(error_text(&data)));
            return Ok(());
        }
        let chunk: Chunk<'_> = serde_json::from_slice(&data).map_err(|error| {
            let quoted = excerpt(&data);
            Failure::malformed(format!(
                "event is not a completion chunk: {error}: {quoted}"
            ))
        })?;
        self.chunk(&chunk);
        Ok(())
    }

    fn chunk(&mut self, chunk: &Chunk<'_>) {
        if let Some(error) = chunk.error {
            let message = error_message(error.get().as_bytes());
            self.record.fail(Failure::error_event(message));
        }
        if let Some(usage) = &chunk.usage {
            self.usage(usage);
        }
        let choices = chunk.choices.as_deref().unwrap_or_default();
        // servers send the role before the first token exists, so an event before the first output
        // does not count
        let begun = !self.record.event_times.is_empty();
        if !choices.is_empty() && (begun || choices.iter().any(Choice::has_output)) {
            self.record.event_times.push(self.seconds);
        }
        self.choices(choices);
    }

    fn choices(&mut self, choices: &[Choice<'_>]) {
        let mut has_text = false;
        for choice in choices {
            for text in choice.texts() {
                has_text |= !text.is_empty();
                if self.keep_text {
                    self.record.text.push_str(text);
                }
            }
            if let Some(Text(finish)) = &choice.finish_reason {
                self.finish(finish);
            }
        }
        self.record.text_events += u32::from(has_text);
    }

    fn finish(&mut self, reason: &str) {
        reason.clone_into(&mut self.record.finish);
        if matches!(reason, "error" | "abort") {
            let failure = Failure::error_event(format!("finish_reason {reason}"));
            self.record.fail(failure);
        }
    }

    fn usage(&mut self, reported: &UsageField) {
        let known = &mut self.record.usage;
        let details = reported.prompt_tokens_details.as_ref();
        let set = |known: &mut i64, reported: Option<Count>| {
            if let Some(Count(count)) = reported {
                *known = count;
            }
        };
        set(&mut known.prompt, reported.prompt_tokens);
        set(&mut known.completion, reported.completion_tokens);
        set(&mut known.cached, details.and_then(|d| d.cached_tokens));
    }
}

/// The failure of a response that is one JSON document in place of a stream.
pub(crate) fn single_document(body: &[u8]) -> Failure {
    #[derive(Deserialize)]
    struct Document<'a> {
        #[serde(borrow)]
        error: Option<&'a RawValue>,
    }
    let document: Result<Document<'_>, _> = serde_json::from_slice(body);
    match document {
        Ok(Document { error: Some(error) }) => {
            Failure::error_event(error_message(error.get().as_bytes()))
        }
        _ => Failure::malformed(format!(
            "one document instead of an event stream: {}",
            excerpt(body)
        )),
    }
}

/// The message in the data of an `error` event, which is `{"error": ...}`, the error itself, or
/// plain text.
fn error_text(data: &[u8]) -> String {
    #[derive(Deserialize)]
    struct ErrorEnvelope<'a> {
        #[serde(borrow)]
        error: &'a RawValue,
    }
    match serde_json::from_slice::<ErrorEnvelope<'_>>(data) {
        Ok(wrapped) => error_message(wrapped.error.get().as_bytes()),
        Err(_) => error_message(data),
    }
}

/// The message of an error in OpenAI's format: `{"message": "..."}`, a string, or other JSON as
/// text.
fn error_message(error: &[u8]) -> String {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Object { message: String },
        Text(String),
    }
    match serde_json::from_slice(error) {
        Ok(Form::Object { message } | Form::Text(message)) => message,
        Err(_) => excerpt(error),
    }
}

/// The start of a response, as one line of text.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(EXCERPT * 4)];
    let text = String::from_utf8_lossy(start);
    let line = text.trim().chars().take(EXCERPT);
    line.map(|c| if c.is_control() { ' ' } else { c }).collect()
}
