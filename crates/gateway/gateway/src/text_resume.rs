//! Failover by text, for streams without resume markers, from servers other than Penstock.
//!
//! The next replica gets the request with the text so far appended to the prompt. That replica's
//! events are rewritten so that they continue the first stream: same id, time and model, no second
//! role, and the usage of both replicas. The token boundaries of the text so far are unknown, so
//! the result is not exact (docs/gateway-reference.md).

use axum::body::Bytes;
use penstock_api_types::sse_reader::Event;
use serde_json::{Map, Value, json};

use crate::events::{data, values};

const CHATS: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const DONE: &[u8] = b"[DONE]";
/// Maximum length in bytes of the text that is kept; longer than any model's context.
const MOST_TEXT: usize = 4 << 20;
/// Members that must be equal in all events of one response.
const SAME: [&str; 3] = ["id", "created", "model"];
/// Members of a request that exclude resumption from the text.
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

/// State of one response's stream, from one or several replicas.
#[derive(Debug)]
pub(crate) struct Continued {
    is_chat: bool,
    text: String,
    /// Number of tokens in `text`: from `usage` if events have it, else the number of events with
    /// text.
    tokens: u64,
    /// Number of these tokens that came from earlier replicas.
    before: u64,
    prompt_tokens: Option<u64>,
    /// The members [`SAME`] of the first event.
    same: Map<String, Value>,
    /// Whether the client has received the role.
    has_role: bool,
    /// Whether events are rewritten, because another replica has taken over.
    is_rewritten: bool,
    /// Number of the response's choices, and of those that have finished.
    choices: u64,
    finished: u64,
    /// The events in which the replica reports that it cannot continue.
    last_words: Option<Vec<u8>>,
    /// Whether the response has more than text: tool calls, log probabilities, several choices.
    is_unfit: bool,
}

impl Continued {
    /// For a response with `choices` to a request at `path`; `None` if its endpoint is not
    /// supported.
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

    /// Processes an event from the replica; appends the client's version of it to `out`.
    pub(crate) fn pass(&mut self, event: Event, out: &mut Vec<Event>) {
        if let Some(words) = &mut self.last_words {
            words.extend_from_slice(event.bytes());
            return;
        }
        let (objects, is_done) = {
            let data = data(&event);
            let values = data.iter().flat_map(|data| values(data));
            let objects: Vec<_> = values.filter_map(object).collect();
            (objects, data.as_deref() == Some(DONE))
        };
        if objects.iter().any(is_error) && !self.has_finished() {
            self.last_words = Some(event.bytes().to_vec());
            return;
        }
        let is_rewritten = self.is_rewritten && !is_done;
        let rewritten: Vec<Event> = objects
            .into_iter()
            .filter_map(|value| self.rewritten(value))
            .collect();
        match is_rewritten {
            true => out.extend(rewritten),
            false => out.push(event),
        }
    }

    /// The events that are still held back when the replica's bytes end.
    pub(crate) fn rest(&mut self) -> Vec<Event> {
        self.last_words.take().map(Event::new).into_iter().collect()
    }

    /// Whether the replica has reported that it cannot continue.
    pub(crate) fn failed(&self) -> bool {
        self.last_words.is_some()
    }

    /// Handles a broken stream. Returns the body for another replica, or `None` if the response
    /// cannot be resumed; and the last bytes for the client if the failover fails.
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

    /// Records that another replica has taken over.
    pub(crate) fn moved(&mut self) {
        self.is_rewritten = true;
        self.before = self.tokens;
    }

    /// Records the content of an event. Returns the event that continues the first stream, if
    /// events are rewritten and this one has new content.
    fn rewritten(&mut self, mut value: Map<String, Value>) -> Option<Event> {
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
        if !self.is_rewritten || !(said || usage) {
            return None;
        }
        for (name, one) in &self.same {
            value.insert(name.clone(), one.clone());
        }
        Some(Event::new(format!("data: {}\n\n", Value::Object(value))))
    }

    /// Records the content of an event's choices. Returns whether the choices have new content for
    /// the client.
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

    /// Removes a role that the client already has. Returns whether the delta has the first role.
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

    /// Replaces the event's usage by the sum over all replicas. Returns whether the event has
    /// usage.
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

    /// The parsed request; `None` if its response cannot be resumed from its text.
    fn fit(&self, body: &[u8]) -> Option<Map<String, Value>> {
        let request: Map<String, Value> = serde_json::from_slice(body).ok()?;
        let one = |name: &str| request.get(name).is_none_or(|n| n.is_null() || *n == 1);
        let unfit = |name: &&str| request.get(*name).is_some_and(demands);
        let prompt = match self.is_chat {
            true => request.get("messages")?.is_array() && !is_false(&request),
            // without `max_tokens`, the server's default applies, and servers have different
            // defaults
            false => request.get("prompt")?.is_string() && request.get("max_tokens")?.is_u64(),
        };
        let fits = prompt && one("n") && one("best_of") && !UNFIT.iter().any(unfit);
        (fits && !self.is_unfit).then_some(request)
    }

    /// Subtracts the tokens generated so far from the request's token limits; false if no tokens
    /// are left.
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

    /// Appends the text so far to the request's prompt.
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

    /// The final events of a response that has reached its maximum number of tokens.
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

fn object(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(object) => Some(object),
        _ => None,
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

/// Whether a member of a request differs from the default.
fn demands(value: &Value) -> bool {
    match value {
        Value::Bool(asked) => *asked,
        Value::Number(count) => count.as_u64() != Some(0),
        Value::Object(format) => format.get("type") != Some(&"text".into()),
        other => says(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_may_have_several_values() {
        let part =
            |text: &str| format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\"}}]}}");
        let event = Event::new(format!("{}\n{}\n\n", part("a"), part("b")));
        let mut stream = Continued::of(COMPLETIONS, 1).unwrap();
        let mut passed = Vec::new();
        stream.pass(event.clone(), &mut passed);
        let shown = |passed: &[Event]| -> Vec<Bytes> {
            passed.iter().map(|event| event.bytes().clone()).collect()
        };
        assert_eq!(shown(&passed), std::slice::from_ref(event.bytes()));
        assert_eq!(stream.text, "ab");
        stream.moved();
        passed.clear();
        stream.pass(event, &mut passed);
        assert_eq!(shown(&passed), [part("a") + "\n\n", part("b") + "\n\n"]);
        assert_eq!(stream.text, "abab");
    }
}
