//! Failover by text, for servers that do not mark their streams.
//!
//! The text so far becomes the end of the prompt for the next replica. Its events continue the
//! first stream: they keep the first id, time and model, repeat no role, and count the usage of
//! both replicas. The bounds of tokens in the text are unknown, so this is not exact
//! (docs/gateway-reference.md).

use axum::body::Bytes;
use serde_json::{Map, Value, json};

use crate::events::data;

const CHATS: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const DONE: &[u8] = b"[DONE]";
/// Bytes of a text that another replica may get; it is longer than any context.
const MOST_TEXT: usize = 4 << 20;
/// Members of all events of one answer.
const SAME: [&str; 3] = ["id", "created", "model"];
/// Members with which a text says too little, or another prompt is needed.
const UNFIT: [&str; 21] = [
    "tools",
    "functions",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "regex",
    "ebnf",
    "grammar",
    "echo",
    "suffix",
    "use_beam_search",
    "continue_final_message",
    "prompt_embeds",
    "resume",
];

/// The stream of one answer, from one replica or several.
#[derive(Debug)]
pub(crate) struct Continued {
    is_chat: bool,
    text: String,
    /// Tokens of it: by usage where events have it, else the events with text.
    tokens: u64,
    /// Those of replicas before this one.
    before: u64,
    prompt_tokens: Option<u64>,
    /// The members [`SAME`] of the first event.
    same: Map<String, Value>,
    /// The role has been said.
    has_role: bool,
    /// Another replica goes on: its events are rewritten.
    is_rewritten: bool,
    /// Choices of the answer, and those that have ended.
    choices: u64,
    finished: u64,
    /// The replica says that it cannot go on, and how.
    last_words: Option<Vec<u8>>,
    /// The answer holds more than a text: tool calls, log probabilities, several choices.
    is_unfit: bool,
}

impl Continued {
    /// For an answer of `choices` to a request at `path`, where it may be continued.
    pub(crate) fn of(path: &str, choices: u64) -> Option<Self> {
        [CHATS, COMPLETIONS].contains(&path).then(|| Self {
            is_chat: path == CHATS,
            text: String::new(),
            tokens: 0,
            before: 0,
            prompt_tokens: None,
            same: Map::new(),
            has_role: false,
            is_rewritten: false,
            choices,
            finished: 0,
            last_words: None,
            is_unfit: false,
        })
    }

    /// Whether every choice has ended.
    fn has_finished(&self) -> bool {
        self.finished >= self.choices
    }

    /// Takes a whole event of the replica; adds to `out` what the client gets of it.
    pub(crate) fn pass(&mut self, event: Bytes, out: &mut Vec<Bytes>) {
        if let Some(words) = &mut self.last_words {
            words.extend_from_slice(&event);
            return;
        }
        let data = data(&event);
        let value = data.as_deref().map(serde_json::from_slice);
        match value.and_then(Result::ok) {
            Some(Value::Object(value)) if is_error(&value) && !self.has_finished() => {
                self.last_words = Some(event.into());
            }
            Some(Value::Object(value)) => out.extend(self.event(event, value)),
            _ if self.is_rewritten && data.as_deref() != Some(DONE) => {}
            _ => out.push(event),
        }
    }

    /// What is left at the end of the replica's bytes.
    pub(crate) fn rest(&mut self) -> Vec<Bytes> {
        self.last_words
            .take()
            .map(Bytes::from)
            .into_iter()
            .collect()
    }

    /// Whether the replica itself says that it cannot go on.
    pub(crate) fn failed(&self) -> bool {
        self.last_words.is_some()
    }

    /// The replica broke off: the body for another one, `None` where the answer cannot go on; and
    /// what the client gets if there is no other.
    pub(crate) fn broken(&mut self, body: &[u8]) -> (Option<Bytes>, Bytes) {
        let words = self.last_words.take().unwrap_or_default();
        if self.has_finished() {
            return (None, Bytes::from_static(b"data: [DONE]\n\n"));
        }
        let Some(mut request) = self.fit(body) else {
            return (None, words.into());
        };
        if !self.shorten(&mut request) {
            return (None, self.full());
        }
        if !self.text.is_empty() {
            self.lengthen(&mut request);
        }
        (
            Some(Value::Object(request).to_string().into()),
            words.into(),
        )
    }

    /// Another replica goes on from here.
    pub(crate) fn moved(&mut self) {
        self.is_rewritten = true;
        self.before = self.tokens;
    }

    /// Notes what an event says; as the client gets it, if it does.
    fn event(&mut self, event: Bytes, mut value: Map<String, Value>) -> Option<Bytes> {
        if self.same.is_empty() {
            let members = SAME
                .into_iter()
                .filter_map(|name| value.get_key_value(name));
            self.same = members
                .map(|(name, one)| (name.clone(), one.clone()))
                .collect();
        }
        let said = self.note_choices(&mut value);
        let usage = self.note_usage(&mut value);
        if !self.is_rewritten {
            return Some(event);
        }
        if !said && !usage {
            return None;
        }
        for (name, one) in &self.same {
            value.insert(name.clone(), one.clone());
        }
        Some(format!("data: {}\n\n", Value::Object(value)).into())
    }

