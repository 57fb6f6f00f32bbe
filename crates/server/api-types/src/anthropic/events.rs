//! Writes an answer of `/v1/messages`: the events of a streamed message, or the whole message.

use bytes::BytesMut;
use serde_json::{Map, Value, json};

use super::error::fault;
use crate::error::ApiError;
use crate::event::named;
use crate::{FinishReason, StopReason, Usage};

/// Writer of one message: turns parts of the output into events.
pub struct MessageWriter {
    id: String,
    model: String,
    started: bool,
    done: Vec<Block>,
    open: Option<Block>,
}

#[derive(Debug)]
enum Block {
    Text(String),
    Thinking(String),
    Call {
        id: String,
        name: String,
        input: String,
    },
}

impl Block {
    /// The block in `content_block_start`, without its content.
    fn start(&self) -> Value {
        match self {
            Self::Text(_) => json!({"type": "text", "text": ""}),
            Self::Thinking(_) => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Self::Call { id, name, .. } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": {}})
            }
        }
    }

    /// The block in the whole message. If the arguments were cut short and are not valid JSON, the
    /// input is empty.
    fn whole(&self) -> Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Thinking(text) => {
                json!({"type": "thinking", "thinking": text, "signature": ""})
            }
            Self::Call { id, name, input } => {
                let input: Map<String, Value> = serde_json::from_str(input).unwrap_or_default();
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
        }
    }
}

impl MessageWriter {
    /// `id` is `msg_...`.
    pub fn new(id: String, model: String) -> Self {
        Self {
            id,
            model,
            started: false,
            done: Vec::new(),
            open: None,
        }
    }

    /// Appends `message_start`, with the number of prompt tokens. Later calls are no-ops.
    pub fn start(&mut self, out: &mut BytesMut, usage: &Usage) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let message = self.message(Value::Null, Value::Null, usage);
        named(out, "message_start", &json!({"message": message}));
        named(out, "ping", &json!({}));
    }

    /// Appends text of the answer.
    pub fn content(&mut self, out: &mut BytesMut, more: &str) {
        if !matches!(self.open, Some(Block::Text(_))) {
            self.add(out, Block::Text(String::new()));
        }
        self.delta(out, &json!({"type": "text_delta", "text": more}));
        if let Some(Block::Text(text)) = &mut self.open {
            text.push_str(more);
        }
    }

    /// Appends reasoning text.
    pub fn reasoning(&mut self, out: &mut BytesMut, more: &str) {
        if !matches!(self.open, Some(Block::Thinking(_))) {
            self.add(out, Block::Thinking(String::new()));
        }
        self.delta(out, &json!({"type": "thinking_delta", "thinking": more}));
        if let Some(Block::Thinking(text)) = &mut self.open {
            text.push_str(more);
        }
    }

    /// Appends the beginning of a tool call; its arguments follow.
    pub fn call(&mut self, out: &mut BytesMut, id: &str, name: &str) {
        let call = Block::Call {
            id: id.to_owned(),
            name: name.to_owned(),
            input: String::new(),
        };
        self.add(out, call);
    }

    /// Appends a piece of the last call's arguments, which are JSON text.
    pub fn arguments(&mut self, out: &mut BytesMut, more: &str) {
        self.delta(
            out,
            &json!({"type": "input_json_delta", "partial_json": more}),
        );
        if let Some(Block::Call { input, .. }) = &mut self.open {
            input.push_str(more);
        }
    }

    /// Appends the end of the message.
    pub fn finish(&mut self, out: &mut BytesMut, end: &Value, usage: &Usage) {
        self.start(out, usage);
        self.close(out);
        let usage = tokens(usage);
        named(out, "message_delta", &json!({"delta": end, "usage": usage}));
        named(out, "message_stop", &json!({}));
    }

    /// Appends an error event in place of the end of the message.
    pub fn fail(&self, out: &mut BytesMut, error: &ApiError) {
        named(out, "error", &json!({"error": fault(error)}));
    }

    /// The whole message. To be called after [`Self::finish`], which closes the blocks.
    pub fn whole(&self, end: &Value, usage: &Usage) -> Vec<u8> {
        let member = |name: &str| end[name].clone();
        let message = self.message(member("stop_reason"), member("stop_sequence"), usage);
        message.to_string().into_bytes()
    }

    /// Stop reason of a message, for [`Self::finish`] and [`Self::whole`]. `full`: the output was
    /// limited by the context, not by `max_tokens`.
    pub fn end(
        &self,
        reason: Option<FinishReason>,
        stop: Option<&StopReason>,
        full: bool,
    ) -> Value {
        let called = |block: &Block| matches!(block, Block::Call { .. });
        let called = self.done.iter().chain(&self.open).any(called);
        let (reason, sequence) = match (reason, stop) {
            (Some(FinishReason::Length), _) if full => ("model_context_window_exceeded", None),
            (Some(FinishReason::Length), _) => ("max_tokens", None),
            _ if called => ("tool_use", None),
            (_, Some(StopReason::Text(text))) => ("stop_sequence", Some(text)),
            _ => ("end_turn", None),
        };
        json!({"stop_reason": reason, "stop_sequence": sequence})
    }

    fn add(&mut self, out: &mut BytesMut, block: Block) {
        self.close(out);
        let body = json!({"index": self.done.len(), "content_block": block.start()});
        named(out, "content_block_start", &body);
        self.open = Some(block);
    }

    fn delta(&self, out: &mut BytesMut, delta: &Value) {
        let body = json!({"index": self.done.len(), "delta": delta});
        named(out, "content_block_delta", &body);
    }

    fn close(&mut self, out: &mut BytesMut) {
        if let Some(block) = self.open.take() {
            let body = json!({"index": self.done.len()});
            named(out, "content_block_stop", &body);
            self.done.push(block);
        }
    }

    fn message(&self, stop_reason: Value, stop_sequence: Value, usage: &Usage) -> Value {
        let content: Vec<Value> = self.done.iter().map(Block::whole).collect();
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": stop_reason, "stop_sequence": stop_sequence,
            "usage": tokens(usage),
        })
    }
}

