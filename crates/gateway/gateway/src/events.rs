//! The events of a server-sent event (SSE) stream, and the text of each choice in an event or a
//! whole response.

use std::borrow::Cow;

use penstock_api_types::sse_reader::{Event, EventReader};
use serde_json::Value;

/// Maximum size of one event in bytes. A stream with a larger event is aborted.
const MOST_EVENT: usize = 4 << 20;

/// A reader that splits one stream into events.
pub(crate) fn reader() -> EventReader {
    EventReader::new(MOST_EVENT)
}

/// The data of an event, without white space at its ends; `None` if the event has none.
pub(crate) fn data(event: &Event) -> Option<Cow<'_, [u8]>> {
    Some(match event.data()? {
        Cow::Borrowed(data) => data.trim_ascii().into(),
        Cow::Owned(data) => data.trim_ascii().to_vec().into(),
    })
}

/// The JSON values in an event's data. The protocols specify one value, but some servers send one
/// value on each line.
pub(crate) fn values(data: &[u8]) -> impl Iterator<Item = Value> {
    let values = serde_json::Deserializer::from_slice(data).into_iter();
    values.map_while(Result::ok)
}

/// The text and finish reasons in an event or in a whole response.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct EventContent {
    pub(crate) texts: Vec<(u64, String)>,
    /// Pairs of a choice's index and its finish reason.
    pub(crate) finishes: Vec<(u64, String)>,
    /// Whether the event or response is an error.
    pub(crate) failed: bool,
}

impl EventContent {
    /// Extracts the content of `value` for every text API: chat completions, completions, Anthropic
    /// messages, responses. Reasoning and the arguments of tool calls count as text.
    pub(crate) fn of(value: &Value) -> Self {
        let mut said = Self {
            failed: !value["error"].is_null(),
            ..Self::default()
        };
        match value["choices"].as_array() {
            Some(choices) => choices.iter().for_each(|one| said.choice(one)),
            None => said.other(value),
        }
        said
    }