    /// Whether the choices hold anything new for the client.
    fn note_choices(&mut self, value: &mut Map<String, Value>) -> bool {
        let mut said = false;
        let choices = value.get_mut("choices").and_then(Value::as_array_mut);
        for choice in choices.into_iter().flatten() {
            self.is_unfit |= choice["index"].as_u64().is_some_and(|index| index > 0);
            self.is_unfit |= !choice["logprobs"].is_null();
            if !choice["finish_reason"].is_null() {
                self.finished += 1;
                said = true;
            }
            if let Some(delta) = choice.get_mut("delta") {
                said |= self.note_role(delta);
            }
            let text = match self.is_chat {
                true => self.note_delta(&choice["delta"]),
                false => choice["text"].as_str().unwrap_or_default().to_owned(),
            };
            if !text.is_empty() {
                self.is_unfit |= self.text.len() > MOST_TEXT;
                if !self.is_unfit {
                    self.text.push_str(&text);
                }
                self.tokens += 1;
                said = true;
            }
        }
        said || self.is_unfit
    }

    /// Whether the role is said, for the first time: later it is taken out.
    fn note_role(&mut self, delta: &mut Value) -> bool {
        let Some(delta) = delta.as_object_mut() else {
            return false;
        };
        let is_said = delta.get("role").is_some_and(says);
        if is_said && self.has_role && self.is_rewritten {
            delta.shift_remove("role");
            return false;
        }
        self.has_role |= is_said;
        is_said
    }

    fn note_delta(&mut self, delta: &Value) -> String {
        let Some(delta) = delta.as_object() else {
            return String::new();
        };
        let others = delta
            .iter()
            .filter(|(name, _)| *name != "role" && *name != "content");
        self.is_unfit |= others.into_iter().any(|(_, value)| says(value));
        let content = delta.get("content").and_then(Value::as_str);
        content.unwrap_or_default().to_owned()
    }

    /// Whether the event has a usage; it becomes that of all replicas.
    fn note_usage(&mut self, value: &mut Map<String, Value>) -> bool {
        let Some(usage) = value.get_mut("usage").and_then(Value::as_object_mut) else {
            return false;
        };
        let count =
            |usage: &Map<String, Value>, name: &str| usage.get(name).and_then(Value::as_u64);
        let prompt = count(usage, "prompt_tokens").unwrap_or_default();
        let completion = count(usage, "completion_tokens").unwrap_or_default();
        self.tokens = self.before + completion;
        let prompt = *self
            .prompt_tokens
            .get_or_insert(prompt.saturating_sub(self.before));
        usage.insert("prompt_tokens".to_owned(), prompt.into());
        usage.insert("completion_tokens".to_owned(), self.tokens.into());
        usage.insert("total_tokens".to_owned(), (prompt + self.tokens).into());
        true
    }

    /// The request, if its answer can go on by its text.
    fn fit(&self, body: &[u8]) -> Option<Map<String, Value>> {
        let request: Map<String, Value> = serde_json::from_slice(body).ok()?;
        let one = |name: &str| request.get(name).is_none_or(|n| n.is_null() || *n == 1);
        let unfit = |name: &&str| request.get(*name).is_some_and(demands);
        let prompt = match self.is_chat {
            true => request.get("messages")?.is_array() && !is_false(&request),
            // without the member each server has a bound of its own
            false => request.get("prompt")?.is_string() && request.get("max_tokens")?.is_u64(),
        };
        let fits = prompt && one("n") && one("best_of") && !UNFIT.iter().any(unfit);
        (fits && !self.is_unfit).then_some(request)
    }

    /// Takes the tokens so far off the bounds; false where none is left.
    fn shorten(&self, request: &mut Map<String, Value>) -> bool {
        for name in ["max_tokens", "max_completion_tokens", "min_tokens"] {
            let Some(bound) = request.get_mut(name) else {
                continue;
            };
            let Some(tokens) = bound.as_u64() else {
                continue;
            };
            if name != "min_tokens" && tokens <= self.tokens {
                return false;
            }
            *bound = tokens.saturating_sub(self.tokens).into();
        }
        true
    }

    /// Makes the text so far the end of the prompt.
    fn lengthen(&self, request: &mut Map<String, Value>) {
        if let Some(Value::String(prompt)) = request.get_mut("prompt").filter(|_| !self.is_chat) {
            prompt.push_str(&self.text);
        }
        if let Some(Value::Array(messages)) = request.get_mut("messages").filter(|_| self.is_chat) {
            messages.push(json!({"role": "assistant", "content": self.text}));
            request.insert("continue_final_message".to_owned(), true.into());
            request.insert("add_generation_prompt".to_owned(), false.into());
        }
    }

    /// The end of an answer that is as long as it may be.
    fn full(&self) -> Bytes {
        let mut event = self.same.clone();
        let mut choice = json!({"index": 0, "finish_reason": "length"});
        let object = match self.is_chat {
            true => {
                choice["delta"] = json!({});
                "chat.completion.chunk"
            }
            false => {
                choice["text"] = "".into();
                "text_completion"
            }
        };
        event.insert("object".to_owned(), object.into());
        event.insert("choices".to_owned(), json!([choice]));
        format!("data: {}\n\ndata: [DONE]\n\n", Value::Object(event)).into()
    }
}

fn is_error(event: &Map<String, Value>) -> bool {
    event.get("error").is_some_and(|error| !error.is_null())
}

fn is_false(request: &Map<String, Value>) -> bool {
    request.get("add_generation_prompt") == Some(&Value::Bool(false))
}

/// Whether a member of a delta has content.
fn says(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        _ => true,
    }
}

/// Whether a member of a request has an effect.
fn demands(value: &Value) -> bool {
    match value {
        Value::Bool(asked) => *asked,
        Value::Number(count) => count.as_u64() != Some(0),
        Value::Object(format) => format.get("type") != Some(&"text".into()),
        other => says(other),
    }
}
