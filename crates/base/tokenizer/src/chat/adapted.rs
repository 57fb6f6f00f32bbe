//! Alternative forms of a conversation, for templates that refuse the original one.
//!
//! Many templates accept only the form that their model was trained on: a system message only at
//! the start, alternating turns, call ids of nine letters or digits, tools with descriptions.
//! Clients send any form that their protocol allows, and the server must accept it. A refused
//! conversation is therefore rendered again, in increasingly conservative forms.

use serde_json::{Map, Value, json};

use super::generic;

/// Number of alternative forms of a conversation.
pub(crate) const FORMS: usize = 3;

/// Length of the tool call ids (of letters and digits) that Mistral's templates require.
const ID_LENGTH: usize = 9;

/// Messages and tools in form 0, 1 or 2 of the [`FORMS`]. In form 0, turns alternate after a system
/// message. Form 1 has no system message and starts with the user. Form 2 also renders calls and
/// results as text.
pub(crate) fn adapted(
    messages: &Value,
    tools: Option<&Value>,
    form: usize,
) -> (Value, Option<Value>) {
    let given = messages.as_array().map_or(&[][..], Vec::as_slice);
    let mut messages: Vec<Value> = given.to_vec();
    for (index, message) in messages.iter_mut().enumerate() {
        if let Some(message) = message.as_object_mut() {
            settle(message, index == 0);
        }
    }
    if form >= FORMS - 1 {
        generic::write_history(&mut messages);
    }
    if form > 0 {
        into_user(&mut messages);
    }
    (Value::Array(joined(messages)), tools.map(with_descriptions))
}

/// Converts a message to the form that the strictest templates accept.
fn settle(message: &mut Map<String, Value>, is_first: bool) {
    let role = message.get("role").and_then(Value::as_str);
    match role {
        Some("developer" | "system") if is_first => {
            message.insert("role".into(), "system".into());
        }
        Some("developer" | "system") => {
            message.insert("role".into(), "user".into());
        }
        _ => {}
    }
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    let has_calls = calls.as_ref().is_some_and(|calls| !calls.is_empty());
    for call in calls.into_iter().flatten() {
        if let Some(call) = call.as_object_mut() {
            let id = call.get("id").and_then(Value::as_str).map(short_id);
            call.insert("id".into(), id.unwrap_or_else(|| short_id("")).into());
        }
    }
    if message.get("role").is_some_and(|role| role == "tool") {
        let id = message.get("tool_call_id").and_then(Value::as_str);
        let id = short_id(id.unwrap_or_default());
        message.insert("tool_call_id".into(), id.into());
    }
    // gpt-oss's template accepts either text or reasoning before a call.
    let text = |name: &str| message.get(name).and_then(Value::as_str).map(str::to_owned);
    if has_calls
        && let (Some(thought), Some(content)) = (text("thinking"), text("content"))
        && !thought.is_empty()
        && !content.is_empty()
    {
        message.insert("thinking".into(), format!("{thought}\n\n{content}").into());
        message.insert("content".into(), "".into());
    }
}

/// The id itself if it has nine letters and digits, else a hash of it that has them.
fn short_id(id: &str) -> String {
    if id.len() == ID_LENGTH && id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let mut hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    let digits = (0..ID_LENGTH).map(|_| {
        let digit = char::from_digit((hash % 36) as u32, 36);
        hash /= 36;
        digit.unwrap_or('0')
    });
    digits.collect()
}

/// Converts a leading system message to a user message, and puts an empty user message first if
/// another role would start.
fn into_user(messages: &mut Vec<Value>) {
    if messages
        .first()
        .is_some_and(|first| first["role"] == "system")
        && let Some(system) = messages.first_mut()
    {
        system["role"] = "user".into();
    }
    if messages.first().is_none_or(|first| first["role"] != "user") {
        messages.insert(0, json!({"role": "user", "content": ""}));
    }
}

/// Merges adjacent messages of one role, except tool results.
fn joined(messages: Vec<Value>) -> Vec<Value> {
    let mut joined: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        match joined.last_mut() {
            Some(last) if last["role"] == message["role"] && message["role"] != "tool" => {
                join(last, message);
            }
            _ => joined.push(message),
        }
    }
    joined
}

fn join(first: &mut Value, second: Value) {
    let (Some(first), Value::Object(second)) = (first.as_object_mut(), second) else {
        return;
    };
    for (name, value) in second {
        let own = first.get_mut(&name);
        match (own, value) {
            (Some(Value::String(own)), Value::String(more)) if name != "role" => {
                if !own.is_empty() && !more.is_empty() {
                    own.push_str("\n\n");
                }
                own.push_str(&more);
            }
            (Some(Value::Array(own)), Value::Array(more)) => own.extend(more),
            (Some(Value::Array(own)), Value::String(text)) => {
                own.push(json!({"type": "text", "text": text}));
            }
            (Some(own @ Value::String(_)), Value::Array(more)) => {
                let mut parts = vec![json!({"type": "text", "text": own.take()})];
                parts.extend(more);
                *own = parts.into();
            }
            (None | Some(Value::Null), value) => {
                first.insert(name, value);
            }
            _ => {}
        }
    }
}

/// Adds the members of functions that are optional in the API, but not in some templates.
fn with_descriptions(tools: &Value) -> Value {
    let mut tools = tools.clone();
    for tool in tools.as_array_mut().into_iter().flatten() {
        let function = tool.get_mut("function").and_then(Value::as_object_mut);
        if let Some(function) = function {
            let nothing = json!({"type": "object", "properties": {}});
            function.entry("description").or_insert_with(|| "".into());
            function.entry("parameters").or_insert(nothing);
        }
    }
    tools
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_alternate() {
        let messages = json!([
            {"role": "developer", "content": "s"},
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "system", "content": "c"},
            {"role": "assistant", "content": "", "thinking": "t",
             "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "2", "tool_call_id": "abcdefgh9"},
            {"role": "assistant", "content": "x"},
            {"role": "assistant", "content": "y"},
        ]);
        let (got, _) = adapted(&messages, None, 0);
        let id = short_id("");
        assert_eq!(
            got,
            json!([
                {"role": "system", "content": "s"},
                {"role": "user", "content": "a\n\nb\n\nc"},
                {"role": "assistant", "content": "", "thinking": "t",
                 "tool_calls": [{"function": {"name": "f", "arguments": {}}, "id": id}]},
                {"role": "tool", "content": "1", "tool_call_id": id},
                {"role": "tool", "content": "2", "tool_call_id": "abcdefgh9"},
                {"role": "assistant", "content": "x\n\ny"},
            ])
        );
        let (got, _) = adapted(&messages, None, 1);
        assert_eq!(
            got[0],
            json!({"role": "user", "content": "s\n\na\n\nb\n\nc"})
        );
        let (got, _) = adapted(&messages, None, 2);
        let roles: Vec<&Value> = got.as_array().into_iter().flatten().collect();
        let roles: Vec<&Value> = roles.iter().map(|message| &message["role"]).collect();
        assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    }

    #[test]
    fn the_user_begins() {
        let messages = json!([{"role": "assistant", "content": "Hello!"}]);
        let (got, _) = adapted(&messages, None, 1);
        assert_eq!(got[0], json!({"role": "user", "content": ""}));
    }

    #[test]
    fn ids_are_of_nine_letters_and_digits() {
        for id in ["", "call_1", "toolu_01ABC", "123456789"] {
            let short = short_id(id);
            assert!(short.len() == 9 && short.bytes().all(|b| b.is_ascii_alphanumeric()));
        }
        assert_ne!(short_id("call_1"), short_id("call_2"));
    }
}
