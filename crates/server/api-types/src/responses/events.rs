//! Writes an answer of `/v1/responses`: the typed events of a stream, or the whole response.

use bytes::BytesMut;
use serde::Serialize;
use serde_json::Value;

use super::body::{Body, Echo, Head, Incomplete, Item, Status};
use crate::error::ApiError;
use crate::event::named;
use crate::{FinishReason, TokenLogprob, Usage};

/// Writer of one response: turns parts of the output into events.
pub struct ResponseWriter {
    head: Head,
    /// Suffix of all item ids, from the response's id.
    suffix: String,
    started: bool,
    events: u64,
    done: Vec<Value>,
    open: Option<Open>,
}

/// The item that is being written.
struct Open {
    id: String,
    index: usize,
    item: Item,
}

/// The members of an event; each kind has some of them.
#[derive(Default, Serialize)]
struct Event<'a> {
    sequence_number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<Body<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a [TokenLogprob]>,
}

impl Open {
    /// An event about the content of this item.
    fn event(&self) -> Event<'_> {
        let has_parts = !matches!(self.item, Item::Call { .. });
        Event {
            item_id: Some(&self.id),
            output_index: Some(self.index),
            content_index: has_parts.then_some(0),
            ..Event::default()
        }
    }

    /// Name and members of the event that repeats the whole text of this item.
    fn end(&self) -> (&'static str, Event<'_>) {
        let mut event = self.event();
        let name = match &self.item {
            Item::Message { text, logprobs } => {
                event.text = Some(text);
                event.logprobs = Some(logprobs);
                "response.output_text.done"
            }
            Item::Reasoning { text } => {
                event.text = Some(text);
                "response.reasoning_text.done"
            }
            Item::Call { arguments, .. } => {
                event.arguments = Some(arguments);
                "response.function_call_arguments.done"
            }
        };
        (name, event)
    }

    /// An event that contains this item.
    fn about(&self, status: Status) -> Event<'_> {
        Event {
            output_index: Some(self.index),
            item: Some(self.item.json(&self.id, status)),
            ..Event::default()
        }
    }
}

impl ResponseWriter {
    /// `id` is `resp_SUFFIX`; the ids of items have the same suffix.
    pub fn new(id: String, created_at: u64, model: String, echo: Echo) -> Self {
        let suffix = id.split_once('_').map_or(&*id, |(_, rest)| rest);
        Self {
            suffix: suffix.to_owned(),
            head: Head::new(id, created_at, model, echo),
            started: false,
            events: 0,
            done: Vec::new(),
            open: None,
        }
    }

    /// Appends text of the answer, with the log-probabilities of its tokens if requested.
    pub fn content(&mut self, out: &mut BytesMut, more: &str, scores: Vec<TokenLogprob>) {
        if !self.is_open(|item| matches!(item, Item::Message { .. })) {
            self.add(out, Item::empty_message());
        }
        let Some(open) = &mut self.open else { return };
        let event = Event {
            delta: Some(more),
            logprobs: Some(&scores),
            ..open.event()
        };
        write(out, &mut self.events, "response.output_text.delta", event);
        if let Item::Message { text, logprobs } = &mut open.item {
            text.push_str(more);
            logprobs.extend(scores);
        }
    }

    /// Appends reasoning text.
    pub fn reasoning(&mut self, out: &mut BytesMut, more: &str) {
        if !self.is_open(|item| matches!(item, Item::Reasoning { .. })) {
            let text = String::new();
            self.add(out, Item::Reasoning { text });
        }
        let Some(open) = &mut self.open else { return };
        let event = Event {
            delta: Some(more),
            ..open.event()
        };
        let name = "response.reasoning_text.delta";
        write(out, &mut self.events, name, event);
        if let Item::Reasoning { text } = &mut open.item {
            text.push_str(more);
        }
    }

    /// Appends the beginning of a tool call; its arguments follow.
    pub fn call(&mut self, out: &mut BytesMut, call_id: &str, name: &str) {
        let call = Item::Call {
            call_id: call_id.to_owned(),
            name: name.to_owned(),
            arguments: String::new(),
        };
        self.add(out, call);
    }