    fn choice(&mut self, choice: &Value) {
        let index = choice["index"].as_u64().unwrap_or(0);
        self.text(index, &choice["text"]);
        for message in [&choice["delta"], &choice["message"]] {
            for name in ["reasoning_content", "reasoning", "content", "refusal"] {
                self.text(index, &message[name]);
            }
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                self.text(index, &call["function"]["name"]);
                self.text(index, &call["function"]["arguments"]);
            }
        }
        self.finish(index, &choice["finish_reason"]);
    }

    /// Reads Anthropic messages and OpenAI responses, which have a single choice.
    fn other(&mut self, value: &Value) {
        let kind = value["type"].as_str().unwrap_or_default();
        self.failed |= matches!(kind, "error" | "response.failed");
        // a `.done` event repeats the text of its deltas
        if kind.ends_with(".done") {
            return;
        }
        if kind.ends_with(".delta") {
            self.text(0, &value["delta"]);
        }
        if matches!(kind, "response.completed" | "response.incomplete") {
            self.finishes.push((0, kind.to_owned()));
            return;
        }
        self.text(0, &value["content_block"]["name"]);
        self.block(&value["delta"]);
        self.finish(0, &value["delta"]["stop_reason"]);
        self.finish(0, &value["stop_reason"]);
        let items = value["output"].as_array().into_iter().flatten();
        for item in items.chain([value]) {
            self.block(item);
            for block in item["content"].as_array().into_iter().flatten() {
                self.block(block);
            }
        }
        if value["output"].is_array() {
            self.finish(0, &value["status"]);
        }
    }

    fn block(&mut self, block: &Value) {
        for name in ["name", "thinking", "text", "partial_json", "arguments"] {
            self.text(0, &block[name]);
        }
        if block["input"].is_object() {
            self.texts.push((0, block["input"].to_string()));
        }
    }

    fn text(&mut self, choice: u64, text: &Value) {
        if let Some(text) = text.as_str().filter(|text| !text.is_empty()) {
            self.texts.push((choice, text.to_owned()));
        }
    }

    fn finish(&mut self, choice: u64, reason: &Value) {
        if let Some(reason) = reason.as_str() {
            self.finishes.push((choice, reason.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_lines_of_data_are_one_text() {
        let of = |event: &'static str| data(&Event::new(event)).map(Cow::into_owned);
        assert_eq!(of(": a\nevent: x\n\n"), None);
        assert_eq!(of("data:\n\n").unwrap(), b"");
        assert_eq!(of("id: 1\ndata: a \n\n").unwrap(), b"a");
        assert_eq!(of("data: a\r\nid: 1\r\ndata:b\r\n\r\n").unwrap(), b"a\nb");
        let values = |data: &str| super::values(data.as_bytes()).collect::<Vec<_>>();
        assert_eq!(values("{\"a\":\n1}"), [json!({"a": 1})]);
        assert_eq!(values("{}\n[1]"), [json!({}), json!([1])]);
        assert_eq!(values("{} {"), [json!({})]);
        assert!(values("[DONE]").is_empty());
    }

    /// The texts of all events, joined, and the finish reasons.
    fn joined(values: &[Value]) -> (String, Vec<String>) {
        let said: Vec<EventContent> = values.iter().map(EventContent::of).collect();
        assert!(said.iter().all(|one| !one.failed));
        let texts = said.iter().flat_map(|one| &one.texts);
        let ends = said.iter().flat_map(|one| &one.finishes);
        (
            texts.map(|(_, text)| text.as_str()).collect(),
            ends.map(|(_, reason)| reason.clone()).collect(),
        )
    }

    #[test]
    fn every_api_says_its_text_once() {
        let delta = |delta: Value, finish: Value| {
            let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
            json!({"choices": [choice]})
        };
        let call = json!({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]});
        let chat = [
            delta(json!({"role": "assistant", "content": ""}), Value::Null),
            delta(json!({"reasoning_content": "hm"}), Value::Null),
            delta(json!({"content": "a"}), Value::Null),
            delta(call, "stop".into()),
            json!({"choices": [], "usage": {"prompt_tokens": 1}}),
        ];
        assert_eq!(joined(&chat), ("hmaf{}".into(), vec!["stop".into()]));
        let messages = [
            json!({"type": "message_start", "message": {"content": []}}),
            json!({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}),
            json!({"type": "content_block_delta", "delta": {"partial_json": "{}"}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
        ];
        assert_eq!(joined(&messages), ("a{}".into(), vec!["end_turn".into()]));
        let whole = json!({"type": "message", "stop_reason": "end_turn",
                           "content": [{"type": "text", "text": "a"}]});
        assert_eq!(joined(&[whole]), ("a".into(), vec!["end_turn".into()]));
        let output =
            json!([{"type": "message", "content": [{"type": "output_text", "text": "a"}]}]);
        let whole = json!({"object": "response", "status": "completed", "output": output});
        let responses = [
            json!({"type": "response.output_text.delta", "delta": "a"}),
            json!({"type": "response.output_text.done", "text": "a"}),
            json!({"type": "response.content_part.done", "part": {"text": "a"}, "text": "a"}),
            json!({"type": "response.function_call_arguments.delta", "delta": "{}"}),
            json!({"type": "response.function_call_arguments.done", "name": "f",
                   "arguments": "{}"}),
            json!({"type": "response.completed", "response": whole}),
        ];
        let (text, ends) = joined(&responses);
        assert_eq!(text, "a{}");
        assert_eq!(ends, ["response.completed"]);
        assert_eq!(joined(&[whole]), ("a".into(), vec!["completed".into()]));
        let completion = json!({"choices": [{"index": 1, "text": "b", "finish_reason": null}]});
        assert_eq!(EventContent::of(&completion).texts, [(1, "b".to_owned())]);
        assert!(EventContent::of(&json!({"error": {"message": "no"}})).failed);
        assert!(EventContent::of(&json!({"type": "response.failed"})).failed);
    }
}
