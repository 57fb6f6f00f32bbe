//! Builds a conversation in chat format from the items or blocks of another protocol.

use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// Builds the messages. Consecutive parts of the assistant (reasoning, text, calls) become one
/// message, as chat templates expect; so do the system messages at the beginning.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    system: Vec<String>,
    messages: Vec<Value>,
    assistant: Option<Assistant>,
}

#[derive(Debug, Default)]
struct Assistant {
    reasoning: Vec<String>,
    text: Option<String>,
    calls: Vec<Value>,
}

impl Conversation {
    pub(crate) fn system(&mut self, text: String) {
        if self.messages.is_empty() && self.assistant.is_none() {
            self.system.push(text);
        } else {
            self.plain("system", text);
        }
    }

    /// Adds text of the user; consecutive turns of the user become one message.
    pub(crate) fn user(&mut self, text: String) {
        self.close();
        match self.messages.last_mut() {
            Some(last) if last["role"] == "user" => {
                if let Some(Value::String(own)) = last.get_mut("content") {
                    append(own, &text);
                }
            }
            _ => self.plain("user", text),
        }
    }

    /// Adds text of the assistant to its last message; begins a new message if that one has tool
    /// calls.
    pub(crate) fn assistant(&mut self, text: String) {
        let calls = |assistant: &Assistant| !assistant.calls.is_empty();
        if self.assistant.as_ref().is_some_and(calls) {
            self.close();
        }
        let assistant = self.assistant.get_or_insert_default();
        match &mut assistant.text {
            Some(own) => append(own, &text),
            none => *none = Some(text),
        }
    }

    /// Adds reasoning of the assistant; begins a new message if the last one already has output.
    pub(crate) fn reasoning(&mut self, text: String) {
        if self.assistant.as_ref().is_some_and(Assistant::has_output) {
            self.close();
        }
        self.assistant.get_or_insert_default().reasoning.push(text);
    }

    /// Adds a tool call of the assistant; `arguments` is JSON text.
    pub(crate) fn call(&mut self, id: &str, name: &str, arguments: &str) {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.assistant.get_or_insert_default().calls.push(call);
    }

    pub(crate) fn result(&mut self, id: &str, text: String) {
        self.close();
        let result = json!({"role": "tool", "tool_call_id": id, "content": text});
        self.messages.push(result);
    }

    /// The messages, and whether the last is the assistant's.
    pub(crate) fn finish(mut self) -> (Vec<Value>, bool) {
        let ends_with_assistant = self.assistant.is_some();
        self.close();
        if !self.system.is_empty() {
            let text = self.system.join("\n\n");
            let system = json!({"role": "system", "content": text});
            self.messages.insert(0, system);
        }
        (self.messages, ends_with_assistant)
    }

    fn plain(&mut self, role: &str, text: String) {
        self.close();
        self.messages.push(json!({"role": role, "content": text}));
    }

    fn close(&mut self) {
        let Some(assistant) = self.assistant.take() else {
            return;
        };
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        message.insert("content".into(), assistant.text.into());
        if !assistant.reasoning.is_empty() {
            let reasoning = assistant.reasoning.join("\n");
            message.insert("reasoning_content".into(), reasoning.into());
        }
        if !assistant.calls.is_empty() {
            message.insert("tool_calls".into(), assistant.calls.into());
        }
        self.messages.push(message.into());
    }
}

/// Appends a paragraph in place: with a copy for each, long turns would take quadratic time.
fn append(own: &mut String, text: &str) {
    own.push_str("\n\n");
    own.push_str(text);
}

impl Assistant {
    fn has_output(&self) -> bool {
        self.text.is_some() || !self.calls.is_empty()
    }
}

/// The text of a string, or of a list of text parts joined with newlines, as in chat requests. `at`
/// names the place for errors, `kinds` are the part types that contain text.
pub(crate) fn text_of(
    content: &Value,
    at: impl Fn() -> String,
    kinds: &[&str],
) -> Result<String, ApiError> {
    let wrong = |message: String| Err(refused(&at(), message));
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => return wrong(format!("{} must be a string or a list of parts.", at())),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let kind = member(part, "type");
        if !kind.is_some_and(|kind| kinds.contains(&kind)) {
            let (kind, known) = (kind.unwrap_or("of no type"), kinds.join(", "));
            return wrong(format!(
                "{}[{index}] is {kind:.60}: this server takes text only ({known}).",
                at()
            ));
        }
        let text = member(part, "text").or_else(|| member(part, "refusal"));
        match text {
            Some(text) => texts.push(text),
            None => return wrong(format!("{}[{index}].text must be a string.", at())),
        }
    }
    Ok(texts.join("\n"))
}

