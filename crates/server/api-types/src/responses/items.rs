//! Converts the input items of `/v1/responses` to chat messages.

use serde_json::{Value, json};

use crate::conversation::{Conversation, member, refused, required, text_of};
use crate::error::ApiError;

/// Types of content parts that contain text.
const TEXT: [&str; 3] = ["input_text", "output_text", "text"];

/// The request's messages in chat format.
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
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                add(&mut conversation, index, item)?;
            }
        }
        _ => {
            let message = "input must be a string or a list of items.";
            return Err(ApiError::invalid("input", message));
        }
    }
    let (mut messages, _) = conversation.finish();
    if messages.iter().all(|message| message["role"] == "system") {
        // The input is empty (a client's probe) or has only ignored items: chat templates need a
        // message.
        messages.push(json!({"role": "user", "content": ""}));
    }
    Ok(messages)
}

fn add(conversation: &mut Conversation, index: usize, item: &Value) -> Result<(), ApiError> {
    let at = || format!("input[{index}]");
    // Clients may leave out the type of a message.
    match member(item, "type").unwrap_or("message") {
        "message" => return add_message(conversation, index, item),
        "function_call" => conversation.call(
            required(item, "call_id", at)?,
            required(item, "name", at)?,
            required(item, "arguments", at)?,
        ),
        "function_call_output" => {
            let output = item.get("output").filter(|output| !output.is_null());
            let Some(output) = output else {
                let message = format!("{}.output must be there.", at());
                return Err(refused(&at(), message));
            };
            conversation.result(required(item, "call_id", at)?, output_text(output));
        }
        "reasoning" => {
            if let Some(text) = reasoning(item) {
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
        other => add_of_other_tool(conversation, other, item),
    }
    Ok(())
}

/// Converts client-side calls of non-function tools (`custom_tool_call`, `local_shell_call` and
/// later types) and their outputs to ordinary calls. Host-side calls and all other items are
/// dropped, because the model cannot read them.
fn add_of_other_tool(conversation: &mut Conversation, kind: &str, item: &Value) {
    let Some(id) = member(item, "call_id") else {
        return;
    };
    if let Some(tool) = kind.strip_suffix("_call") {
        let arguments = match (
            member(item, "arguments"),
            item.get("input"),
            item.get("action"),
        ) {
            (Some(arguments), ..) => arguments.to_owned(),
            (_, Some(input), _) => json!({"input": input}).to_string(),
            (.., Some(action @ Value::Object(_))) => action.to_string(),
            _ => "{}".to_owned(),
        };
        conversation.call(id, member(item, "name").unwrap_or(tool), &arguments);
    } else if kind.ends_with("_call_output") {
        let output = item.get("output").unwrap_or(&Value::Null);
        conversation.result(id, output_text(output));
    }
}

/// Text of a tool's output. A non-text part, such as an image, is replaced by its type, so the
/// model sees that there was one.
fn output_text(output: &Value) -> String {
    match output {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let part = |part: &Value| match (member(part, "text"), member(part, "type")) {
                (Some(text), _) => text.to_owned(),
                (None, Some(kind)) => format!("[{kind:.60} left out]"),
                (None, None) => part.to_string(),
            };
            parts.iter().map(part).collect::<Vec<_>>().join("\n")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn add_message(
    conversation: &mut Conversation,
    index: usize,
    item: &Value,
) -> Result<(), ApiError> {
    let at = || format!("input[{index}]");
    let role = required(item, "role", at)?;
    let content = item.get("content").unwrap_or(&Value::Null);
    let text = match (role, content) {
        ("assistant", Value::Array(parts)) => said(parts),
        _ => text_of(content, || format!("input[{index}].content"), &TEXT)?,
    };
    match role {
        "user" => conversation.user(text),
        // Many chat templates support only one of these two roles, so both are rendered as
        // `system`.
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

/// The text of a reasoning item, or else of its summary; `None` if both are empty, as in an item
/// that another server has encrypted.
fn reasoning(item: &Value) -> Option<String> {
    let texts = ["content", "summary"].map(|name| match item.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => said(parts),
        _ => String::new(),
    });
    texts.into_iter().find(|text| !text.is_empty())
}

/// Joins the text parts of an assistant item; other parts are left out.
fn said(parts: &[Value]) -> String {
    let text = |part| member(part, "text").or_else(|| member(part, "refusal"));
    parts.iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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

    /// A conversation that began at OpenAI, with tools that this server does not have.
    #[test]
    fn items_of_other_tools_do_not_end_a_conversation() {
        let shell = json!({"type": "exec", "command": ["ls"]});
        let input = json!([
            {"role": "user", "content": "look"},
            {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAA"},
            {"type": "web_search_call", "id": "w", "status": "completed", "action": {}},
            {"type": "local_shell_call", "id": "l", "call_id": "c1", "status": "completed",
             "action": shell},
            {"type": "local_shell_call_output", "call_id": "c1", "output": "a.txt"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** B"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [
                {"type": "output_text", "text": "done"}]},
            {"type": "image_generation_call", "id": "i", "result": "aGk=", "status": "completed"},
            {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []},
            {"type": "of_next_year"},
            {"type": "function_call", "call_id": "c3", "name": "view", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c3", "output": [
                {"type": "input_image", "image_url": "data:"},
                {"type": "input_text", "text": "x"}]},
            {"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": "It is"}, {"type": "of_next_year"}]},
        ]);
        let call = |id: &str, name: &str, arguments: &str| {
            let function = json!({"name": name, "arguments": arguments});
            let call = json!({"id": id, "type": "function", "function": function});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        };
        let result =
            |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
        assert_eq!(
            Value::from(conversation(None, &input).unwrap()),
            json!([
                {"role": "user", "content": "look"},
                call("c1", "local_shell", &shell.to_string()),
                result("c1", "a.txt"),
                call("c2", "apply_patch", "{\"input\":\"*** B\"}"),
                result("c2", "done"),
                call("c3", "view", "{}"),
                result("c3", "[input_image left out]\nx"),
                {"role": "assistant", "content": "It is"},
            ])
        );
    }

    /// Agents send an empty input to check that the endpoint exists, or to have the model loaded.
    #[test]
    fn an_empty_probe_is_a_conversation() {
        for input in [
            json!(""),
            json!([]),
            json!([{"type": "web_search_call", "id": "w"}]),
        ] {
            let messages = conversation(Some("be kind"), &input).unwrap();
            assert_eq!(
                Value::from(messages),
                json!([{"role": "system", "content": "be kind"}, {"role": "user", "content": ""}])
            );
        }
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