    /// Appends a piece of the last call's arguments, which are JSON text.
    pub fn arguments(&mut self, out: &mut BytesMut, more: &str) {
        let Some(open) = &mut self.open else { return };
        let event = Event {
            delta: Some(more),
            ..open.event()
        };
        let name = "response.function_call_arguments.delta";
        write(out, &mut self.events, name, event);
        if let Item::Call { arguments, .. } = &mut open.item {
            arguments.push_str(more);
        }
    }

    /// Appends the end of the stream, with the whole response.
    pub fn finish(&mut self, out: &mut BytesMut, reason: Option<FinishReason>, usage: &Usage) {
        self.start(out);
        let (name, status) = match reason {
            Some(FinishReason::Length) => ("response.incomplete", Status::Incomplete),
            _ => ("response.completed", Status::Completed),
        };
        if self.open.is_none() && self.done.is_empty() {
            self.add(out, Item::empty_message());
        }
        self.close(out, status);
        self.tell(out, name, status, Some(usage), None);
    }

    /// Appends the end of a response that failed with an error.
    pub fn fail(&mut self, out: &mut BytesMut, error: &ApiError) {
        self.start(out);
        self.close(out, Status::Incomplete);
        self.tell(out, "response.failed", Status::Failed, None, Some(error));
    }

    /// The whole response. To be called after [`Self::finish`], which closes the items.
    pub fn whole(&self, reason: Option<FinishReason>, usage: &Usage) -> Vec<u8> {
        let status = match reason {
            Some(FinishReason::Length) => Status::Incomplete,
            _ => Status::Completed,
        };
        // Plain data with string keys always serialises.
        serde_json::to_vec(&self.body(status, Some(usage), None)).unwrap_or_default()
    }

    fn is_open(&self, kind: impl Fn(&Item) -> bool) -> bool {
        self.open.as_ref().is_some_and(|open| kind(&open.item))
    }

    fn start(&mut self, out: &mut BytesMut) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        for name in ["response.created", "response.in_progress"] {
            self.tell(out, name, Status::InProgress, None, None);
        }
    }

    fn add(&mut self, out: &mut BytesMut, item: Item) {
        self.start(out);
        self.close(out, Status::Completed);
        let index = self.done.len();
        let id = format!("{}_{}_{index}", item.prefix(), self.suffix);
        let open = self.open.insert(Open { id, index, item });
        let events = &mut self.events;
        let added = open.about(Status::InProgress);
        write(out, events, "response.output_item.added", added);
        if let Some(part) = open.item.part() {
            let event = Event {
                part: Some(part),
                ..open.event()
            };
            write(out, events, "response.content_part.added", event);
        }
    }

    fn close(&mut self, out: &mut BytesMut, status: Status) {
        let Some(open) = self.open.take() else { return };
        let events = &mut self.events;
        let (name, event) = open.end();
        write(out, events, name, event);
        if let Some(part) = open.item.part() {
            let event = Event {
                part: Some(part),
                ..open.event()
            };
            write(out, events, "response.content_part.done", event);
        }
        write(out, events, "response.output_item.done", open.about(status));
        self.done.push(open.item.json(&open.id, status));
    }

    /// Appends an event with the current state of the whole response.
    fn tell(
        &mut self,
        out: &mut BytesMut,
        name: &str,
        status: Status,
        usage: Option<&Usage>,
        error: Option<&ApiError>,
    ) {
        let mut events = self.events;
        let event = Event {
            response: Some(self.body(status, usage, error)),
            ..Event::default()
        };
        write(out, &mut events, name, event);
        self.events = events;
    }

    fn body<'a>(
        &'a self,
        status: Status,
        usage: Option<&Usage>,
        error: Option<&'a ApiError>,
    ) -> Body<'a> {
        let incomplete = status == Status::Incomplete;
        Body {
            head: &self.head,
            status,
            error: error.map(Into::into),
            incomplete_details: incomplete.then_some(Incomplete {
                reason: "max_output_tokens",
            }),
            output: &self.done,
            usage: usage.map(Into::into),
        }
    }
}