/// Anthropic's input tokens exclude cached tokens.
fn tokens(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn events(out: &BytesMut) -> Vec<Value> {
        let text = std::str::from_utf8(out).unwrap();
        let event = |event: &str| {
            let (name, data) = event.split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(data["type"], name.strip_prefix("event: ").unwrap());
            data
        };
        text.split_terminator("\n\n").map(event).collect()
    }

    #[test]
    fn a_stream_with_everything() {
        let usage = Usage {
            prompt_tokens: 9,
            completion_tokens: 4,
            cached_tokens: 3,
            ..Usage::default()
        };
        let mut writer = MessageWriter::new("msg_1".into(), "m".into());
        let mut out = BytesMut::new();
        writer.start(&mut out, &usage);
        writer.reasoning(&mut out, "hm");
        writer.content(&mut out, "a");
        writer.content(&mut out, "b");
        writer.call(&mut out, "t", "f");
        writer.arguments(&mut out, "{\"x\":");
        writer.arguments(&mut out, "1}");
        let end = writer.end(Some(FinishReason::Stop), None, false);
        writer.finish(&mut out, &end, &usage);
        let events = events(&out);
        let names: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "message_start",
                "ping",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "content_block_start",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "content_block_start",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ]
        );
        assert_eq!(events[0]["message"]["usage"]["input_tokens"], 6);
        assert_eq!(events[0]["message"]["content"], json!([]));
        let indices: Vec<_> = events.iter().filter_map(|e| e["index"].as_u64()).collect();
        assert_eq!(indices, [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(events[13]["delta"]["stop_reason"], "tool_use");
        let whole: Value = serde_json::from_slice(&writer.whole(&end, &usage)).unwrap();
        assert_eq!(
            whole["content"],
            json!([
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "ab"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
            ])
        );
    }

    #[test]
    fn stop_reasons() {
        let mut writer = MessageWriter::new("msg_1".into(), "m".into());
        let end = |writer: &MessageWriter, reason, stop: Option<&StopReason>, full| {
            writer.end(Some(reason), stop, full)["stop_reason"].clone()
        };
        let text = StopReason::Text("END".into());
        assert_eq!(end(&writer, FinishReason::Stop, None, false), "end_turn");
        assert_eq!(
            end(&writer, FinishReason::Stop, Some(&text), false),
            "stop_sequence"
        );
        assert_eq!(
            end(&writer, FinishReason::Length, None, false),
            "max_tokens"
        );
        assert_eq!(
            end(&writer, FinishReason::Length, None, true),
            "model_context_window_exceeded"
        );
        writer.call(&mut BytesMut::new(), "t", "f");
        assert_eq!(end(&writer, FinishReason::Stop, None, false), "tool_use");
    }
}
