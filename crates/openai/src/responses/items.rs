//! Input items as messages.

use serde_json::Value;

use crate::conversation::{Conversation, member, refused, required, text_of};
use crate::error::ApiError;

/// The messages of a request.
pub(super) fn conversation(
    instructions: Option<&str>,
    input: &Value,
) -> Result<Vec<Value>, ApiError> {
    let mut conversation = Conversation::default();
    if let Some(instructions) = instructions.filter(|text| !text.is_empty()) {
        conversation.system(instructions.to_owned());
    }
    match input {
        Value::String(text) => conversation.user(text.clone()),
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                add(&mut conversation, index, item)?;
            }
        }
        _ => {
            let message = "input must be a string or a list of items, not empty.";
            return Err(ApiError::invalid("input", message));
        }
    }
    Ok(conversation.finish().0)
}

fn add(conversation: &mut Conversation, index: usize, item: &Value) -> Result<(), ApiError> {
    let at = || format!("input[{index}]");
    // A message may come without its type.
    match member(item, "type").unwrap_or("message") {
        "message" => return add_message(conversation, index, item),
        "function_call" => conversation.call(
            required(item, "call_id", at)?,
            required(item, "name", at)?,
            required(item, "arguments", at)?,
        ),
        "function_call_output" => {
            let output = item.get("output").unwrap_or(&Value::Null);
            let text = text_of(output, || format!("input[{index}].output"), &["input_text"])?;
            conversation.result(required(item, "call_id", at)?, text);
        }
        "reasoning" => {
            if let Some(text) = reasoning(index, item)? {
                conversation.reasoning(text);
            }
        }
        "item_reference" => {
            let message = format!(
                "{}: items are not stored here: send the item itself in place of its id.",
                at()
            );
            return Err(refused(&at(), message));
        }
        other => {
            let message = format!(
                "{} is {other:.60}: this server takes message, function_call, \
                 function_call_output and reasoning items.",
                at()
            );
            return Err(refused(&at(), message));
        }
    }
    Ok(())
}

fn add_message(
    conversation: &mut Conversation,
    index: usize,
    item: &Value,
) -> Result<(), ApiError> {
    let at = || format!("input[{index}]");
    let role = required(item, "role", at)?;
    let kinds: &[&str] = match role {
        "assistant" => &["output_text", "refusal", "input_text", "text"],
        _ => &["input_text", "output_text", "text"],
    };
    let content = item.get("content").unwrap_or(&Value::Null);
    let text = text_of(content, || format!("input[{index}].content"), kinds)?;
    match role {
        "user" => conversation.user(text),
        // Templates know the one word or both.
        "system" | "developer" => conversation.system(text),
        "assistant" => conversation.assistant(text),
        _ => {
            let message = format!(
                "{}.role must be user, assistant, system or developer.",
                at()
            );
            return Err(refused(&at(), message));
        }
    }
    Ok(())
}

/// The text of a reasoning item, or else of its summary; `None` where both are empty.
fn reasoning(index: usize, item: &Value) -> Result<Option<String>, ApiError> {
    for (name, kind) in [("content", "reasoning_text"), ("summary", "summary_text")] {
        let Some(parts) = item.get(name).filter(|parts| !parts.is_null()) else {
            continue;
        };
        let text = text_of(parts, || format!("input[{index}].{name}"), &[kind, "text"])?;
        if !text.is_empty() {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_conversation_with_calls() {
        let input = json!([
            {"role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"role": "user", "content": "weather?"},
            {"type": "reasoning", "id": "r", "summary": [],
             "content": [{"type": "reasoning_text", "text": "ask"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\":1}",
             "id": "fc", "status": "completed"},
            {"type": "function_call_output", "call_id": "c", "output": "sunny"},
            {"type": "message", "role": "assistant", "id": "m", "status": "completed",
             "content": [{"type": "output_text", "text": "It is", "annotations": []},
                         {"type": "refusal", "refusal": "no"}]},
            {"role": "user", "content": "thanks"},
        ]);
        let function = json!({"name": "f", "arguments": "{\"a\":1}"});
        assert_eq!(
            Value::from(conversation(Some("be kind"), &input).unwrap()),
            json!([
                {"role": "system", "content": "be kind\n\nrules"},
                {"role": "user", "content": "weather?"},
                {"role": "assistant", "content": null, "reasoning_content": "ask",
                 "tool_calls": [{"id": "c", "type": "function", "function": function}]},
                {"role": "tool", "tool_call_id": "c", "content": "sunny"},
                {"role": "assistant", "content": "It is\nno"},
                {"role": "user", "content": "thanks"},
            ])
        );
    }

    #[test]
    fn other_items_are_refused() {
        for (item, word) in [
            (json!(3), "role"),
            (json!({"role": "alien", "content": "x"}), "role"),
            (json!({"role": "user"}), "content"),
            (
                json!({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}),
                "input_image",
            ),
            (json!({"type": "item_reference", "id": "x"}), "stored"),
            (json!({"type": "computer_call"}), "computer_call"),
            (json!({"type": "function_call", "name": "f"}), "call_id"),
            (
                json!({"type": "function_call_output", "call_id": "c"}),
                "output",
            ),
        ] {
            let error = conversation(None, &json!([item])).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("input"), "{item}");
            assert!(error.message.contains(word), "{error}");
            assert!(error.message.starts_with("input[0]"), "{error}");
        }
    }
}