fn write(out: &mut BytesMut, events: &mut u64, name: &str, mut event: Event<'_>) {
    event.sequence_number = *events;
    *events += 1;
    named(out, name, &event);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ResponsesRequest;

    fn writer() -> ResponseWriter {
        let echo = ResponsesRequest::parse(br#"{"input":"hi"}"#).unwrap().echo;
        ResponseWriter::new("resp_7".into(), 5, "m".into(), echo)
    }

    /// Names and data of the events in `out`. The data must repeat the name as `type`.
    fn events(out: &BytesMut) -> Vec<(String, Value)> {
        let text = std::str::from_utf8(out).unwrap();
        let event = |event: &str| {
            let (name, data) = event.split_once('\n').unwrap();
            let name = name.strip_prefix("event: ").unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(data["type"], name);
            (name.to_owned(), data)
        };
        text.split_terminator("\n\n").map(event).collect()
    }

    #[test]
    fn a_stream_with_everything() {
        let (mut writer, mut out) = (writer(), BytesMut::new());
        writer.reasoning(&mut out, "h");
        writer.reasoning(&mut out, "m");
        writer.content(&mut out, "a", Vec::new());
        writer.call(&mut out, "call_1", "f");
        writer.arguments(&mut out, "{}");
        writer.call(&mut out, "call_2", "g");
        writer.finish(&mut out, Some(FinishReason::Stop), &Usage::default());
        let events = events(&out);
        let names: Vec<&str> = events
            .iter()
            .map(|(name, _)| name.strip_prefix("response.").unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "created",
                "in_progress",
                "output_item.added",
                "content_part.added",
                "reasoning_text.delta",
                "reasoning_text.delta",
                "reasoning_text.done",
                "content_part.done",
                "output_item.done",
                "output_item.added",
                "content_part.added",
                "output_text.delta",
                "output_text.done",
                "content_part.done",
                "output_item.done",
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
                "output_item.added",
                "function_call_arguments.done",
                "output_item.done",
                "completed",
            ]
        );
        for (number, (_, data)) in events.iter().enumerate() {
            assert_eq!(data["sequence_number"], number);
        }
        let last = &events.last().unwrap().1["response"];
        assert_eq!(last["status"], "completed");
        let done: Vec<Value> = events
            .iter()
            .filter(|(name, _)| name == "response.output_item.done")
            .map(|(_, data)| data["item"].clone())
            .collect();
        assert_eq!(last["output"], Value::from(done));
        assert_eq!(last["output"][0]["content"][0]["text"], "hm");
        assert_eq!(last["output"][1]["id"], "msg_7_1");
        assert_eq!(last["output"][2]["arguments"], "{}");
        assert_eq!(last["output"][3]["call_id"], "call_2");
    }

    #[test]
    fn an_end_by_length_is_incomplete_and_an_error_a_failure() {
        let (mut writing, mut out) = (writer(), BytesMut::new());
        writing.content(&mut out, "a", Vec::new());
        writing.finish(&mut out, Some(FinishReason::Length), &Usage::default());
        let (name, data) = events(&out).pop().unwrap();
        assert_eq!(name, "response.incomplete");
        let reason = &data["response"]["incomplete_details"]["reason"];
        assert_eq!(reason, "max_output_tokens");
        assert_eq!(data["response"]["output"][0]["status"], "incomplete");
        let whole = writing.whole(Some(FinishReason::Length), &Usage::default());
        let whole: Value = serde_json::from_slice(&whole).unwrap();
        assert_eq!(whole, data["response"]);
        let (mut failing, mut out) = (writer(), BytesMut::new());
        failing.content(&mut out, "a", Vec::new());
        failing.fail(&mut out, &ApiError::engine_failed("killed"));
        let (name, data) = events(&out).pop().unwrap();
        assert_eq!(name, "response.failed");
        assert_eq!(data["response"]["error"]["code"], "server_error");
        assert_eq!(data["response"]["status"], "failed");
    }

    #[test]
    fn no_output_is_an_empty_message() {
        let (mut writer, mut out) = (writer(), BytesMut::new());
        writer.finish(&mut out, Some(FinishReason::Stop), &Usage::default());
        let (_, data) = events(&out).pop().unwrap();
        assert_eq!(data["response"]["output"][0]["content"][0]["text"], "");
    }
}
