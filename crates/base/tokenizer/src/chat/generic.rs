//! Tool support for templates without it, in the Hermes convention. A system message lists the
//! tools and explains the call format; calls and results in the history are rendered as text.

use serde_json::{Map, Value, json};

use crate::jinja::python_json;

/// Converts calls and results of normalised messages to text. Consecutive results are merged into
/// one message, because templates refuse two turns of one role.
pub(super) fn write_history(messages: &mut Vec<Value>) {
    let mut written: Vec<Value> = Vec::with_capacity(messages.len());
    let mut follows_result = false;
    for mut message in messages.drain(..) {
        if let Some(message) = message.as_object_mut() {
            write_calls(message);
        }
        let result = result_text(&message);
        match (&result, written.last_mut()) {
            (Some(result), Some(last)) if follows_result => {
                if let Some(Value::String(own)) = last.get_mut("content") {
                    own.push('\n');
                    own.push_str(result);
                }
            }
            (Some(result), _) => written.push(json!({"role": "user", "content": result})),
            (None, _) => written.push(message),
        }
        follows_result = result.is_some();
    }
    *messages = written;
}

/// Adds a list of tools to the first message if that has `role` (`system` or `user`); otherwise
/// puts a message with the list before it.
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

/// Appends an assistant's calls to its text.
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

/// Text of a tool result, for a user message; None if the message is no tool result.
fn result_text(message: &Value) -> Option<String> {
    if message["role"] != "tool" {
        return None;
    }
    let text = message["content"].as_str().unwrap_or_default();
    Some(format!("<tool_response>\n{text}\n</tool_response>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_in_a_row_are_one_message() {
        let result = |text: &str| json!({"role": "tool", "tool_call_id": "1", "content": text});
        let user = json!({"role": "user", "content": "u", "tool_response": true});
        let mut messages = vec![result("a"), result("b"), user.clone(), result("c")];
        write_history(&mut messages);
        let written = |texts: &[&str]| {
            let texts = texts.iter();
            let texts = texts.map(|text| format!("<tool_response>\n{text}\n</tool_response>"));
            json!({"role": "user", "content": texts.collect::<Vec<_>>().join("\n")})
        };
        assert_eq!(messages, [written(&["a", "b"]), user, written(&["c"])]);
    }

    #[test]
    fn many_results_are_one_message() {
        const RESULTS: usize = 100_000;
        let mut messages = vec![json!({"role": "tool", "content": "1"}); RESULTS];
        write_history(&mut messages);
        let one = "<tool_response>\n1\n</tool_response>".len();
        let text = messages[0]["content"].as_str();
        assert_eq!(messages.len(), 1);
        assert_eq!(text.map(str::len), Some(RESULTS * (one + 1) - 1));
    }
}
