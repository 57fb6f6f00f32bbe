//! Tools for templates that know none: the Hermes convention, written into the messages. A system
//! message lists the tools and says how to call them; calls and results of the history become text.

use serde_json::{Map, Value, json};

use crate::jinja::python_json;

/// Calls and results in normalised messages as text.
pub(super) fn write_history(messages: &mut Vec<Value>) {
    for message in messages.iter_mut().filter_map(Value::as_object_mut) {
        write_calls(message);
        write_result(message);
    }
    join_results(messages);
}

/// Adds a list of tools to the message of `role`, `system` or `user`, that begins the conversation.
pub(super) fn list_tools(messages: &mut Vec<Value>, tools: &Value, role: &str) {
    let instructions = instructions(tools.as_array().map_or(&[], Vec::as_slice));
    match messages.first_mut() {
        Some(first) if first["role"] == role && first["content"].is_string() => {
            let own = first["content"].as_str().unwrap_or_default();
            let parts = match role {
                "system" => [own, &instructions],
                _ => [&instructions, own],
            };
            first["content"] = parts.join("\n\n").into();
        }
        _ => messages.insert(0, json!({"role": role, "content": instructions})),
    }
}

fn instructions(tools: &[Value]) -> String {
    let list: Vec<String> = tools.iter().map(python_json).collect();
    format!(
        "You can call functions to help with the user's request. They are given as JSON within \
         <tools></tools>:\n<tools>\n{}\n</tools>\n\nTo call one, answer with a JSON object of its \
         name and arguments within <tool_call></tool_call>, once for each call:\n<tool_call>\n\
         {{\"name\": <function-name>, \"arguments\": <args-json-object>}}\n</tool_call>",
        list.join("\n")
    )
}

/// An assistant's calls behind its text.
fn write_calls(message: &mut Map<String, Value>) {
    let Some(Value::Array(calls)) = message.remove("tool_calls") else {
        return;
    };
    let own = message.get("content").and_then(Value::as_str);
    let mut text = own.unwrap_or_default().to_owned();
    for call in &calls {
        let function = call.get("function").unwrap_or(call);
        let written = json!({"name": function["name"], "arguments": function["arguments"]});
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str("<tool_call>\n");
        text.push_str(&python_json(&written));
        text.push_str("\n</tool_call>");
    }
    message.insert("content".to_owned(), text.into());
}

/// A result is what the user side says.
fn write_result(message: &mut Map<String, Value>) {
    if message.get("role").and_then(Value::as_str) != Some("tool") {
        return;
    }
    let text = message.get("content").and_then(Value::as_str);
    let text = format!(
        "<tool_response>\n{}\n</tool_response>",
        text.unwrap_or_default()
    );
    *message = Map::new();
    message.insert("role".to_owned(), "user".into());
    message.insert("content".to_owned(), text.into());
    message.insert(RESULT.to_owned(), true.into());
}

/// Marks results until they have been joined.
const RESULT: &str = "tool_response";

/// Results in a row are one message.
fn join_results(messages: &mut Vec<Value>) {
    let mut joined: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages.drain(..) {
        let is_result = |message: &Value| message.get(RESULT).is_some();
        match joined.last_mut() {
            Some(last) if is_result(last) && is_result(&message) => {
                let text = |value: &Value| value["content"].as_str().unwrap_or_default().to_owned();
                last["content"] = format!("{}\n{}", text(last), text(&message)).into();
            }
            _ => joined.push(message),
        }
    }
    for message in joined.iter_mut().filter_map(Value::as_object_mut) {
        message.remove(RESULT);
    }
    *messages = joined;
}
