//! Normalised messages for templates: tool arguments are objects, content is a string. A template
//! that iterates over the parts of a user's content gets the string as a single part.

use serde_json::{Map, Value, json};

use crate::TextError;

/// Whether any user message has its content as a list of parts.
pub(super) fn have_parts(messages: &Value) -> bool {
    let parts = |message: &Value| message["role"] == "user" && message["content"].is_array();
    messages
        .as_array()
        .is_some_and(|list| list.iter().any(parts))
}

const PROBE: &str = "text of a part";

/// A conversation with one content part. Its rendered text shows whether the template supports
/// parts.
pub(super) fn probe() -> Value {
    json!([{"role": "user", "content": [{"type": "text", "text": PROBE}]}])
}

/// Whether `text`, rendered from the probe, contains the part's text instead of a printed list.
pub(super) fn takes_parts(text: &str) -> bool {
    text.contains(PROBE) && !["'type'", "\"type\""].iter().any(|key| text.contains(key))
}

/// Normalises messages. With `parts`, the template gets a user's content parts merged into one
/// part.
pub(super) fn normalised(messages: &Value, parts: bool) -> Result<Vec<Value>, TextError> {
    let list = messages
        .as_array()
        .ok_or_else(|| bad_messages("must be a list"))?;
    if list.is_empty() {
        return Err(bad_messages("must not be empty"));
    }
    let normal = list.iter().enumerate().map(|(index, message)| {
        let bad = |reason: String| TextError::BadMessage { index, reason };
        let message = message
            .as_object()
            .ok_or_else(|| bad("must be an object".to_owned()))?;
        normalised_message(message, parts).map_err(bad)
    });
    normal.collect()
}

fn normalised_message(message: &Map<String, Value>, parts: bool) -> Result<Value, String> {
    if !message.get("role").is_some_and(Value::is_string) {
        return Err("role must be a string".to_owned());
    }
    let mut normal = message.clone();
    let given = message.get("content");
    let mut content = Value::String(content_text(given)?);
    // Merged, so that a special token's spelling that spans several parts remains text.
    if parts && message["role"] == "user" && given.is_some_and(Value::is_array) {
        content = json!([{"type": "text", "text": content}]);
    }
    normal.insert("content".to_owned(), content);
    if let Some(calls) = normal.get_mut("tool_calls").and_then(Value::as_array_mut) {
        calls.iter_mut().for_each(parse_arguments);
    }
    Ok(Value::Object(normal))
}

/// Absent and null content (an assistant message with calls only) becomes empty text. Parts are
/// joined by line breaks, as in vLLM for templates that expect strings.
fn content_text(content: Option<&Value>) -> Result<String, String> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts: Result<Vec<&str>, String> = parts
                .iter()
                .enumerate()
                .map(|(at, part)| part_text(at, part))
                .collect();
            Ok(texts?.join("\n"))
        }
        Some(_) => Err("content must be a string, a list of parts or null".to_owned()),
    }
}

fn part_text(at: usize, part: &Value) -> Result<&str, String> {
    if let Some(text) = part.as_str() {
        return Ok(text);
    }
    let field = |name: &str| part.get(name).and_then(Value::as_str);
    match field("type") {
        Some("text" | "input_text" | "output_text") => {
            field("text").ok_or_else(|| format!("content[{at}].text must be a string"))
        }
        Some(other) => Err(format!(
            "content[{at}] has type {other:?}; this model takes text only"
        )),
        None => Err(format!("content[{at}].type must be a string")),
    }
}

/// Parses arguments, which are JSON text in the API, because templates iterate over an object.
/// Other values, for example a truncated object from an interrupted answer, become a member of an
/// object, so that no template fails on them.
fn parse_arguments(call: &mut Value) {
    let own = call.get("function").is_none() && call.get("name").is_some();
    let function = if own {
        Some(call)
    } else {
        call.get_mut("function")
    };
    let Some(function) = function.and_then(Value::as_object_mut) else {
        return;
    };
    let given = function.get("arguments").cloned().unwrap_or_default();
    let parsed = match given {
        Value::String(text) if text.trim().is_empty() => Value::Null,
        Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        other => other,
    };
    let object = match parsed {
        Value::Object(object) => Value::Object(object),
        Value::Null => json!({}),
        other => json!({ "arguments": other }),
    };
    function.insert("arguments".to_owned(), object);
}

/// Field names of the assistant's reasoning in requests and templates.
const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Whether a template reads `thinking`, as gpt-oss's does.
pub(super) fn reads_thinking(source: &str) -> bool {
    let spelled = [".thinking", "'thinking'", "\"thinking\""];
    spelled.iter().any(|spelled| source.contains(spelled))
}

/// Copies reasoning to all field names, to `thinking` only for templates that read it.
pub(super) fn spell_reasoning(message: &mut Map<String, Value>, reads_thinking: bool) {
    let text = |name: &&str| message.get(*name).filter(|v| v.is_string()).cloned();
    let Some(text) = REASONING.iter().find_map(text) else {
        return;
    };
    for name in REASONING {
        if name != "thinking" || reads_thinking {
            message.insert(name.to_owned(), text.clone());
        }
    }
}

fn bad_messages(reason: &str) -> TextError {
    TextError::BadMessages {
        reason: reason.to_owned(),
    }
}