/// A string member of an object.
pub(crate) fn member<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.get(name).and_then(Value::as_str)
}

/// A string member of an object, or the error that it is missing.
pub(crate) fn required<'a>(
    object: &'a Value,
    name: &str,
    at: impl Fn() -> String,
) -> Result<&'a str, ApiError> {
    member(object, name).ok_or_else(|| refused(&at(), format!("{}.{name} must be a string.", at())))
}

/// A 400 error about the place `at`, such as `input[2].content`; `param` is the field at its start.
pub(crate) fn refused(at: &str, message: String) -> ApiError {
    let end = at.find(['[', '.']).unwrap_or(at.len());
    ApiError::invalid(at[..end].to_owned(), message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn parts_of_one_turn_are_one_message() {
        let mut conversation = Conversation::default();
        conversation.system("a".into());
        conversation.system("b".into());
        conversation.user("hi".into());
        conversation.reasoning("hm".into());
        conversation.assistant("let me look".into());
        conversation.call("c1", "f", "{}");
        conversation.call("c2", "g", "{}");
        conversation.result("c1", "1".into());
        conversation.result("c2", "2".into());
        conversation.system("late".into());
        conversation.assistant("one".into());
        conversation.assistant("two".into());
        let (messages, assistant_last) = conversation.finish();
        assert!(assistant_last);
        let call = |id: &str, name: &str| {
            let function = json!({"name": name, "arguments": "{}"});
            json!({"id": id, "type": "function", "function": function})
        };
        assert_eq!(
            Value::from(messages),
            json!([
                {"role": "system", "content": "a\n\nb"},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "let me look", "reasoning_content": "hm",
                 "tool_calls": [call("c1", "f"), call("c2", "g")]},
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
                {"role": "tool", "tool_call_id": "c2", "content": "2"},
                {"role": "system", "content": "late"},
                {"role": "assistant", "content": "one\n\ntwo"},
            ])
        );
    }

    /// A text that is copied for each turn would move in memory each time. A text that grows in
    /// place moves only when its capacity doubles.
    #[test]
    fn turns_in_a_row_are_not_copied_for_each() {
        const TURNS: usize = 100_000;
        let moves = |add: fn(&mut Conversation), own: fn(&Conversation) -> &str| {
            let mut conversation = Conversation::default();
            let (mut moves, mut before) = (0, std::ptr::null());
            for _ in 0..TURNS {
                add(&mut conversation);
                let at = own(&conversation).as_ptr();
                moves += usize::from(at != before);
                before = at;
            }
            assert_eq!(own(&conversation).len(), 3 * TURNS - 2);
            moves
        };
        let user = moves(
            |conversation| conversation.user("a".into()),
            |conversation| conversation.messages[0]["content"].as_str().unwrap(),
        );
        let assistant = moves(
            |conversation| conversation.assistant("a".into()),
            |conversation| {
                conversation
                    .assistant
                    .as_ref()
                    .unwrap()
                    .text
                    .as_deref()
                    .unwrap()
            },
        );
        assert!(user < 64 && assistant < 64, "{user} {assistant}");
    }

    #[test]
    fn only_text_parts_are_taken() {
        let at = || "input[2].content".to_owned();
        let parts = json!([{"type": "t", "text": "a"}, {"type": "t", "text": "b"}]);
        assert_eq!(text_of(&parts, at, &["t"]).unwrap(), "a\nb");
        for wrong in [
            json!(5),
            json!([1]),
            json!([{"type": "t"}]),
            json!([{"type": "u", "text": ""}]),
        ] {
            let error = text_of(&wrong, at, &["t"]).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("input"), "{wrong}");
            assert!(error.message.starts_with("input[2].content"), "{error}");
        }
    }
}
