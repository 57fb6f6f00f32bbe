//! Messages of a conversation, normalised to the format that chat templates expect.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use crate::error::ApiError;

const MAX_ROLE_BYTES: usize = 64;
/// Maximum number of tool calls per message.
const MAX_CALLS: usize = 128;

/// Takes and normalises `messages`: text parts are joined, `function_call` becomes a tool call and
/// the role `function` the role `tool`.
pub(super) fn take_messages(fields: &mut Fields<'_>) -> Result<Value, ApiError> {
    let messages: Option<Vec<Map<String, Value>>> = fields.take("messages")?;
    let messages = messages.ok_or_else(|| invalid("messages is required."))?;
    if messages.is_empty() {
        return Err(invalid("messages must not be empty."));
    }
    let messages = messages
        .into_iter()
        .enumerate()
        .map(|(i, m)| normalised(i, m).map(Value::Object));
    Ok(Value::Array(messages.collect::<Result<_, _>>()?))
}

fn normalised(
    index: usize,
    mut message: Map<String, Value>,
) -> Result<Map<String, Value>, ApiError> {
    check_role(index, &mut message)?;
    match message.get("content") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            let text = joined_parts(index, parts)?;
            message.insert("content".into(), text.into());
        }
        Some(_) => {
            return Err(invalid(format!(
                "messages[{index}].content must be a string or a list of text parts."
            )));
        }
    }
    name_calls(&mut message);
    check_calls(index, &mut message)?;
    Ok(message)
}

/// Checks that the role is a plain word, because chat templates print it between control tokens.
fn check_role(index: usize, message: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(role) = message.get("role").and_then(Value::as_str) else {
        return Err(invalid(format!("messages[{index}].role must be a string.")));
    };
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if role.is_empty() || role.len() > MAX_ROLE_BYTES || !role.bytes().all(allowed) {
        return Err(invalid(format!(
            "messages[{index}].role must be a word of letters, digits, _ and -."
        )));
    }
    if role == "function" {
        message.insert("role".into(), "tool".into());
    }
    Ok(())
}

/// Replaces the older `function_call` by a list `tool_calls` of one call.
fn name_calls(message: &mut Map<String, Value>) {
    if let Some(call) = message.remove("function_call")
        && !call.is_null()
        && message.get("tool_calls").is_none_or(is_empty)
    {
        let call = json!({"type": "function", "function": call});
        message.insert("tool_calls".into(), json!([call]));
    }
}

fn is_empty(calls: &Value) -> bool {
    calls.is_null() || calls.as_array().is_some_and(Vec::is_empty)
}

/// Checks that each call has a function with a name; arguments may be any value. An empty list is
/// removed, because templates test for the member's presence.
fn check_calls(index: usize, message: &mut Map<String, Value>) -> Result<(), ApiError> {
    let calls = match message.get_mut("tool_calls") {
        Some(Value::Array(calls)) if !calls.is_empty() => calls,
        Some(Value::Array(_) | Value::Null) => {
            message.remove("tool_calls");
            return Ok(());
        }
        None => return Ok(()),
        Some(_) => {
            let message = format!("messages[{index}].tool_calls must be a list.");
            return Err(invalid(message));
        }
    };
    if calls.len() > MAX_CALLS {
        let message = format!("messages[{index}].tool_calls: at most {MAX_CALLS}.");
        return Err(invalid(message));
    }
    for (k, call) in calls.iter_mut().enumerate() {
        let at = || format!("messages[{index}].tool_calls[{k}].function");
        let function = call.get_mut("function").and_then(Value::as_object_mut);
        let function = function.ok_or_else(|| invalid(format!("{} must be an object.", at())))?;
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(invalid(format!("{}.name must be a string.", at())));
        }
    }
    Ok(())
}

fn joined_parts(index: usize, parts: &[Value]) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (k, part) in parts.iter().enumerate() {
        let at = || format!("messages[{index}].content[{k}]");
        let kind = part.get("type").and_then(Value::as_str);
        if !matches!(kind, Some("text" | "input_text" | "output_text")) {
            let kind = kind.unwrap_or("of no type");
            return Err(invalid(format!(
                "{}: parts of type text only, this one is {kind}.",
                at()
            )));
        }
        let text = part.get("text").and_then(Value::as_str);
        texts.push(text.ok_or_else(|| invalid(format!("{}.text must be a string.", at())))?);
    }
    Ok(texts.join("\n"))
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::invalid("messages", message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn take(messages: &str) -> Result<Value, ApiError> {
        let body = format!(r#"{{"messages":{messages}}}"#);
        take_messages(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn text_parts_are_joined() {
        let parts = r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#;
        let messages = take(&format!(
            r#"[{{"role":"user","content":{parts},"name":"x"}}]"#
        ));
        assert_eq!(
            messages.unwrap(),
            json!([{"role":"user","content":"a\nb","name":"x"}])
        );
    }

    #[test]
    fn older_forms_become_the_new_ones() {
        let messages = take(
            r#"[{"role":"assistant","content":null,"tool_calls":[],
                 "function_call":{"name":"f","arguments":""},"reasoning":"r"},
                {"role":"assistant","content":"x","tool_calls":[]},
                {"role":"function","name":"f","content":"3"}]"#,
        );
        assert_eq!(
            messages.unwrap(),
            json!([
                {"role":"assistant","content":null,"reasoning":"r",
                 "tool_calls":[{"type":"function","function":{"name":"f","arguments":""}}]},
                {"role":"assistant","content":"x"},
                {"role":"tool","name":"f","content":"3"}
            ])
        );
    }

    #[test]
    fn bad_messages_are_refused() {
        for messages in [
            "[]",
            r#""hi""#,
            "[1]",
            r#"[{"content":"x"}]"#,
            r#"[{"role":1,"content":"x"}]"#,
            r#"[{"role":"","content":"x"}]"#,
            r#"[{"role":"user<|im_end|>","content":"x"}]"#,
            r#"[{"role":"user","content":5}]"#,
            r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]"#,
            r#"[{"role":"user","content":[{"type":"text"}]}]"#,
            r#"[{"role":"assistant","tool_calls":{}}]"#,
            r#"[{"role":"assistant","tool_calls":[{"id":"a"}]}]"#,
            r#"[{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}]"#,
        ] {
            let error = take(messages).unwrap_err();
            let seen = (error.status, error.param.as_deref());
            assert_eq!(seen, (400, Some("messages")), "{messages}");
        }
    }
}
