//! Converts the content blocks of `/v1/messages` to chat messages.

use serde_json::Value;

use crate::conversation::{Conversation, member, refused, required, text_of};
use crate::error::ApiError;

const TEXT: [&str; 1] = ["text"];

/// The request's messages in chat format, and whether the last one is the assistant's.
pub(super) fn conversation(
    system: Option<&Value>,
    messages: &[Value],
) -> Result<(Vec<Value>, bool), ApiError> {
    if messages.is_empty() {
        let message = "messages must be a list of messages, not empty.";
        return Err(ApiError::invalid("messages", message));
    }
    let mut conversation = Conversation::default();
    if let Some(system) = system {
        let text = text_of(system, || "system".to_owned(), &TEXT)?;
        if !text.is_empty() {
            conversation.system(text);
        }
    }
    for (index, message) in messages.iter().enumerate() {
        let at = || format!("messages[{index}]");
        let content = message.get("content").unwrap_or(&Value::Null);
        match (required(message, "role", at)?, content) {
            ("user", Value::Array(blocks)) => user(&mut conversation, index, blocks)?,
            ("assistant", Value::Array(blocks)) => assistant(&mut conversation, index, blocks)?,
            (role, content) => {
                let text = text_of(content, || format!("{}.content", at()), &TEXT)?;
                match role {
                    "user" => conversation.user(text),
                    "assistant" => conversation.assistant(text),
                    "system" => conversation.system(text),
                    _ => {
                        let message = format!("{}.role must be user or assistant.", at());
                        return Err(refused(&at(), message));
                    }
                }
            }
        }
    }
    Ok(conversation.finish())
}

/// Converts a message of the user. Consecutive text blocks become one message; tool results are
/// messages of their own.
fn user(conversation: &mut Conversation, message: usize, blocks: &[Value]) -> Result<(), ApiError> {
    let mut texts: Vec<&str> = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let at = || format!("messages[{message}].content[{index}]");
        match member(block, "type") {
            Some("text") => texts.push(required(block, "text", at)?),
            Some("tool_result") => {
                if !texts.is_empty() {
                    conversation.user(std::mem::take(&mut texts).join("\n"));
                }
                let id = required(block, "tool_use_id", at)?;
                let text = match block.get("content") {
                    None | Some(Value::Null) => String::new(),
                    Some(content) => text_of(content, || format!("{}.content", at()), &TEXT)?,
                };
                conversation.result(id, text);
            }
            kind => return Err(unknown(&at(), kind)),
        }
    }
    if !texts.is_empty() || blocks.is_empty() {
        conversation.user(texts.join("\n"));
    }
    Ok(())
}

fn assistant(
    conversation: &mut Conversation,
    message: usize,
    blocks: &[Value],
) -> Result<(), ApiError> {
    let mut texts: Vec<&str> = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let at = || format!("messages[{message}].content[{index}]");
        let kind = member(block, "type");
        if kind == Some("text") {
            texts.push(required(block, "text", at)?);
            continue;
        }
        if !texts.is_empty() {
            conversation.assistant(std::mem::take(&mut texts).join("\n"));
        }
        match kind {
            Some("thinking") => {
                conversation.reasoning(required(block, "thinking", at)?.to_owned());
            }
            // Encrypted reasoning of another server: ignored.
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let input = block.get("input").filter(|input| input.is_object());
                let arguments = input.map_or_else(|| "{}".to_owned(), Value::to_string);
                let (id, name) = (required(block, "id", at)?, required(block, "name", at)?);
                conversation.call(id, name, &arguments);
            }
            // Blocks of server-side tools, or of unknown types: ignored.
            Some(_) => {}
            None => return Err(unknown(&at(), None)),
        }
    }
    if !texts.is_empty() {
        conversation.assistant(texts.join("\n"));
    }
    Ok(())
}

fn unknown(at: &str, kind: Option<&str>) -> ApiError {
    let kind = kind.unwrap_or("of no type");
    let message = format!(
        "{at} is {kind:.60}: this server takes text, thinking, tool_use and tool_result blocks."
    );
    refused(at, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_conversation_with_calls() {
        let system = json!([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "b"}]);
        let messages = json!([
            {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "ask", "signature": ""},
                {"type": "text", "text": "let me look"},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "is_error": false,
                 "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "and?"}, {"type": "text", "text": "well?"}]},
            {"role": "assistant", "content": "It is"},
        ]);
        let (got, assistant_last) =
            conversation(Some(&system), messages.as_array().unwrap()).unwrap();
        assert!(assistant_last);
        let function = json!({"name": "f", "arguments": "{\"a\":1}"});
        assert_eq!(
            Value::from(got),
            json!([
                {"role": "system", "content": "a\nb"},
                {"role": "user", "content": "weather?"},
                {"role": "assistant", "content": "let me look", "reasoning_content": "ask",
                 "tool_calls": [{"id": "t", "type": "function", "function": function}]},
                {"role": "tool", "tool_call_id": "t", "content": "sunny"},
                {"role": "user", "content": "and?\nwell?"},
                {"role": "assistant", "content": "It is"},
            ])
        );
    }

    #[test]
    fn other_blocks_are_refused() {
        for (message, word) in [
            (json!(3), "role"),
            (json!({"role": "alien", "content": "x"}), "role"),
            (json!({"role": "user"}), "content"),
            (
                json!({"role": "user", "content": [{"type": "image", "source": {}}]}),
                "image",
            ),
            (
                json!({"role": "user", "content": [{"type": "tool_result"}]}),
                "tool_use_id",
            ),
            (
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}),
                "name",
            ),
        ] {
            let error = conversation(None, &[message]).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("messages"), "{error}");
            assert!(error.message.contains(word), "{error}");
        }
    }
}
